//! Where do generated tables stand in a document that people write? Between two marks, and nothing else is touched.

use std::fmt::Write as _;

/// Why a document cannot take its tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// A place is missing.
    #[error(
        "the document has no place for {0:?}: give it a line `<!-- study: {0} -->` and, behind it, `<!-- end -->`"
    )]
    NoPlace(String),
    /// A place does not end.
    #[error("the place of {0:?} in the document has no `<!-- end -->`")]
    NoEnd(String),
}

const END: &str = "<!-- end -->";

/// The document with the tables in their places; each is a name and the text for it.
///
/// # Errors
/// When a table has no place in the document.
pub fn fill(document: &str, tables: &[(String, String)]) -> Result<String, DocumentError> {
    let mut document = document.to_owned();
    for (name, table) in tables {
        let mark = format!("<!-- study: {name} -->\n");
        let (before, rest) = document
            .split_once(&mark)
            .ok_or_else(|| DocumentError::NoPlace(name.clone()))?;
        let (_, after) = rest
            .split_once(END)
            .ok_or_else(|| DocumentError::NoEnd(name.clone()))?;
        let mut filled = String::with_capacity(document.len() + table.len());
        // Writing to a string cannot fail.
        write!(
            filled,
            "{before}{mark}\n{}\n\n{END}{after}",
            table.trim_end()
        )
        .ok();
        document = filled;
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn tables_replace_what_stood_in_their_places_and_nothing_else() {
        let document =
            "A\n<!-- study: one -->\nold\n<!-- end -->\nB\n<!-- study: two -->\n<!-- end -->\nC\n";
        let tables = [table("two", "| 2 |\n"), table("one", "| 1 |")];
        let filled = fill(document, &tables).unwrap();
        assert_eq!(
            filled,
            "A\n<!-- study: one -->\n\n| 1 |\n\n<!-- end -->\nB\n<!-- study: two -->\n\n| 2 |\n\n<!-- end -->\nC\n"
        );
        assert_eq!(
            fill(&filled, &tables),
            Ok(filled.clone()),
            "again changes nothing"
        );
    }

    #[test]
    fn a_table_without_a_place_is_refused() {
        assert_eq!(
            fill("", &[table("x", "")]),
            Err(DocumentError::NoPlace("x".to_owned()))
        );
        let open = fill("<!-- study: x -->\n", &[table("x", "")]);
        assert_eq!(open, Err(DocumentError::NoEnd("x".to_owned())));
    }
}
