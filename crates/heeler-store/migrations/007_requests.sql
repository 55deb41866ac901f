-- What was asked under a name of the asker's own, and the answer: the same again does nothing twice.
CREATE TABLE requests (
    asker TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Tells this request from another under the same name.
    print TEXT NOT NULL,
    answered_at TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (asker, name)
);
CREATE INDEX idx_requests_answered_at ON requests(answered_at);
