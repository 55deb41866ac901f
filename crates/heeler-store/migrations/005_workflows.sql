-- Which part of which phase of its workflow run a row is; `seq` counts the entries of a run by their
-- beginning, over this table and the approvals. `decision` is what was decided when it ended.
ALTER TABLE executions ADD COLUMN phase TEXT;
ALTER TABLE executions ADD COLUMN part TEXT;
ALTER TABLE executions ADD COLUMN seq BIGINT;
ALTER TABLE executions ADD COLUMN decision TEXT;

-- Set where no process did it (a context phase, a skip): such a row is no job and in no list of them.
ALTER TABLE executions ADD COLUMN step BIGINT;
DROP INDEX idx_executions_newest;
DROP INDEX idx_executions_agent;
DROP INDEX idx_executions_status;
DROP INDEX idx_executions_agent_status;
CREATE INDEX idx_executions_newest ON executions(started_at, id) WHERE step IS NULL;
CREATE INDEX idx_executions_agent ON executions(agent, started_at, id) WHERE step IS NULL;
CREATE INDEX idx_executions_status ON executions(status, started_at, id) WHERE step IS NULL;
CREATE INDEX idx_executions_agent_status ON executions(agent, status, started_at, id) WHERE step IS NULL;

-- The journal of a run, in its order.
CREATE INDEX idx_executions_journal ON executions(workflow_run_id, seq) WHERE seq IS NOT NULL;

-- What a run goes by, whatever becomes of the files: the workflow with all that it read. Kept once.
CREATE TABLE workflow_definitions (
    hash TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    created_at TEXT NOT NULL,
    files TEXT NOT NULL
);
ALTER TABLE workflow_runs ADD COLUMN definition TEXT;
ALTER TABLE workflow_runs ADD COLUMN trigger_type TEXT;
ALTER TABLE workflow_runs ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE workflow_runs ADD COLUMN spent BIGINT NOT NULL DEFAULT 0;
ALTER TABLE workflow_runs ADD COLUMN mode TEXT;
ALTER TABLE workflow_runs ADD COLUMN error TEXT;

-- One active run per trigger and workflow. Those of another system may have been doubled there.
CREATE UNIQUE INDEX idx_workflow_runs_active ON workflow_runs(workflow_name, trigger_id)
    WHERE status IN ('queued', 'running', 'paused') AND origin IS NULL;

-- One order for every list: newest first, ties by id. One index per filter.
CREATE INDEX idx_workflow_runs_newest ON workflow_runs(started_at, id);
CREATE INDEX idx_workflow_runs_name ON workflow_runs(workflow_name, started_at, id);
CREATE INDEX idx_workflow_runs_state ON workflow_runs(status, started_at, id);
CREATE INDEX idx_workflow_runs_name_state ON workflow_runs(workflow_name, status, started_at, id);

-- Who is asked what: a gate of a run has `phase`, `part` and `seq`, as its executions have. What a
-- running agent asks has `job_id` and `ask_id`, and its job's id as `workflow_run_id`.
ALTER TABLE workflow_approvals ADD COLUMN phase TEXT;
ALTER TABLE workflow_approvals ADD COLUMN part TEXT;
ALTER TABLE workflow_approvals ADD COLUMN seq BIGINT;
ALTER TABLE workflow_approvals ADD COLUMN expires_at TEXT;
ALTER TABLE workflow_approvals ADD COLUMN default_answer TEXT;
ALTER TABLE workflow_approvals ADD COLUMN job_id TEXT;
ALTER TABLE workflow_approvals ADD COLUMN ask_id TEXT;
ALTER TABLE workflow_approvals ADD COLUMN delivered_at TEXT;
ALTER TABLE workflow_approvals ADD COLUMN detail TEXT;
CREATE UNIQUE INDEX idx_approvals_ask ON workflow_approvals(job_id, ask_id) WHERE ask_id IS NOT NULL;
CREATE INDEX idx_approvals_newest ON workflow_approvals(created_at, id);
CREATE INDEX idx_approvals_state ON workflow_approvals(status, created_at, id);
CREATE INDEX idx_approvals_undelivered ON workflow_approvals(job_id)
    WHERE ask_id IS NOT NULL AND delivered_at IS NULL;

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
