-- Events of chat platforms, recorded before they are acknowledged. The key is what starts none twice.
CREATE TABLE inbox (
    platform TEXT NOT NULL,
    account TEXT NOT NULL,
    event_id TEXT NOT NULL,
    received_at TEXT NOT NULL,
    channel TEXT NOT NULL,
    is_direct BIGINT NOT NULL,
    message_id TEXT,
    sender TEXT NOT NULL,
    outcome TEXT NOT NULL,
    job_id TEXT,
    reason TEXT,
    PRIMARY KEY (platform, account, event_id)
);
CREATE INDEX idx_inbox_received ON inbox(received_at);
CREATE INDEX idx_inbox_job ON inbox(job_id, received_at) WHERE job_id IS NOT NULL;

-- Questions of agents that were posted to a chat. `message_id` is known when the post was made.
CREATE TABLE chat_questions (
    approval_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    platform TEXT NOT NULL,
    account TEXT NOT NULL,
    is_direct BIGINT NOT NULL,
    asked_at TEXT NOT NULL,
    message_id TEXT,
    closed_at TEXT,
    PRIMARY KEY (approval_id, channel)
);
CREATE INDEX idx_chat_questions_open ON chat_questions(asked_at, approval_id) WHERE closed_at IS NULL;
CREATE INDEX idx_chat_questions_channel ON chat_questions(channel, asked_at) WHERE closed_at IS NULL;

-- A conversation belongs to one agent; several may answer in one channel.
ALTER TABLE messaging_sessions ADD COLUMN agent TEXT;
DROP INDEX idx_msg_sessions_unique_active;
CREATE UNIQUE INDEX idx_msg_sessions_unique_active ON messaging_sessions
    (platform, channel_id, COALESCE(thread_id, ''), user_id, COALESCE(agent, '')) WHERE active = 1;
CREATE INDEX idx_msg_sessions_agent ON messaging_sessions
    (agent, platform, channel_id, COALESCE(thread_id, ''), created_at) WHERE agent IS NOT NULL;
