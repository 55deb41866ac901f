-- Lists of the runs about one repository, and about one trigger, in the order of every list.
CREATE INDEX idx_workflow_runs_repo ON workflow_runs(owner, repo, started_at, id);
DROP INDEX idx_workflow_runs_trigger;
CREATE INDEX idx_workflow_runs_trigger ON workflow_runs(trigger_id, started_at, id);
