-- Times without a connection to a chat platform, of which not all messages were read yet. A row says
-- since when messages of a channel or thread may be missing; that with an empty channel holds for all
-- others. The rows exist before the first later message is recorded.
CREATE TABLE chat_gaps (
    platform TEXT NOT NULL,
    account TEXT NOT NULL,
    chat TEXT NOT NULL,
    thread TEXT NOT NULL,
    gap TEXT NOT NULL,
    since_ms BIGINT NOT NULL,
    -- 1 if the channel is read although the config does not list it.
    is_unlisted BIGINT NOT NULL,
    PRIMARY KEY (platform, account, chat, thread)
) WITHOUT ROWID;
