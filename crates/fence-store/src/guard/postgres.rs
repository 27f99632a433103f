//! The guard on Postgres: one trigger function per event, next to the table.
//!
//! All triggers run AFTER the event: what they see is what is stored, whatever other triggers made of it, and an error
//! undoes the statement all the same. Under READ COMMITTED each query in a function sees what was committed before it
//! began, so a tombstone that an insertion has waited for is seen. Above that level the snapshot is older than the wait, so
//! there the tombstone is looked for by writing: Postgres answers 40001 where a row exists that the snapshot does not show.
//!
//! The functions that touch the tombstones run as their owner, so that no other role needs rights on them, and every
//! function has a search path of its own, in which nobody else can put anything.

use sea_query::{Alias, IntoIden, TableName};

use super::{BURIED_AT, Guard, Plan, Sql};
use crate::dialect::Flavor;

const FLAVOR: Flavor = Flavor::Postgres;

/// Installers queue up on the number that the ledger's installers use, and the table is locked before anything else is.
/// `SHARE ROW EXCLUSIVE` waits for the writers that are under way and keeps new ones waiting until the commit, so that
/// none slips through between the old triggers and the new. It is also all that replacing a trigger takes (Postgres 14):
/// dropping one would need a stronger lock, and to ask for that later is a dead-lock with whoever has read and will write.
const LOCK: &str = "SELECT pg_advisory_xact_lock(5207287213456011)";
const LOCK_TABLE: &str = "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE";

/// The key must be one that decides at once which of two rows is the first, and be compared as the functions compare.
const CHECK_KEY: &str = "DO {body}";
const CHECK_KEY_BODY: &str = "
BEGIN
  IF NOT EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE i.indrelid = {table_text}::pg_catalog.regclass
      AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attname::text COLLATE \"C\")
           FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
        = (SELECT pg_catalog.array_agg(k ORDER BY k COLLATE \"C\") FROM pg_catalog.unnest(ARRAY[{key_texts}]::text[]) AS k)
      AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_opclass o
        WHERE o.oid = ANY (i.indclass) AND o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace)
  ) THEN
    RAISE EXCEPTION USING ERRCODE = 'RF002',
      MESSAGE = 'fence: refused: ' || {table_text} || ' has no unique key on exactly these columns: ' || {key_text},
      HINT = 'Name the columns of the primary key, or of a unique index that is neither partial nor deferrable, of built-in types.';
  END IF;
END ";

const CREATE_TOMBSTONES: &str = "CREATE TABLE IF NOT EXISTS {tombstones} AS
SELECT {key}, {fence}, CURRENT_TIMESTAMP AS {buried_at} FROM {table} WITH NO DATA";
const CREATE_INDEX: &str = "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {tombstones} ({key})";

const CREATE_FUNCTION: &str = "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql {rights}SET search_path = pg_catalog, pg_temp AS {body}";
const DEFINER: &str = "SECURITY DEFINER ";
const CREATE_TRIGGER: &str =
    "CREATE OR REPLACE TRIGGER {trigger} {event} ON {table} {level} EXECUTE FUNCTION {function}()";
const LOCK_TABLE_WHOLLY: &str = "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE";
const DROP_TRIGGER: &str = "DROP TRIGGER IF EXISTS {trigger} ON {table}";
const DROP_FUNCTION: &str = "DROP FUNCTION IF EXISTS {function}()";

const UPDATE: &str = "
-- fence guard 1
DECLARE
  highest bigint := abs(OLD.{fence});
  presented bigint := abs(NEW.{fence});
