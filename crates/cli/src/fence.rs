//! `redlock fence sql`: the statements with which a database refuses late writers, as fence-store has them.

use crate::exit::{Exit, Failure};
use crate::options::{DialectName, FenceSqlOptions, Part};
use crate::output::Output;
use fence_store::{Flavor, Guard, LedgerTable, fence_column_sql};
use sea_query::{Alias, IntoIden as _, TableName};
use serde::Serialize;

#[derive(Serialize)]
struct Sql<'a> {
    sql: &'a str,
}

/// Prints the statements.
///
/// # Errors
/// [`Exit::Usage`] if a name cannot be used.
pub fn sql(options: &FenceSqlOptions, output: &Output) -> Result<u8, Failure> {
    let text = text(options)?;
    output.result(&Sql { sql: &text }, || text.clone())?;
    Ok(0)
}

fn text(options: &FenceSqlOptions) -> Result<String, Failure> {
    let flavor = match options.dialect {
        DialectName::Postgres => Flavor::Postgres,
        DialectName::Mysql => Flavor::MySql,
        DialectName::Sqlite => Flavor::Sqlite,
    };
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    let mut statements = Vec::new();
    if wanted(Part::Ledger) && !options.remove {
        let ledger = LedgerTable::new(&options.ledger).map_err(usage)?;
        statements.push(format!("{};", ledger.sql(flavor)));
    }
    let Some(table) = &options.table else {
        return if options.only == [Part::Ledger] {
            Ok(statements.concat())
        } else {
            Err(usage("which table? give --table, or --only ledger for the ledger alone"))
        };
    };
    if wanted(Part::Column) && !options.remove {
        statements.push(format!("{};", fence_column_sql(flavor, table_name(table), Alias::new(&options.column))));
    }
    if wanted(Part::Guard) || options.remove {
        let Some((first, others)) = options.key.split_first() else {
            return Err(usage("which columns are the table's key? give --key, or --only column for the column alone"));
        };
        let mut guard = Guard::new(table_name(table), Alias::new(first)).fence_column(Alias::new(&options.column));
        for column in others {
            guard = guard.and(Alias::new(column));
        }
        for unique in &options.unique {
            guard = guard.unique(unique.split(',').map(|column| Alias::new(column.trim())));
        }
        if options.may_rewrite {
            guard = guard.may_rewrite();
        }
        let script = if options.remove { guard.remove_script(flavor) } else { guard.script(flavor) };
        statements.push(script.map_err(usage)?);
    }
    Ok(statements.join("\n\n"))
}

/// `table`, or `schema.table`.
pub(crate) fn table_name(name: &str) -> TableName {
    match name.split_once('.') {
        Some((schema, table)) => (Alias::new(schema), Alias::new(table)).into(),
        None => Alias::new(name).into_iden().into(),
    }
}

fn usage(problem: impl ToString) -> Failure {
    Failure::new(Exit::Usage, problem.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dialect: DialectName) -> FenceSqlOptions {
        FenceSqlOptions {
            dialect,
            table: Some("shop.orders".into()),
            key: vec!["id".into()],
            column: "fence_token".into(),
            ledger: "fence_ledger".into(),
            unique: Vec::new(),
            may_rewrite: false,
            only: Vec::new(),
            remove: false,
        }
    }

    #[test]
    fn ledger_column_and_guard_are_those_of_the_library() {
        let text = text(&options(DialectName::Postgres)).unwrap();
        let guard = Guard::new(("shop", "orders"), "id").script(Flavor::Postgres).unwrap();
        let column = fence_column_sql(Flavor::Postgres, ("shop", "orders"), "fence_token");
        assert_eq!(text, format!("{};\n\n{column};\n\n{guard}", LedgerTable::default().sql(Flavor::Postgres)));
    }

    #[test]
    fn parts_can_be_had_alone() {
        let mut wanted = options(DialectName::Sqlite);
        wanted.only = vec![Part::Ledger];
        wanted.table = None;
        assert!(text(&wanted).unwrap().starts_with("CREATE TABLE IF NOT EXISTS \"fence_ledger\""));
        wanted.only = vec![Part::Guard];
        assert_eq!(text(&wanted).unwrap_err().exit, Exit::Usage);
        let mut removed = options(DialectName::Mysql);
        removed.remove = true;
        let text = text(&removed).unwrap();
        assert!(text.contains("DROP TRIGGER") && !text.contains("CREATE"), "{text}");
    }
}
