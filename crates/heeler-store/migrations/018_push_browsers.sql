-- Browsers that receive notices by Web Push.
CREATE TABLE push_browsers (
    -- Follows from the endpoint.
    id TEXT NOT NULL PRIMARY KEY,
    -- Name of the channel in the config.
    channel TEXT NOT NULL,
    -- Person who added it.
    owner TEXT NOT NULL,
    -- Description for people, such as `Firefox on Android`.
    label TEXT NOT NULL,
    added_at TEXT NOT NULL,
    -- Address at the push service.
    endpoint TEXT NOT NULL,
    -- Keys of the browser, with which messages are encrypted.
    public_key TEXT NOT NULL,
    auth_secret TEXT NOT NULL
);
CREATE INDEX idx_push_browsers_added ON push_browsers(added_at, id);
CREATE INDEX idx_push_browsers_channel ON push_browsers(channel, added_at, id);
CREATE INDEX idx_push_browsers_owner ON push_browsers(owner);
