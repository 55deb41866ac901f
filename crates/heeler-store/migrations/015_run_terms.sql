-- Raised when the fleet gives a run up: what its host sends under a lower term is refused.
ALTER TABLE runs ADD COLUMN term BIGINT NOT NULL DEFAULT 0;

-- What another host needs to start the run, as JSON. NULL for a run that its leader started itself.
ALTER TABLE runs ADD COLUMN assignment TEXT;
