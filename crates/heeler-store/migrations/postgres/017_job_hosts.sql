ALTER TABLE executions ADD COLUMN host TEXT;
ALTER TABLE job_marks ADD COLUMN host TEXT;

-- A fleet that has hosts already. Runs from before it had any name their machine instead.
DO $$
BEGIN
    IF to_regclass('hosts') IS NOT NULL THEN
        UPDATE executions SET host = last.host
            FROM (SELECT DISTINCT ON (job_id) job_id, host FROM runs ORDER BY job_id, attempt DESC) AS last
            WHERE last.job_id = executions.id AND last.host IN (SELECT name FROM hosts);
        INSERT INTO job_marks (job, host) SELECT id, host FROM executions WHERE host IS NOT NULL
            ON CONFLICT (job) DO UPDATE SET host = excluded.host;
    END IF;
END
$$;

CREATE INDEX idx_executions_host ON executions(host, started_at, id, step)
    WHERE step IS NULL AND host IS NOT NULL;
CREATE INDEX idx_executions_host_status ON executions(host, status, started_at, id, step)
    WHERE step IS NULL AND host IS NOT NULL;
