-- Notices to people, recorded with the change that causes them. The key is what records none twice.
CREATE TABLE notices (
    id TEXT NOT NULL PRIMARY KEY,
    channel TEXT NOT NULL,
    event TEXT NOT NULL,
    -- Object of the event, such as the ID of a question.
    subject TEXT NOT NULL,
    agent TEXT,
    created_at TEXT NOT NULL,
    -- Not sent before this time.
    due_at TEXT NOT NULL,
    -- 1 if it may be sent together with others.
    in_digest BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    last_error TEXT,
    -- The message, if its channel gives it an ID.
    message_id TEXT,
    -- `sent`, `failed` or `dropped`; set with `ended_at`.
    outcome TEXT,
    ended_at TEXT,
    -- Set when nothing is left to do about the subject.
    closed_at TEXT,
    payload TEXT NOT NULL
);
CREATE INDEX idx_notices_waiting ON notices(created_at, id) WHERE ended_at IS NULL;
CREATE INDEX idx_notices_open ON notices(created_at, id) WHERE closed_at IS NULL;
CREATE INDEX idx_notices_channel ON notices(channel, created_at);
CREATE INDEX idx_notices_outcome ON notices(channel, outcome, ended_at);
CREATE INDEX idx_notices_created ON notices(created_at, id);
