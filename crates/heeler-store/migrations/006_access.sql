-- Who may do what. Of secrets only hashes are here: SHA-256 of those that are random, Argon2 of
-- passwords.
CREATE TABLE access_tokens (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    scope TEXT NOT NULL,
    created_at TEXT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at TEXT,
    used_at TEXT,
    revoked_at TEXT,
    hash TEXT NOT NULL
);
CREATE UNIQUE INDEX idx_access_tokens_hash ON access_tokens(hash);
CREATE INDEX idx_access_tokens_newest ON access_tokens(created_at, id);
-- One that counts per name.
CREATE UNIQUE INDEX idx_access_tokens_name ON access_tokens(name) WHERE revoked_at IS NULL;

CREATE TABLE access_people (
    name TEXT NOT NULL PRIMARY KEY,
    scope TEXT NOT NULL,
    created_at TEXT NOT NULL,
    changed_at TEXT NOT NULL,
    hash TEXT NOT NULL
);

-- Browsers that somebody logged in with; `person` is none where a one-time link did it.
CREATE TABLE access_logins (
    hash TEXT NOT NULL PRIMARY KEY,
    who TEXT NOT NULL,
    scope TEXT NOT NULL,
    person TEXT,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
);
CREATE INDEX idx_access_logins_expiry ON access_logins(expires_at);
CREATE INDEX idx_access_logins_person ON access_logins(person) WHERE person IS NOT NULL;
