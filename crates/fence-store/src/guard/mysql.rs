//! The guard on MySQL and MariaDB: three triggers next to the table, in words that both know.
//!
//! All triggers run AFTER the event: a BEFORE INSERT trigger runs also for an insertion that becomes an update, and does not
//! know a generated key. An error undoes the whole statement, on InnoDB. `REPLACE` deletes and inserts, and fires both.
//!
//! An insertion looks for a tombstone by a locking read, which sees what was committed last, whatever the transaction's
//! snapshot is. Messages are cut at 128 characters, which is all that a signal carries, so the numbers come first.
//!
//! Run on MariaDB 10.11; MySQL 8 knows every word of it, and is not part of the tests.

use sea_query::{Alias, IntoIden, TableName};

use super::{BURIED_AT, Guard, Plan, Sql};
use crate::dialect::Flavor;

const FLAVOR: Flavor = Flavor::MySql;

const CREATE_TOMBSTONES: &str = "CREATE TABLE IF NOT EXISTS {tombstones} (PRIMARY KEY ({key})) ENGINE=InnoDB AS
SELECT {key}, {fence}, CURRENT_TIMESTAMP(6) AS {buried_at} FROM {table} WHERE FALSE";

/// Triggers cannot be replaced in words that both databases know, and each of these commits by itself. The lock keeps
/// every writer out from before the first is dropped until the last is there.
const LOCK: &str = "LOCK TABLES {table} WRITE, {tombstones} WRITE";
const LOCK_TABLE: &str = "LOCK TABLES {table} WRITE";
const UNLOCK: &str = "UNLOCK TABLES";
const DROP: &str = "DROP TRIGGER IF EXISTS {trigger}";
const CREATE: &str = "CREATE TRIGGER {trigger} {event} ON {table} FOR EACH ROW {body}";

