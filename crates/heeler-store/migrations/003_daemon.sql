-- How far each schedule has come: every due time up to `through` is an occurrence or in a skip.
-- `rule` is what it said then: another rule begins anew.
ALTER TABLE schedules ADD COLUMN anchor TEXT;
ALTER TABLE schedules ADD COLUMN through TEXT;
ALTER TABLE schedules ADD COLUMN rule TEXT;

-- Switched off by a person; no config changes that.
ALTER TABLE agents ADD COLUMN enabled BIGINT NOT NULL DEFAULT 1;

-- NULL: at once.
ALTER TABLE effects ADD COLUMN due_at TEXT;
CREATE INDEX idx_effects_due ON effects(COALESCE(due_at, ''), created_at, id) WHERE done_at IS NULL;

-- A due time that got its job. The key is what starts none twice.
CREATE TABLE occurrences (
    agent TEXT NOT NULL,
    schedule TEXT NOT NULL,
    due_at TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (agent, schedule, due_at)
);
CREATE INDEX idx_occurrences_job ON occurrences(job_id);

-- Due times that got no job: one row per span and reason.
CREATE TABLE skips (
    agent TEXT NOT NULL,
    schedule TEXT NOT NULL,
    first_due TEXT NOT NULL,
    last_due TEXT NOT NULL,
    count BIGINT NOT NULL,
    reason TEXT NOT NULL,
    recorded_at TEXT NOT NULL,
    PRIMARY KEY (agent, schedule, first_due, reason)
);
CREATE INDEX idx_skips_reason ON skips(agent, schedule, reason, first_due);

-- Jobs that wait for their turn.
CREATE TABLE queue (
    job_id TEXT NOT NULL PRIMARY KEY REFERENCES executions(id),
    priority BIGINT NOT NULL,
    asked_at TEXT NOT NULL,
    not_before TEXT,
    expires_at TEXT,
    reason TEXT NOT NULL,
    wanted TEXT NOT NULL
);
CREATE INDEX idx_queue_order ON queue(priority DESC, asked_at, job_id);

-- Money in micro-dollars: set aside for a run, and spent. Days are local ones of the fleet's zone.
CREATE TABLE reservations (
    run_id TEXT NOT NULL PRIMARY KEY,
    agent TEXT NOT NULL,
    day TEXT NOT NULL,
    micros BIGINT NOT NULL
);
CREATE TABLE spending (
    day TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    micros BIGINT NOT NULL,
    PRIMARY KEY (day, agent, model)
);
CREATE INDEX idx_spending_agent ON spending(agent, micros);

-- Credentials whose quota is used up.
CREATE TABLE parked (
    credential TEXT NOT NULL PRIMARY KEY,
    until_at TEXT NOT NULL,
    since_at TEXT NOT NULL,
    job_id TEXT NOT NULL,
    reason TEXT NOT NULL
);

-- What counts as spent by a run, in millionths of a dollar: its reservation where it could not tell.
ALTER TABLE runs ADD COLUMN spent BIGINT;
