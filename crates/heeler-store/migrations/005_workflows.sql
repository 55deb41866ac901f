-- Which part of which phase of its workflow run a row is; `seq` counts the entries of a run by their
-- beginning, over this table and the approvals. `decision` is what was decided when it ended.
ALTER TABLE executions ADD COLUMN phase TEXT;
ALTER TABLE executions ADD COLUMN part TEXT;
ALTER TABLE executions ADD COLUMN seq BIGINT;
ALTER TABLE executions ADD COLUMN decision TEXT;

-- Set where no process did it (a context phase, a skip): such a row is no job and in no list of them.
-- The column stands behind a prompt, so lists must not read it: their indexes know, and cover it.
ALTER TABLE executions ADD COLUMN step BIGINT;
DROP INDEX idx_executions_newest;
DROP INDEX idx_executions_agent;
DROP INDEX idx_executions_status;
DROP INDEX idx_executions_agent_status;
CREATE INDEX idx_executions_newest ON executions(started_at, id, step) WHERE step IS NULL;
CREATE INDEX idx_executions_agent ON executions(agent, started_at, id, step) WHERE step IS NULL;
CREATE INDEX idx_executions_status ON executions(status, started_at, id, step) WHERE step IS NULL;
CREATE INDEX idx_executions_agent_status ON executions(agent, status, started_at, id, step) WHERE step IS NULL;

-- The journal of a run, in its order. No two entries begin as one.
CREATE UNIQUE INDEX idx_executions_journal ON executions(workflow_run_id, seq) WHERE seq IS NOT NULL;

-- What a run goes by, whatever becomes of the files: the workflow with all that it read. Kept once.
CREATE TABLE workflow_definitions (
    hash TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    created_at TEXT NOT NULL,
    files TEXT NOT NULL
);

-- Made anew, so that what grows without bound stays behind what lists read.
CREATE TABLE new_workflow_runs (
    id TEXT NOT NULL PRIMARY KEY,
    workflow_name TEXT NOT NULL,
    trigger_id TEXT NOT NULL,
    trigger_type TEXT,
    repo TEXT,
    issue_number BIGINT,
    current_phase TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'running',
    restart_count BIGINT NOT NULL DEFAULT 0,
    started_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    finished_at TEXT,
    spent BIGINT NOT NULL DEFAULT 0,
    owner TEXT,
    triggered_by TEXT,
    trigger_actor_type TEXT,
    trace_id TEXT,
    span_id TEXT,
    origin TEXT,
    version BIGINT NOT NULL DEFAULT 1,
    seq BIGINT NOT NULL DEFAULT 0,
    definition TEXT,
    mode TEXT,
    error TEXT,
    phase_history TEXT NOT NULL DEFAULT '[]',
    node_statuses TEXT,
    context TEXT,
    scratch TEXT
);
INSERT INTO new_workflow_runs (id, workflow_name, trigger_id, repo, issue_number, current_phase,
    status, restart_count, started_at, updated_at, finished_at, owner, triggered_by,
    trigger_actor_type, trace_id, span_id, origin, version, phase_history, node_statuses, context,
    scratch)
SELECT id, workflow_name, trigger_id, repo, issue_number, current_phase,
    CASE WHEN status IN ('succeeded', 'paused', 'cancelled') THEN status ELSE 'failed' END,
    restart_count, started_at, CASE WHEN updated_at = '' THEN started_at ELSE updated_at END,
    finished_at, owner, triggered_by, trigger_actor_type, trace_id, span_id,
    COALESCE(origin, 'imported'), version, phase_history, node_statuses, context, scratch
FROM workflow_runs;
DROP TABLE workflow_runs;
ALTER TABLE new_workflow_runs RENAME TO workflow_runs;

-- One active run per trigger and workflow. Those of another system may have been doubled there.
CREATE UNIQUE INDEX idx_workflow_runs_active ON workflow_runs(workflow_name, trigger_id)
    WHERE status IN ('queued', 'running', 'paused') AND origin IS NULL;

-- One order for every list: newest first, ties by id. One index per filter.
CREATE INDEX idx_workflow_runs_newest ON workflow_runs(started_at, id);
CREATE INDEX idx_workflow_runs_name ON workflow_runs(workflow_name, started_at, id);
CREATE INDEX idx_workflow_runs_status ON workflow_runs(status, started_at, id);
CREATE INDEX idx_workflow_runs_name_status ON workflow_runs(workflow_name, status, started_at, id);
CREATE INDEX idx_workflow_runs_trigger ON workflow_runs(trigger_id, status);

-- Who is asked what: a gate of a run has `phase`, `part` and `seq`, as its executions have. What a
-- running agent asks has `job_id`, `run_id` and `ask_id`.
CREATE TABLE new_workflow_approvals (
    id TEXT NOT NULL PRIMARY KEY,
    workflow_run_id TEXT NOT NULL,
    gate TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    kind TEXT NOT NULL DEFAULT 'approve',
    requested_by TEXT,
    responded_by TEXT,
    responded_at TEXT,
    created_at TEXT NOT NULL,
    expires_at TEXT,
    default_answer TEXT,
    job_id TEXT,
    run_id TEXT,
    ask_id TEXT,
    delivered_at TEXT,
    phase TEXT,
    part TEXT,
    seq BIGINT,
    version BIGINT NOT NULL DEFAULT 1,
    summary TEXT NOT NULL,
    response TEXT,
    detail TEXT,
    artifact TEXT
);
INSERT INTO new_workflow_approvals (id, workflow_run_id, gate, status, kind, requested_by,
    responded_by, responded_at, created_at, version, summary, response, artifact)
SELECT id, workflow_run_id, gate,
    CASE WHEN status IN ('pending', 'approved', 'rejected') THEN status ELSE 'withdrawn' END,
    CASE WHEN kind = 'reply' THEN kind ELSE 'approve' END, requested_by,
    responded_by, responded_at, created_at, version, summary, response, artifact
FROM workflow_approvals;
DROP TABLE workflow_approvals;
ALTER TABLE new_workflow_approvals RENAME TO workflow_approvals;
CREATE INDEX idx_approvals_workflow ON workflow_approvals(workflow_run_id, created_at, id);
CREATE INDEX idx_approvals_newest ON workflow_approvals(created_at, id);
CREATE INDEX idx_approvals_status ON workflow_approvals(status, created_at, id);
CREATE UNIQUE INDEX idx_approvals_journal ON workflow_approvals(workflow_run_id, seq)
    WHERE seq IS NOT NULL;
CREATE UNIQUE INDEX idx_approvals_ask ON workflow_approvals(run_id, ask_id) WHERE ask_id IS NOT NULL;
CREATE INDEX idx_approvals_expiry ON workflow_approvals(status, expires_at)
    WHERE expires_at IS NOT NULL AND ask_id IS NULL;

INSERT INTO counters (kind, agent, status, total)
SELECT 'workflow_run', workflow_name, status, COUNT(*) FROM workflow_runs
GROUP BY workflow_name, status;
INSERT INTO counters (kind, agent, status, total)
SELECT 'approval', kind, status, COUNT(*) FROM workflow_approvals GROUP BY kind, status;

-- What was said and what happened on the way, for people.
CREATE TABLE workflow_events (
    workflow_run_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    phase TEXT,
    text TEXT NOT NULL,
    PRIMARY KEY (workflow_run_id, number)
);
