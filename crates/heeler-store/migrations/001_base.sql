-- The tables of Last Light keep its names and columns; ours follow.
-- Columns of unbounded size stand last in a row: SQLite reads a row from the front, so a page of
-- heads never follows the chain of pages that a long prompt spills into.

-- One row per job. Also Last Light's executions: a job is one.
CREATE TABLE executions (
    id TEXT NOT NULL PRIMARY KEY,
    agent TEXT NOT NULL,
    schedule TEXT,
    trigger_type TEXT NOT NULL,
    status TEXT NOT NULL,
    exit_reason TEXT,
    started_at TEXT NOT NULL,
    finished_at TEXT,
    duration_ms BIGINT,
    cost_usd DOUBLE PRECISION,
    session_id TEXT,
    version BIGINT NOT NULL DEFAULT 1,
    run_started_at TEXT,
    success BIGINT,
    interrupted BIGINT NOT NULL DEFAULT 0,
    restart_count BIGINT NOT NULL DEFAULT 0,
    forked_from TEXT,
    stop_reason TEXT,
    turns BIGINT,
    input_tokens BIGINT,
    cache_creation_input_tokens BIGINT,
    cache_read_input_tokens BIGINT,
    output_tokens BIGINT,
    api_duration_ms BIGINT,
    issue_number BIGINT,
    workflow_run_id TEXT,
    skill TEXT NOT NULL,
    repo TEXT,
    owner TEXT,
    triggered_by TEXT,
    trigger_actor_type TEXT,
    origin TEXT,
    working_directory TEXT,
    trigger_id TEXT NOT NULL DEFAULT '',
    summary TEXT,
    error TEXT,
    usage_json TEXT,
    extension_status TEXT,
    skills_status TEXT,
    prompt TEXT,
    output_text TEXT
);
-- One order for every list: newest first, ties by id. One index per filter.
CREATE INDEX idx_executions_newest ON executions(started_at, id);
CREATE INDEX idx_executions_agent ON executions(agent, started_at, id);
CREATE INDEX idx_executions_status ON executions(status, started_at, id);
CREATE INDEX idx_executions_agent_status ON executions(agent, status, started_at, id);
CREATE INDEX idx_executions_session ON executions(session_id, started_at, id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_executions_trigger ON executions(trigger_type, trigger_id);
CREATE INDEX idx_executions_skill ON executions(skill, started_at);
CREATE INDEX idx_executions_workflow_run ON executions(workflow_run_id, skill);

CREATE TABLE workflow_runs (
    id TEXT NOT NULL PRIMARY KEY,
    workflow_name TEXT NOT NULL,
    trigger_id TEXT NOT NULL,
    repo TEXT,
    issue_number BIGINT,
    current_phase TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'running',
    restart_count BIGINT NOT NULL DEFAULT 0,
    started_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    finished_at TEXT,
    owner TEXT,
    triggered_by TEXT,
    trigger_actor_type TEXT,
    trace_id TEXT,
    span_id TEXT,
    origin TEXT,
    version BIGINT NOT NULL DEFAULT 1,
    phase_history TEXT NOT NULL DEFAULT '[]',
    node_statuses TEXT,
    context TEXT,
    scratch TEXT
);
CREATE INDEX idx_workflow_runs_trigger ON workflow_runs(trigger_id, status);
CREATE INDEX idx_workflow_runs_status ON workflow_runs(status);
CREATE INDEX idx_workflow_runs_started_at ON workflow_runs(started_at DESC);
CREATE INDEX idx_workflow_runs_name_started ON workflow_runs(workflow_name, started_at DESC);

-- No foreign key: Last Light has none, and an approval whose run is gone is still a record.
CREATE TABLE workflow_approvals (
    id TEXT NOT NULL PRIMARY KEY,
    workflow_run_id TEXT NOT NULL,
    gate TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    kind TEXT NOT NULL DEFAULT 'approve',
    requested_by TEXT,
    responded_by TEXT,
    responded_at TEXT,
    created_at TEXT NOT NULL,
    version BIGINT NOT NULL DEFAULT 1,
    summary TEXT NOT NULL,
    response TEXT,
    artifact TEXT
);
CREATE INDEX idx_approvals_workflow ON workflow_approvals(workflow_run_id);
CREATE INDEX idx_approvals_status ON workflow_approvals(status);

CREATE TABLE cron_overrides (
    name TEXT NOT NULL PRIMARY KEY,
    enabled BIGINT NOT NULL DEFAULT 1,
    schedule TEXT,
    updated_at TEXT NOT NULL,
    updated_by TEXT
);

CREATE TABLE workflow_overrides (
    name TEXT NOT NULL PRIMARY KEY,
    enabled BIGINT NOT NULL DEFAULT 1,
    updated_at TEXT NOT NULL,
    updated_by TEXT
);

CREATE TABLE messaging_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    platform TEXT NOT NULL,
    channel_id TEXT NOT NULL,
    thread_id TEXT,
    user_id TEXT NOT NULL,
    agent_session_id TEXT,
    created_at TEXT NOT NULL,
    last_activity_at TEXT NOT NULL,
    message_count BIGINT DEFAULT 0,
    active BIGINT DEFAULT 1
);
CREATE INDEX idx_msg_sessions_lookup ON messaging_sessions(platform, channel_id, thread_id, user_id);
-- NULLs are distinct in an index, so a missing thread must become a value to be bound.
CREATE UNIQUE INDEX idx_msg_sessions_unique_active
    ON messaging_sessions(platform, channel_id, COALESCE(thread_id, ''), user_id) WHERE active = 1;

