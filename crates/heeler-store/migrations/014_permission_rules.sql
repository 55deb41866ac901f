-- Rules that a person gave an agent for all later runs: calls of tools that need no question.
CREATE TABLE permission_rules (
    agent TEXT NOT NULL,
    rule TEXT NOT NULL,
    granted_at TEXT NOT NULL,
    granted_by TEXT NOT NULL,
    PRIMARY KEY (agent, rule)
) WITHOUT ROWID;
