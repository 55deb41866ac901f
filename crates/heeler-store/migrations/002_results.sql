-- How each run ended, whole, as its runner wrote it.
ALTER TABLE runs ADD COLUMN result TEXT;
-- The session of a chat channel is its newest one.
CREATE INDEX idx_sessions_channel ON sessions(agent, channel_id, last_active_at, id)
    WHERE channel_id IS NOT NULL;
