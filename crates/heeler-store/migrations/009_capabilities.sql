-- Hash of the secret with which processes of a run identify themselves to the daemon.
ALTER TABLE runs ADD COLUMN capability TEXT;
