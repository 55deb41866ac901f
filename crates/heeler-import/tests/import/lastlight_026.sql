-- What version 0.26 adds to the first edition, and what it took away.
ALTER TABLE executions ADD COLUMN owner TEXT;
ALTER TABLE executions ADD COLUMN triggered_by TEXT;
ALTER TABLE executions ADD COLUMN trigger_actor_type TEXT;
ALTER TABLE executions ADD COLUMN extension_status TEXT;
ALTER TABLE executions ADD COLUMN skills_status TEXT;
ALTER TABLE workflow_runs ADD COLUMN owner TEXT;
ALTER TABLE workflow_runs ADD COLUMN triggered_by TEXT;
ALTER TABLE workflow_runs ADD COLUMN trace_id TEXT;
ALTER TABLE workflow_runs DROP COLUMN node_statuses;
ALTER TABLE workflow_approvals ADD COLUMN artifact TEXT;
CREATE TABLE cron_runs (id TEXT PRIMARY KEY, cron_name TEXT, status TEXT);
INSERT INTO cron_runs VALUES ('c1', 'nightly', 'ok'), ('c2', 'nightly', 'failed');
CREATE TABLE users (id TEXT PRIMARY KEY);
UPDATE executions SET owner = 'ann', repo = 'site', triggered_by = 'ann', skills_status = '{}'
  WHERE repo = 'ann/site';
UPDATE workflow_runs SET owner = 'ann', repo = 'site', trace_id = 't-1';
UPDATE workflow_approvals SET artifact = 'architect-plan.md';