BEGIN
  IF {key_changes} THEN
    RAISE EXCEPTION USING ERRCODE = 'RF002',
      MESSAGE = format('fence: refused: UPDATE of %s.%s changes the key, and would leave the fence behind', TG_TABLE_SCHEMA, TG_TABLE_NAME),
      HINT = 'Delete the row and insert the other one, each under your token.';
  ELSIF presented IS NULL OR presented > 9007199254740991 OR (presented = 0 AND NOT ({may_rewrite} AND highest = 0)) THEN
    RAISE EXCEPTION USING ERRCODE = 'RF002',
      MESSAGE = format('fence: refused: UPDATE of %s.%s presents %s, which is no token; highest %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, coalesce(presented::text, 'NULL'), highest),
      HINT = format('SET %I to the fencing token of your lock, with WHERE %I < the token.', {fence_text}, {fence_text});
  ELSIF presented < highest THEN
    RAISE EXCEPTION USING ERRCODE = 'RF001',
      MESSAGE = format('fence: stale: presented %s, highest %s: UPDATE of %s.%s refused', presented, highest, TG_TABLE_SCHEMA, TG_TABLE_NAME),
      HINT = 'A newer holder of the lock has written this row. Stop: what you have read is out of date.';
  ELSIF presented = highest AND NOT {may_rewrite} AND NOT (NEW.{fence} < 0 AND OLD.{fence} > 0) THEN
    RAISE EXCEPTION USING ERRCODE = 'RF002',
      MESSAGE = format('fence: refused: UPDATE of %s.%s does not raise the fence; highest %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, highest),
      HINT = format('SET %I to the fencing token of your lock; this guard is strict, and takes a token once for each row.', {fence_text});
  END IF;
  RETURN NULL;
END ";

const INSERT: &str = "
-- fence guard 1
DECLARE
  highest bigint;
BEGIN
  IF NEW.{fence} IS NULL OR NEW.{fence} NOT BETWEEN 0 AND 9007199254740991 THEN
    RAISE EXCEPTION USING ERRCODE = 'RF002',
      MESSAGE = format('fence: refused: INSERT into %s.%s presents %s, which is no token', TG_TABLE_SCHEMA, TG_TABLE_NAME, coalesce(NEW.{fence}::text, 'NULL')),
      HINT = format('SET %I to the fencing token of your lock.', {fence_text});
  END IF;
  IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
    SELECT t.{fence} INTO highest FROM {tombstones} AS t WHERE {buried};
  ELSE
    INSERT INTO {tombstones} ({key}, {fence}, {buried_at}) VALUES ({new_key}, 0, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      DELETE FROM {tombstones} AS t WHERE {buried};
    ELSE
      SELECT t.{fence} INTO highest FROM {tombstones} AS t WHERE {buried} FOR SHARE;
    END IF;
  END IF;
  IF NEW.{fence} < highest AND NEW.{fence} > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'RF001',
      MESSAGE = format('fence: stale: presented %s, highest %s: INSERT into %s.%s refused, the row was deleted', NEW.{fence}, highest, TG_TABLE_SCHEMA, TG_TABLE_NAME),
      HINT = 'A newer holder of the lock has deleted this row. Stop: what you have read is out of date.';
  ELSIF NEW.{fence} < highest OR (NEW.{fence} = highest AND NOT {may_rewrite}) THEN
    RAISE EXCEPTION USING ERRCODE = 'RF002',
      MESSAGE = format('fence: refused: INSERT into %s.%s presents %s; the row was deleted, highest %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, NEW.{fence}, highest),
      HINT = format('Only a token above the one under which a row was deleted brings it back: SET %I.', {fence_text});
  END IF;
  RETURN NULL;
END ";

const DELETE: &str = "
-- fence guard 1
BEGIN
  IF OLD.{fence} < 0 THEN
    INSERT INTO {tombstones} AS t ({key}, {fence}, {buried_at}) VALUES ({old_key}, -OLD.{fence}, CURRENT_TIMESTAMP)
    ON CONFLICT ({key}) DO UPDATE SET {fence} = greatest(t.{fence}, excluded.{fence}), {buried_at} = excluded.{buried_at};
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'RF002',
    MESSAGE = format('fence: refused: DELETE from %s.%s presents no token, and would leave no tombstone; highest %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, OLD.{fence}),
    HINT = format('In one transaction: UPDATE ... SET %1$I = -token WHERE ... AND %1$I <= token; then DELETE ... WHERE %1$I = -token.', {fence_text});
END ";

const TRUNCATE: &str = "
-- fence guard 1
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'RF002',
    MESSAGE = format('fence: refused: TRUNCATE of %s.%s would leave no tombstones', TG_TABLE_SCHEMA, TG_TABLE_NAME),
    HINT = 'Delete the rows under your token, or remove the guard first.';
END ";

struct Event {
    suffix: &'static str,
    event: &'static str,
    level: &'static str,
    /// `tgtype` in the catalog: 1 for each row, 2 before; 4, 8, 16, 32 insert, delete, update, truncate.
    kind: u8,
    definer: bool,
    body: &'static str,
}

const EACH_ROW: &str = "FOR EACH ROW";

const EVENTS: [Event; 4] = [
    Event { suffix: "_fence_insert", event: "AFTER INSERT", level: EACH_ROW, kind: 1 | 4, definer: true, body: INSERT },
    Event {
        suffix: "_fence_update",
        event: "AFTER UPDATE",
        level: EACH_ROW,
        kind: 1 | 16,
        definer: false,
        body: UPDATE,
    },
    Event { suffix: "_fence_delete", event: "AFTER DELETE", level: EACH_ROW, kind: 1 | 8, definer: true, body: DELETE },
    Event {
        suffix: "_fence_truncate",
        event: "BEFORE TRUNCATE",
        level: "FOR EACH STATEMENT",
        kind: 2 | 32,
        definer: false,
        body: TRUNCATE,
    },
];

/// The guard's triggers on a table, named, with what decides about each; see [`shown`].
pub(super) const FIND: &str = "SELECT t.tgname::text, \
     concat(t.tgenabled, ' ', t.tgtype, ' ', t.tgqual IS NULL AND t.tgattr::text = '', ' ', p.prosecdef, ' ', \
     array_to_string(p.proconfig, ';'), p.prosrc) \
     FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid \
     WHERE t.tgrelid = to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2)) \
     AND NOT t.tgisinternal";

/// The schema in which the search path finds a table.
pub(super) const SCHEMA: &str = "SELECT n.nspname::text FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = \
     to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2))";

/// The unique keys that [`CHECK_KEY_BODY`] accepts, a row for each column, in order.
pub(super) const UNIQUE_KEYS: &str = "SELECT i.indexrelid::text, CASE WHEN i.indisprimary THEN 't' ELSE 'f' END, a.attname::text \
     FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a \
     ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) \
     WHERE i.indrelid = to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2)) \
     AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
     AND NOT EXISTS (SELECT FROM pg_catalog.pg_opclass o \
     WHERE o.oid = ANY (i.indclass) AND o.opcnamespace <> 'pg_catalog'::regnamespace) \
     ORDER BY i.indexrelid, array_position(i.indkey::smallint[], a.attnum)";

/// As [`FIND`] writes it.
fn shown(event: &Event, body: &str) -> String {
    let (kind, definer) = (event.kind, if event.definer { "t" } else { "f" });
    format!("O {kind} t {definer} search_path=pg_catalog, pg_temp{body}")
}

pub(super) fn plan(guard: &Guard) -> Plan {
    let guard = &if guard.has_schema() { guard.clone() } else { guard.clone().in_schema("public") };
    let beside = |suffix: &str| TableName(guard.table.0.clone(), Alias::new(guard.derived(suffix)).into_iden());
    let each = |template, between| Sql::each(FLAVOR, &guard.key, template, between);
    let literal = |text: &str| Sql::literal(FLAVOR, text);

    let fence = guard.fence.to_string();
    let table = Sql::table(FLAVOR, &guard.table);
    let key_texts: Vec<Sql> = guard.key.iter().map(|column| literal(&column.to_string())).collect();
    let key_text = guard.key.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let tombstones = beside("_fence_tombstones");
    let pieces = [
        ("table_text", literal(&table.clone().into_string())),
        ("table", table),
        ("tombstones", Sql::table(FLAVOR, &tombstones)),
        ("index", Sql::name(FLAVOR, &guard.derived("_fence_tombstones_key"))),
        ("buried_at", Sql::name(FLAVOR, BURIED_AT)),
        ("fence", Sql::name(FLAVOR, &fence)),
        ("fence_text", literal(&fence)),
        ("key", each("{column}", ", ")),
        ("key_text", literal(&key_text)),
        ("key_texts", Sql::joined(&key_texts, ", ")),
        ("new_key", each("NEW.{column}", ", ")),
        ("old_key", each("OLD.{column}", ", ")),
        ("key_changes", each("NEW.{column} IS DISTINCT FROM OLD.{column}", " OR ")),
        ("buried", each("t.{column} = NEW.{column}", " AND ")),
        ("may_rewrite", Sql::fixed(if guard.is_strict() { "false" } else { "true" })),
    ];
    let pieces: Vec<(&str, &Sql)> = pieces.iter().map(|(name, piece)| (*name, piece)).collect();
    let fill = |template: &str| Sql::fill(template, &pieces);

    let check = Sql::fill(CHECK_KEY, &[("body", &fill(CHECK_KEY_BODY).dollar_quoted())]);
    let prepare = [Sql::fixed(LOCK), fill(LOCK_TABLE), check, fill(CREATE_TOMBSTONES), fill(CREATE_INDEX)];
    let mut plan = Plan {
        prepare: prepare.into_iter().map(Sql::into_string).collect(),
        install: Vec::new(),
        finish: Vec::new(),
        remove: [Sql::fixed(LOCK), fill(LOCK_TABLE_WHOLLY)].into_iter().map(Sql::into_string).collect(),
        shown: Vec::new(),
        absent: Vec::new(),
        tombstones,
    };
    for event in &EVENTS {
        let body = fill(event.body);
        let name = guard.derived(event.suffix);
        let pieces = [
            ("table", fill("{table}")),
            ("trigger", Sql::name(FLAVOR, &name)),
            ("function", Sql::table(FLAVOR, &beside(event.suffix))),
            ("event", Sql::fixed(event.event)),
            ("level", Sql::fixed(event.level)),
            ("rights", Sql::fixed(if event.definer { DEFINER } else { "" })),
            ("body", body.dollar_quoted()),
        ];
        let pieces: Vec<(&str, &Sql)> = pieces.iter().map(|(name, piece)| (*name, piece)).collect();
        let fill = |template: &str| Sql::fill(template, &pieces).into_string();
        plan.install.extend([CREATE_FUNCTION, CREATE_TRIGGER].map(fill));
        plan.remove.extend([DROP_TRIGGER, DROP_FUNCTION].map(fill));
        plan.shown.push((name, shown(event, &body.into_string())));
    }
    plan
}