/// The version is a label, for the `mysql` client takes comments out of what it sends.
const UPDATE: &str = "fence_guard_1: BEGIN
  DECLARE highest BIGINT DEFAULT ABS(OLD.{fence});
  DECLARE presented BIGINT DEFAULT ABS(NEW.{fence});
  DECLARE message VARCHAR(512) CHARACTER SET utf8mb4;
  IF {key_changes} THEN
    SET message = LEFT(CONCAT('fence: refused: UPDATE changes the key, and would leave the fence behind: ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF002' SET MESSAGE_TEXT = message;
  ELSEIF presented IS NULL OR presented > 9007199254740991 OR (presented = 0 AND (highest <> 0 OR NOT {may_rewrite})) THEN
    SET message = LEFT(CONCAT('fence: refused: presented ', COALESCE(presented, 'NULL'), ', which is no token; highest ', highest, ': UPDATE of ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF002' SET MESSAGE_TEXT = message;
  ELSEIF presented < highest THEN
    SET message = LEFT(CONCAT('fence: stale: presented ', presented, ', highest ', highest, ': stop, a newer holder has written: UPDATE of ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF001' SET MESSAGE_TEXT = message;
  ELSEIF presented = highest AND NOT {may_rewrite} AND (NEW.{fence} > 0 OR OLD.{fence} < 0) THEN
    SET message = LEFT(CONCAT('fence: refused: set ', {fence_text}, ' to your token, above ', highest, ' (strict): UPDATE of ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF002' SET MESSAGE_TEXT = message;
  END IF;
END fence_guard_1";

const INSERT: &str = "fence_guard_1: BEGIN
  DECLARE highest BIGINT;
  DECLARE message VARCHAR(512) CHARACTER SET utf8mb4;
  IF NEW.{fence} IS NULL OR NEW.{fence} < 0 OR NEW.{fence} > 9007199254740991 THEN
    SET message = LEFT(CONCAT('fence: refused: presented ', COALESCE(NEW.{fence}, 'NULL'), ', which is no token: INSERT into ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF002' SET MESSAGE_TEXT = message;
  END IF;
  SELECT MAX(t.{fence}) INTO highest FROM {tombstones} AS t WHERE {buried} LOCK IN SHARE MODE;
  IF NEW.{fence} < highest AND NEW.{fence} > 0 THEN
    SET message = LEFT(CONCAT('fence: stale: presented ', NEW.{fence}, ', highest ', highest, ': stop, a newer holder has deleted the row: INSERT into ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF001' SET MESSAGE_TEXT = message;
  ELSEIF NEW.{fence} < highest OR (NEW.{fence} = highest AND NOT {may_rewrite}) THEN
    SET message = LEFT(CONCAT('fence: refused: the row was deleted: set ', {fence_text}, ' to your token, above ', highest, ': INSERT into ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF002' SET MESSAGE_TEXT = message;
  END IF;
END fence_guard_1";

const DELETE: &str = "fence_guard_1: BEGIN
  DECLARE message VARCHAR(512) CHARACTER SET utf8mb4;
  IF OLD.{fence} < 0 THEN
    INSERT INTO {tombstones} ({key}, {fence}, {buried_at}) VALUES ({old_key}, -OLD.{fence}, CURRENT_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE {fence} = GREATEST({tombstones}.{fence}, VALUES({fence})), {buried_at} = VALUES({buried_at});
  ELSE
    SET message = LEFT(CONCAT('fence: refused: DELETE presents no token, highest ', OLD.{fence}, ': first set ', {fence_text}, ' to minus your token: ', {table_text}), 128);
    SIGNAL SQLSTATE 'RF002' SET MESSAGE_TEXT = message;
  END IF;
END fence_guard_1";

const EVENTS: [(&str, &str, &str); 3] = [
    ("_fence_insert", "AFTER INSERT", INSERT),
    ("_fence_update", "AFTER UPDATE", UPDATE),
    ("_fence_delete", "AFTER DELETE", DELETE),
];

/// The triggers on a table, named, with what they do.
pub(super) const FIND: &str = "SELECT CAST(trigger_name AS CHAR), CONCAT(action_timing, ' ', event_manipulation, ' ', action_statement) \
     FROM information_schema.triggers \
     WHERE event_object_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND event_object_table = ?";

/// The unique keys of whole columns that are NOT NULL, a row for each column, in order.
pub(super) const UNIQUE_KEYS: &str = "SELECT CAST(index_name AS CHAR), IF(index_name = 'PRIMARY', 't', 'f'), CAST(column_name AS CHAR) FROM ( \
     SELECT index_name, column_name, seq_in_index, \
     SUM(sub_part IS NOT NULL OR nullable = 'YES' OR column_name IS NULL) OVER (PARTITION BY index_name) AS unfit \
     FROM information_schema.statistics \
     WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? AND non_unique = 0) AS k \
     WHERE unfit = 0 ORDER BY index_name, seq_in_index";

/// The foreign keys of a table that change or delete its rows, which fires no trigger.
pub(super) const CASCADES: &str = "SELECT CAST(constraint_name AS CHAR) FROM information_schema.referential_constraints \
     WHERE constraint_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? \
     AND (delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL')) ORDER BY constraint_name";

pub(super) fn plan(guard: &Guard) -> Plan {
    let beside = |suffix: &str| TableName(guard.table.0.clone(), Alias::new(guard.derived(suffix)).into_iden());
    let each = |template, between| Sql::each(FLAVOR, &guard.key, template, between);
    let fence = guard.fence.to_string();
    let pieces = [
        ("table", Sql::table(FLAVOR, &guard.table)),
        ("table_text", Sql::literal(FLAVOR, &guard.table.1.to_string())),
        ("tombstones", Sql::table(FLAVOR, &guard.tombstones())),
        ("buried_at", Sql::name(FLAVOR, BURIED_AT)),
        ("fence", Sql::name(FLAVOR, &fence)),
        ("fence_text", Sql::literal(FLAVOR, &fence)),
        ("key", each("{column}", ", ")),
        ("old_key", each("OLD.{column}", ", ")),
        ("key_changes", each("NOT (NEW.{column} <=> OLD.{column})", " OR ")),
        ("buried", each("t.{column} = NEW.{column}", " AND ")),
        ("may_rewrite", Sql::fixed(if guard.is_strict() { "FALSE" } else { "TRUE" })),
    ];
    let pieces: Vec<(&str, &Sql)> = pieces.iter().map(|(name, piece)| (*name, piece)).collect();
    let text = |template: &str| Sql::fill(template, &pieces).into_string();

    let mut plan = Plan {
        prepare: vec![text(CREATE_TOMBSTONES)],
        install: vec![text(LOCK)],
        finish: vec![UNLOCK.to_owned()],
        remove: vec![text(LOCK_TABLE)],
        shown: Vec::new(),
        absent: Vec::new(),
        tombstones: guard.tombstones(),
    };
    for (suffix, event, body) in EVENTS {
        let body = Sql::fill(body, &pieces);
        let own = [
            ("table", Sql::table(FLAVOR, &guard.table)),
            ("trigger", Sql::table(FLAVOR, &beside(suffix))),
            ("event", Sql::fixed(event)),
            ("body", body.clone()),
        ];
        let own: Vec<(&str, &Sql)> = own.iter().map(|(name, piece)| (*name, piece)).collect();
        let drop = Sql::fill(DROP, &own).into_string();
        plan.install.extend([drop.clone(), Sql::fill(CREATE, &own).into_string()]);
        plan.remove.push(drop);
        plan.shown.push((guard.derived(suffix), [event, " ", &body.into_string()].concat()));
    }
    plan.remove.push(UNLOCK.to_owned());
    plan
}
