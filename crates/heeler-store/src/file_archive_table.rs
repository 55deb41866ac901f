//! The tables of archived files. Start at [`CREATE_ARCHIVE`].

/// Tables of this module. `shared_files.archived` is the length that the archive has, or that it leaves out.
pub(crate) const CREATE_ARCHIVE: &str = "ALTER TABLE shared_files ADD COLUMN IF NOT EXISTS changed_at TIMESTAMPTZ NOT NULL \
    DEFAULT clock_timestamp(); \
    ALTER TABLE shared_files ADD COLUMN IF NOT EXISTS archived BIGINT; \
    CREATE INDEX IF NOT EXISTS idx_shared_files_unarchived ON shared_files (changed_at, path) \
    WHERE archived IS NULL OR archived < length; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS archives_read BIGINT NOT NULL DEFAULT 0; \
    CREATE TABLE IF NOT EXISTS archived_files (\
    path TEXT NOT NULL PRIMARY KEY, number BIGINT NOT NULL UNIQUE, length BIGINT NOT NULL, \
    sha256 TEXT NOT NULL, host TEXT NOT NULL, chunks BIGINT NOT NULL, \
    archived_at TIMESTAMPTZ NOT NULL, object TEXT); \
    CREATE TABLE IF NOT EXISTS archive_chunks (\
    path TEXT NOT NULL, length BIGINT NOT NULL, host TEXT NOT NULL, number BIGINT NOT NULL, \
    bytes BYTEA NOT NULL, PRIMARY KEY (path, length, host, number)); \
    ALTER TABLE archive_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL; \
    CREATE TABLE IF NOT EXISTS archive_faults (\
    host TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, seen_at TIMESTAMPTZ NOT NULL, \
    PRIMARY KEY (host, path)); \
    CREATE TABLE IF NOT EXISTS archive_policy (\
    one BIGINT NOT NULL PRIMARY KEY, place TEXT NOT NULL, after_seconds BIGINT NOT NULL)";

/// True if the fleet has an archive, in SQL.
pub(crate) const HAS_ARCHIVE: &str =
    "EXISTS (SELECT 1 FROM archive_policy WHERE one = 1 AND place <> 'off')";
