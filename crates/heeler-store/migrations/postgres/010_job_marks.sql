-- What a list shows of a job beside its head. A table of its own: a new column of `executions` would
-- follow the prompt, which lists do not read.
CREATE TABLE job_marks (
    job TEXT NOT NULL PRIMARY KEY,
    -- The first line of the prompt.
    title TEXT,
    -- The tools that the agent was denied, as text.
    denied TEXT
) WITHOUT ROWID;

-- People name a job and a workflow run by the random end of their ids.
CREATE INDEX idx_executions_end ON executions(substr(id, -6)) WHERE step IS NULL;
CREATE INDEX idx_workflow_runs_end ON workflow_runs(substr(id, -6));
