-- Public key of the runner: only a result that it signed is believed. NULL for runs of earlier releases.
ALTER TABLE runs ADD COLUMN result_key TEXT;

-- Agent and day that `spent` counts for, as in `spending`: rows that are missing there are noticed.
ALTER TABLE runs ADD COLUMN spent_by TEXT;
ALTER TABLE runs ADD COLUMN spent_day TEXT;
UPDATE runs SET spent_by = (SELECT agent FROM executions WHERE executions.id = runs.job_id)
    WHERE spent > 0;
CREATE INDEX idx_runs_spent ON runs(spent_day, spent_by, spent) WHERE spent > 0;

-- Hash of the secret with which processes of a run identify themselves to the daemon.
ALTER TABLE runs ADD COLUMN capability TEXT;
