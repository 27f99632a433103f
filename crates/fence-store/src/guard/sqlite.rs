//! The guard on SQLite: triggers on the table, in words that SQLite 3.38 knows.
//!
//! `INSERT OR REPLACE` deletes the row that is in the way and fires no DELETE trigger for it, unless `recursive_triggers` is
//! on. A trigger BEFORE INSERT still sees that row; but it runs also for insertions that then do nothing or become an
//! update. So it refuses nothing: it notes the row's fence as a tombstone, and the trigger AFTER INSERT, which runs only if
//! a row was inserted, finds it. A note that stays behind says of a live row what is true: no insertion under a token that
//! is not above its fence.
//!
//! Rows in the way by another unique key cannot be told from the inserted one afterwards, so where such a key is named
//! ([`Guard::unique`]), an insertion or update that meets one is refused beforehand.
//!
//! `RAISE` takes a fixed text only (until 3.47). The numbers are told by a function that refuses its argument and repeats
//! it, the path of `json_extract`; the `RAISE` behind it stays for the case that the function would let it pass, and makes
//! SQLite keep a statement journal, so that either error undoes the whole statement.

use super::{BURIED_AT, Guard, Plan, Sql};
use crate::dialect::Flavor;

const FLAVOR: Flavor = Flavor::Sqlite;

/// Takes the types' affinities along; the trigger that looks for a tombstone compares by the table's collations.
const CREATE_TOMBSTONES: &str = "CREATE TABLE IF NOT EXISTS {tombstones} AS
SELECT {key}, {fence}, CURRENT_TIMESTAMP AS {buried_at} FROM {table} WHERE 0";
const CREATE_INDEX: &str = "CREATE INDEX IF NOT EXISTS {index} ON {tombstones_alone} ({key})";
const DROP: &str = "DROP TRIGGER IF EXISTS {trigger}";
const CREATE: &str = "CREATE TRIGGER {trigger}{definition}";

/// Raises the tombstone, or makes one; without ON CONFLICT, which the policy of the outer statement would override.
macro_rules! bury {
    ($key:literal, $condition:literal, $fence:literal, $where:literal) => {
        concat!(
            "  UPDATE {tombstones_alone} SET {fence} = max({fence}, ",
            $fence,
            "), {buried_at} = CURRENT_TIMESTAMP\n",
            "    WHERE ",
            $condition,
            $where,
            ";\n",
            "  INSERT INTO {tombstones_alone} ({key}, {fence}, {buried_at}) SELECT ",
            $key,
            ", ",
            $fence,
            ", CURRENT_TIMESTAMP\n",
            "    WHERE NOT EXISTS (SELECT 1 FROM {tombstones_alone} WHERE ",
            $condition,
            ")",
            $where,
            ";\n",
        )
    };
}

const UPDATE: &str = " AFTER UPDATE ON {table_alone} BEGIN
  -- fence guard 1
  SELECT RAISE(ABORT, {update_changes_the_key}) WHERE {key_changes};
  SELECT json_extract('[]', {update_presents} || coalesce(NEW.{fence}, 'NULL') || ', which is no token; highest ' || abs(OLD.{fence})), RAISE(ABORT, {update_refused})
    WHERE typeof(NEW.{fence}) <> 'integer' OR NEW.{fence} NOT BETWEEN -9007199254740991 AND 9007199254740991
      OR (NEW.{fence} = 0 AND NOT ({may_rewrite} AND OLD.{fence} = 0));
  SELECT json_extract('[]', 'fence: stale: presented ' || abs(NEW.{fence}) || ', highest ' || abs(OLD.{fence}) || {update_is_stale}), RAISE(ABORT, {update_refused})
    WHERE abs(NEW.{fence}) < abs(OLD.{fence});
  SELECT json_extract('[]', {update_does_not_raise} || abs(OLD.{fence})), RAISE(ABORT, {update_refused})
    WHERE abs(NEW.{fence}) = abs(OLD.{fence}) AND NOT {may_rewrite} AND NOT (NEW.{fence} < 0 AND OLD.{fence} > 0);
END";

const NOTE: &str = concat!(
    " BEFORE INSERT ON {table_alone} BEGIN\n  -- fence guard 1\n",
    bury!(
        "{new_key}",
        "{buried}",
        "(SELECT abs(t.{fence}) FROM {table_alone} AS t WHERE {is_new})",
        " AND EXISTS (SELECT 1 FROM {table_alone} AS t WHERE {is_new} AND (abs(t.{fence}) < NEW.{fence}) IS NOT TRUE)"
    ),
    "END"
);

