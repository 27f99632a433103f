//! Fills templates with SQL that is safe by its type: a [`Sql`] is made by quoting, or from text of this crate.

use sea_query::{DynIden, TableName};

use crate::dialect::Flavor;

/// A piece of SQL: an identifier or a literal that was quoted, or something made of those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sql(String);

impl Sql {
    /// Text of this crate, as it is.
    pub(crate) fn fixed(text: &'static str) -> Self {
        Self(text.to_owned())
    }

    /// A name, quoted, so that nothing in it is read as SQL.
    pub(crate) fn name(flavor: Flavor, name: &str) -> Self {
        let quote = if flavor == Flavor::MySql { "`" } else { "\"" };
        Self([quote, &name.replace(quote, &quote.repeat(2)), quote].concat())
    }

    /// A table's name, with its schema if it has one.
    pub(crate) fn table(flavor: Flavor, table: &TableName) -> Self {
        let name = Self::name(flavor, &table.1.to_string());
        match &table.0 {
            Some(schema) => Self([Self::name(flavor, &schema.1.to_string()).0, name.0].join(".")),
            None => name,
        }
    }

    /// A text as a literal, whatever the session says of backslashes.
    pub(crate) fn literal(flavor: Flavor, text: &str) -> Self {
        let doubled = text.replace('\'', "''");
        Self(match flavor {
            Flavor::Postgres if text.contains('\\') => ["E'", &doubled.replace('\\', "\\\\"), "'"].concat(),
            // Whether a backslash means something depends on a mode of the session; hexadecimal digits mean themselves.
            Flavor::MySql if text.contains('\\') => {
                let digits: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
                ["CONVERT(X'", &digits, "' USING utf8mb4)"].concat()
            }
            _ => ["'", &doubled, "'"].concat(),
        })
    }

    /// A template filled with pieces. One pass: a brace that a piece brings along stays a brace.
    ///
    /// # Panics
    /// If the template has a hole that is not among the pieces, which a test of each template would show.
    pub(crate) fn fill(template: &str, pieces: &[(&str, &Self)]) -> Self {
        let mut filled = String::with_capacity(template.len());
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (hole, after) = after.split_once('}').expect("a hole is closed");
            let (_, piece) = pieces.iter().find(|(name, _)| *name == hole).unwrap_or_else(|| panic!("no {hole}"));
            filled.push_str(before);
            filled.push_str(&piece.0);
            rest = after;
        }
        filled.push_str(rest);
        Self(filled)
    }

    /// A template filled once for each column, the results joined.
    pub(crate) fn each(flavor: Flavor, columns: &[DynIden], template: &str, between: &str) -> Self {
        let filled: Vec<String> = columns
            .iter()
            .map(|column| Self::fill(template, &[("column", &Self::name(flavor, &column.to_string()))]).0)
            .collect();
        Self(filled.join(between))
    }

    /// A text that Postgres reads as it is, between two marks that do not occur in it.
    pub(crate) fn dollar_quoted(&self) -> Self {
        let mark = (0_u32..)
            .map(|number| if number == 0 { "$fence$".to_owned() } else { format!("$fence_{number}$") })
            .find(|mark| !self.0.contains(mark.as_str()))
            .expect("a text holds finitely many marks");
        Self([mark.as_str(), &self.0, &mark].concat())
    }

    pub(crate) fn joined(parts: &[Self], between: &'static str) -> Self {
        Self(parts.iter().map(|part| part.0.as_str()).collect::<Vec<_>>().join(between))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use sea_query::{Alias, IntoIden};

    use super::*;

    const ALL: [Flavor; 3] = [Flavor::Postgres, Flavor::MySql, Flavor::Sqlite];

    #[test]
    fn names_and_literals_are_quoted() {
        for flavor in [Flavor::Postgres, Flavor::Sqlite] {
            assert_eq!(Sql::name(flavor, r#"a"b`"#).0, r#""a""b`""#);
        }
        assert_eq!(Sql::name(Flavor::MySql, r#"a"b`"#).0, r#"`a"b```"#);
        for flavor in ALL {
            assert_eq!(Sql::literal(flavor, "it's {x}").0, "'it''s {x}'");
        }
        assert_eq!(Sql::literal(Flavor::Postgres, r"a\'").0, r"E'a\\'''");
        assert_eq!(Sql::literal(Flavor::MySql, r"a\'").0, "CONVERT(X'615C27' USING utf8mb4)");
        assert_eq!(Sql::literal(Flavor::Sqlite, r"a\'").0, r"'a\'''");
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let (a, b) = (Sql::name(Flavor::Sqlite, "{b}"), Sql::name(Flavor::Sqlite, "b"));
        assert_eq!(Sql::fill("{a}, {b};", &[("a", &a), ("b", &b)]).0, r#""{b}", "b";"#);
        let columns = [Alias::new("{column}").into_iden(), Alias::new("b").into_iden()];
        assert_eq!(Sql::each(Flavor::MySql, &columns, "x.{column}", " AND ").0, "x.`{column}` AND x.`b`");
    }

    #[test]
    fn a_name_cannot_end_a_dollar_quote() {
        let body = Sql::name(Flavor::Postgres, "a$fence$ b$fence_1$").dollar_quoted();
        assert_eq!(body.0, r#"$fence_2$"a$fence$ b$fence_1$"$fence_2$"#);
    }
}
