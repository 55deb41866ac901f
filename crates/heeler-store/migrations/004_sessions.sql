-- What a fork takes over when it begins; NULL once it has.
ALTER TABLE sessions ADD COLUMN fork_source TEXT;
ALTER TABLE sessions ADD COLUMN fork_at TEXT;

-- The session whose context had grown too large, and which this one goes on from.
ALTER TABLE sessions ADD COLUMN continues TEXT;

-- The worktree of ours that it has to itself.
ALTER TABLE sessions ADD COLUMN workspace TEXT;

-- Where the agent's own record ended when we left it.
ALTER TABLE sessions ADD COLUMN own_bytes BIGINT;
ALTER TABLE sessions ADD COLUMN own_last TEXT;

CREATE INDEX idx_sessions_parent ON sessions(parent) WHERE parent IS NOT NULL;
CREATE INDEX idx_sessions_continues ON sessions(continues) WHERE continues IS NOT NULL;
CREATE INDEX idx_sessions_fork_source ON sessions(fork_source) WHERE fork_source IS NOT NULL;

-- What is left of a session that was deleted: its row, and where its files are until they are purged.
CREATE TABLE deleted_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    agent_session_id TEXT,
    agent TEXT NOT NULL,
    deleted_at TEXT NOT NULL,
    deleted_by TEXT NOT NULL,
    purged_at TEXT,
    record TEXT NOT NULL
);
CREATE INDEX idx_deleted_sessions_agent_session ON deleted_sessions(agent_session_id);