const INSERT: &str = " AFTER INSERT ON {table_alone} BEGIN
  -- fence guard 1
  SELECT json_extract('[]', {insert_presents} || coalesce(NEW.{fence}, 'NULL') || ', which is no token'), RAISE(ABORT, {insert_refused})
    WHERE typeof(NEW.{fence}) <> 'integer' OR NEW.{fence} NOT BETWEEN 0 AND 9007199254740991;
  SELECT json_extract('[]', 'fence: stale: presented ' || NEW.{fence} || ', highest ' || {fence} || {insert_is_stale}), RAISE(ABORT, {insert_refused})
    FROM {tombstones_alone} WHERE {buried} AND NEW.{fence} < {fence} AND NEW.{fence} > 0;
  SELECT json_extract('[]', {insert_does_not_raise} || {fence}), RAISE(ABORT, {insert_refused})
    FROM {tombstones_alone} WHERE {buried} AND (NEW.{fence} < {fence} OR (NEW.{fence} = {fence} AND NOT {may_rewrite}));
END";

const DELETE: &str = concat!(
    " AFTER DELETE ON {table_alone} BEGIN\n  -- fence guard 1\n",
    "  SELECT json_extract('[]', {delete_presents} || OLD.{fence}), RAISE(ABORT, {delete_refused}) WHERE (OLD.{fence} < 0) IS NOT TRUE;\n",
    bury!("{old_key}", "{was_buried}", "abs(OLD.{fence})", ""),
    "END"
);

/// For each further unique key, before an insertion and before an update.
const OTHER_UNIQUE: &str = "  SELECT RAISE(ABORT, {meets_another})
    WHERE EXISTS (SELECT 1 FROM {table_alone} AS t WHERE {is_equal} AND NOT ({is_same}));
";
const MEETING: &str = "{event} ON {table_alone} BEGIN
  -- fence guard 1
{checks}END";

/// The triggers on a table, named, with their text.
const FIND: &str = "SELECT name, sql FROM {master} WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE";

/// The unique keys of a table, a row for each column, in order: table and schema are bound twice. Of indexes those without
/// a condition and of columns only.
pub(super) const UNIQUE_KEYS: &str = "SELECT '', 't', name, pk FROM pragma_table_info(?, NULLIF(?, '')) WHERE 0 < pk UNION ALL \
     SELECT l.name, 'f', i.name, i.seqno FROM pragma_index_list(?, NULLIF(?, '')) AS l, pragma_index_info(l.name) AS i \
     WHERE l.\"unique\" AND l.origin <> 'pk' AND NOT l.partial \
     AND NOT EXISTS (SELECT 1 FROM pragma_index_info(l.name) AS e WHERE e.name IS NULL) ORDER BY 1, 4";

/// [`FIND`] in the table's schema, whose name cannot be bound.
pub(super) fn find(guard: &Guard) -> String {
    let schema = Sql::name(FLAVOR, guard.schema_name().as_deref().unwrap_or("main"));
    let master = Sql::fill("{schema}.sqlite_master", &[("schema", &schema)]);
    Sql::fill(FIND, &[("master", &master)]).into_string()
}

