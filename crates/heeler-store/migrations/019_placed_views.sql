-- The last generation of a view whose file is in place. Its publication follows when the file is durable.
ALTER TABLE views ADD COLUMN placed_generation BIGINT NOT NULL DEFAULT 0;