-- `origin_id` names an imported message; Last Light's own numbers may clash with ours.
CREATE TABLE messaging_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES messaging_sessions(id),
    role TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    platform_message_id TEXT,
    origin_id TEXT UNIQUE,
    content TEXT NOT NULL
);
CREATE INDEX idx_msg_messages_session ON messaging_messages(session_id, timestamp);

CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY,
    agent_session_id TEXT UNIQUE,
    agent TEXT NOT NULL,
    mode TEXT NOT NULL,
    approvals TEXT NOT NULL,
    status TEXT NOT NULL,
    channel_id TEXT,
    created_at TEXT NOT NULL,
    last_active_at TEXT NOT NULL,
    message_count BIGINT NOT NULL DEFAULT 0,
    token_estimate BIGINT NOT NULL DEFAULT 0,
    job_count BIGINT NOT NULL DEFAULT 0,
    working_directory TEXT,
    runtime TEXT NOT NULL,
    docker_enabled BIGINT NOT NULL DEFAULT 0,
    parent TEXT,
    forked_at_message BIGINT,
    log_path TEXT,
    origin TEXT,
    version BIGINT NOT NULL DEFAULT 1
);
CREATE INDEX idx_sessions_newest ON sessions(last_active_at, id);
CREATE INDEX idx_sessions_agent ON sessions(agent, last_active_at, id);
CREATE INDEX idx_sessions_status ON sessions(status, last_active_at, id);
CREATE INDEX idx_sessions_agent_status ON sessions(agent, status, last_active_at, id);

-- A removed agent or schedule keeps its row: the view must know what to take out.
CREATE TABLE agents (
    name TEXT NOT NULL PRIMARY KEY,
    status TEXT NOT NULL DEFAULT 'idle',
    current_job TEXT,
    last_job TEXT,
    next_schedule TEXT,
    next_trigger_at TEXT,
    container_id TEXT,
    session_id TEXT,
    removed BIGINT NOT NULL DEFAULT 0,
    error_message TEXT
);

CREATE TABLE schedules (
    agent TEXT NOT NULL REFERENCES agents(name),
    name TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'idle',
    last_run_at TEXT,
    next_run_at TEXT,
    removed BIGINT NOT NULL DEFAULT 0,
    last_error TEXT,
    PRIMARY KEY (agent, name)
);

CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES executions(id),
    attempt BIGINT NOT NULL,
    host TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    status TEXT NOT NULL,
    created_at TEXT NOT NULL,
    started_at TEXT,
    finished_at TEXT,
    committed BIGINT NOT NULL DEFAULT 0,
    version BIGINT NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX idx_runs_job ON runs(job_id, attempt);
CREATE INDEX idx_runs_uncommitted ON runs(id) WHERE committed = 0;

CREATE TABLE effects (
    id TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    created_at TEXT NOT NULL,
    done_at TEXT,
    attempts BIGINT NOT NULL DEFAULT 0,
    last_error TEXT,
    payload TEXT NOT NULL
);
CREATE INDEX idx_effects_undone ON effects(created_at, id) WHERE done_at IS NULL;

CREATE TABLE counters (
    kind TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    total BIGINT NOT NULL,
    PRIMARY KEY (kind, agent, status)
);

CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('epoch', '1');

-- A view is due while its generation is ahead of the published one. `pending_sha256` is committed
-- before the file is replaced, so that after a crash our own file is never taken for a foreign one.
CREATE TABLE views (
    path TEXT NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL DEFAULT 1,
    published_generation BIGINT NOT NULL DEFAULT 0,
    sha256 TEXT,
    pending_sha256 TEXT,
    subject TEXT,
    published_at TEXT
);
CREATE INDEX idx_views_due ON views(path) WHERE generation <> published_generation;