pub(super) fn plan(guard: &Guard) -> Plan {
    let schema = guard.schema_name().map(|schema| Sql::name(FLAVOR, &schema));
    let each = |template, between| Sql::each(FLAVOR, &guard.key, template, between);
    let table_name = guard.table.1.to_string();
    let fence = guard.fence.to_string();
    let message = |parts: &[&str]| Sql::literal(FLAVOR, &parts.concat());
    let refused = "fence: refused: ";
    let pieces = [
        ("table", Sql::table(FLAVOR, &guard.table)),
        ("table_alone", Sql::name(FLAVOR, &table_name)),
        ("tombstones", Sql::table(FLAVOR, &guard.tombstones())),
        ("tombstones_alone", Sql::name(FLAVOR, &guard.tombstones().1.to_string())),
        ("buried_at", Sql::name(FLAVOR, BURIED_AT)),
        ("fence", Sql::name(FLAVOR, &fence)),
        ("key", each("{column}", ", ")),
        ("new_key", each("NEW.{column}", ", ")),
        ("old_key", each("OLD.{column}", ", ")),
        ("is_new", each("t.{column} = NEW.{column}", " AND ")),
        ("key_changes", each("NEW.{column} IS NOT OLD.{column}", " OR ")),
        ("buried", each("NEW.{column} = {column}", " AND ")),
        ("was_buried", each("OLD.{column} = {column}", " AND ")),
        ("may_rewrite", Sql::fixed(if guard.is_strict() { "0" } else { "1" })),
        (
            "update_changes_the_key",
            message(&[
                refused,
                "UPDATE of ",
                &table_name,
                " changes the key, and would leave the fence behind: delete the row and insert the other one, each under your token",
            ]),
        ),
        ("update_presents", message(&[refused, "UPDATE of ", &table_name, ": presented "])),
        ("update_refused", message(&[refused, "UPDATE of ", &table_name])),
        ("update_is_stale", message(&[": UPDATE of ", &table_name, " refused: stop, a newer holder has written"])),
        (
            "update_does_not_raise",
            message(&[
                refused,
                "UPDATE of ",
                &table_name,
                " does not raise the fence: set ",
                &fence,
                " to your token; this guard is strict, and wants it above ",
            ]),
        ),
        ("insert_presents", message(&[refused, "INSERT into ", &table_name, ": presented "])),
        ("insert_refused", message(&[refused, "INSERT into ", &table_name])),
        (
            "insert_is_stale",
            message(&[": INSERT into ", &table_name, " refused: stop, a newer holder has written or deleted the row"]),
        ),
        (
            "insert_does_not_raise",
            message(&[
                refused,
                "INSERT into ",
                &table_name,
                ": the row was written or deleted: set ",
                &fence,
                " to your token, above ",
            ]),
        ),
        (
            "delete_presents",
            message(&[
                refused,
                "DELETE from ",
                &table_name,
                " presents no token, and would leave no tombstone: in one transaction, first set ",
                &fence,
                " to minus your token, then delete; highest ",
            ]),
        ),
        ("delete_refused", message(&[refused, "DELETE from ", &table_name])),
        (
            "meets_another",
            message(&[
                refused,
                "another row of ",
                &table_name,
                " holds this value of a unique key, and REPLACE would delete it without a tombstone",
            ]),
        ),
        ("index", {
            let name = Sql::name(FLAVOR, &guard.derived("_fence_tombstones_key"));
            match &schema {
                Some(schema) => Sql::fill("{schema}.{name}", &[("schema", schema), ("name", &name)]),
                None => name,
            }
        }),
    ];
    let pieces: Vec<(&str, &Sql)> = pieces.iter().map(|(name, piece)| (*name, piece)).collect();
    let fill = |template: &str| Sql::fill(template, &pieces);

    let mut plan = Plan {
        prepare: vec![fill(CREATE_TOMBSTONES).into_string(), fill(CREATE_INDEX).into_string()],
        install: Vec::new(),
        finish: Vec::new(),
        remove: Vec::new(),
        shown: Vec::new(),
        absent: Vec::new(),
        tombstones: guard.tombstones(),
    };
    let mut add = |suffix: &str, definition: Option<Sql>| {
        let name = guard.derived(suffix);
        let quoted = Sql::name(FLAVOR, &name);
        let trigger = match &schema {
            Some(schema) => Sql::fill("{schema}.{name}", &[("schema", schema), ("name", &quoted)]),
            None => quoted.clone(),
        };
        let drop = Sql::fill(DROP, &[("trigger", &trigger)]).into_string();
        plan.install.push(drop.clone());
        plan.remove.push(drop);
        let Some(definition) = definition else {
            plan.absent.push(name);
            return;
        };
        let create = |trigger| Sql::fill(CREATE, &[("trigger", trigger), ("definition", &definition)]).into_string();
        plan.install.push(create(&trigger));
        // The catalog keeps the text without the schema.
        plan.shown.push((name, create(&quoted)));
    };
    add("_fence_note", Some(fill(NOTE)));
    add("_fence_insert", Some(fill(INSERT)));
    add("_fence_update", Some(fill(UPDATE)));
    add("_fence_delete", Some(fill(DELETE)));
    for (suffix, event, own) in [
        ("_fence_meet_insert", " BEFORE INSERT", "t.{column} IS NEW.{column}"),
        ("_fence_meet_update", " BEFORE UPDATE", "t.{column} IS OLD.{column}"),
    ] {
        let checks: Vec<Sql> = guard
            .unique
            .iter()
            .filter(|columns| !columns.is_empty())
            .map(|columns| {
                let is_equal = Sql::each(FLAVOR, columns, "t.{column} = NEW.{column}", " AND ");
                let is_same = each(own, " AND ");
                let mut pieces = pieces.clone();
                pieces.extend([("is_equal", &is_equal), ("is_same", &is_same)]);
                Sql::fill(OTHER_UNIQUE, &pieces)
            })
            .collect();
        let checks = Sql::joined(&checks, "");
        let (event, table) = (Sql::fixed(event), fill("{table_alone}"));
        let definition = Sql::fill(MEETING, &[("event", &event), ("table_alone", &table), ("checks", &checks)]);
        add(suffix, (!checks.is_empty()).then_some(definition));
    }
    plan
}
