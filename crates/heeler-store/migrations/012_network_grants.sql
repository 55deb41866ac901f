-- Hash of a native session's content when a run left it.
ALTER TABLE sessions ADD COLUMN own_hash TEXT;

-- Hosts that a person allowed a sandboxed agent to reach: for one native session, or, with an empty
-- session, for all of them.
CREATE TABLE network_grants (
    agent TEXT NOT NULL,
    session TEXT NOT NULL,
    host TEXT NOT NULL,
    granted_at TEXT NOT NULL,
    granted_by TEXT NOT NULL,
    PRIMARY KEY (agent, session, host)
) WITHOUT ROWID;
