//! The statements of a node on SQLite: one per call, since a single statement is atomic on SQLite whatever becomes of who sent
//! it. No transaction is ever open between two of them.
//!
//! A statement that writes takes the file's write lock before it looks at anything, and it looks at the time after that; so
//! calls come one after the other, and a lock's ttl begins when it is taken. Conditions that look at all resources stand in
//! subqueries that do not depend on the row, so they are decided once, before the first row is written.
//!
//! `?1` is the array of keys, `?2` the owner. Times are milliseconds since 1970. Rows are never deleted, so a counter outlives
//! all locks.

/// The table, and who the file is.
pub(super) const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS redlock_node (
    key        TEXT PRIMARY KEY,
    owner      TEXT,
    expires_at INTEGER NOT NULL DEFAULT 0,
    counter    INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS redlock_node_identity (only INTEGER PRIMARY KEY CHECK (only = 1), identity TEXT NOT NULL);
INSERT OR IGNORE INTO redlock_node_identity VALUES (1, lower(hex(randomblob(16))));";

/// The file; the empty string where there is none.
pub(super) const FILE: &str = "SELECT file FROM pragma_database_list WHERE name = 'main'";

/// Who the file is, and its time.
pub(super) const IDENTITY: &str =
    "SELECT identity, CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM redlock_node_identity";

/// `?3` ttl, `?4` floor. Answers a row with the new counter for each resource, or none. A counter stops at the greatest integer,
/// far above all tokens: SQLite would go on in floating point.
pub(super) const ACQUIRE: &str = "\
INSERT INTO redlock_node (key, owner, expires_at, counter)
SELECT value, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3, 1 + min(max(?4, coalesce((
    SELECT max(counter) FROM redlock_node WHERE key IN (SELECT value FROM json_each(?1))), 0)), 9223372036854775806)
FROM json_each(?1)
WHERE NOT EXISTS (
    SELECT 1 FROM redlock_node
    WHERE key IN (SELECT value FROM json_each(?1)) AND CAST(unixepoch('subsec') * 1000 AS INTEGER) < expires_at)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at, counter = excluded.counter
RETURNING counter";

/// The first resource that is held, its place in the array, its owner and what remains.
pub(super) const IN_THE_WAY: &str = "\
SELECT wanted.key, node.owner, node.expires_at - CAST(unixepoch('subsec') * 1000 AS INTEGER)
FROM json_each(?1) AS wanted JOIN redlock_node AS node ON node.key = wanted.value
WHERE CAST(unixepoch('subsec') * 1000 AS INTEGER) < node.expires_at
ORDER BY wanted.key LIMIT 1";

/// `?3` the least that the counters are to be. Answers a row with the counter for each resource, or none: not the owner.
pub(super) const RAISE: &str = "\
UPDATE redlock_node SET counter = max(counter, ?3)
WHERE key IN (SELECT value FROM json_each(?1)) AND json_array_length(?1) = (
    SELECT count(*) FROM redlock_node
    WHERE key IN (SELECT value FROM json_each(?1)) AND owner = ?2
    AND CAST(unixepoch('subsec') * 1000 AS INTEGER) < expires_at)
RETURNING counter";

/// `?3` ttl. Answers a row for each resource, or none: the owner does not hold all.
pub(super) const EXTEND: &str = "\
UPDATE redlock_node SET expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3
WHERE key IN (SELECT value FROM json_each(?1)) AND json_array_length(?1) = (
    SELECT count(*) FROM redlock_node
    WHERE key IN (SELECT value FROM json_each(?1)) AND owner = ?2
    AND CAST(unixepoch('subsec') * 1000 AS INTEGER) < expires_at)
RETURNING counter";

/// Answers a row for each resource that was freed.
pub(super) const RELEASE: &str = "\
UPDATE redlock_node SET owner = NULL, expires_at = 0
WHERE key IN (SELECT value FROM json_each(?1)) AND owner = ?2
AND CAST(unixepoch('subsec') * 1000 AS INTEGER) < expires_at
RETURNING counter";

/// Whether any resource is somebody else's.
pub(super) const OTHERS: &str = "\
SELECT EXISTS (
    SELECT 1 FROM redlock_node
    WHERE key IN (SELECT value FROM json_each(?1)) AND owner <> ?2
    AND CAST(unixepoch('subsec') * 1000 AS INTEGER) < expires_at)";

/// `?1` one key. Counter, owner if it is held, what remains.
pub(super) const INSPECT: &str = "\
SELECT counter, CASE WHEN CAST(unixepoch('subsec') * 1000 AS INTEGER) < expires_at THEN owner END,
    max(0, expires_at - CAST(unixepoch('subsec') * 1000 AS INTEGER))
FROM redlock_node WHERE key = ?1";
