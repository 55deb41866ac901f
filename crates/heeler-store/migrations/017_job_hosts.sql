-- The host of a job's last run, in a fleet with several hosts. Lists search by this column.
ALTER TABLE executions ADD COLUMN host TEXT;

CREATE INDEX idx_executions_host ON executions(host, started_at, id, step)
    WHERE step IS NULL AND host IS NOT NULL;
CREATE INDEX idx_executions_host_status ON executions(host, status, started_at, id, step)
    WHERE step IS NULL AND host IS NOT NULL;

-- The same, as lists show it: that column follows the prompt, which lists do not read.
ALTER TABLE job_marks ADD COLUMN host TEXT;
