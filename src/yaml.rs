//! Reading YAML so that an error says where in the text it is.

use serde_yaml::{Error, MessageFormatter, UserMessageFormatter};

/// What is wrong in a YAML text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Counted from 1; 0 when the parser could not tell.
    pub line: u64,
    /// Counted from 1; 0 when the parser could not tell.
    pub column: u64,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// Reads a YAML (or JSON) document into `T`; the error says where it went wrong.
///
/// # Errors
/// When it is not YAML or not a `T`.
pub fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Located> {
    let options = serde_yaml::options! { with_snippet: false };
    serde_yaml::from_str_with_options(text, options).map_err(|error| {
        let (line, column) = error
            .location()
            .map_or((0, 0), |place| (place.line(), place.column()));
        Located {
            line,
            column,
            problem: problem(&error),
        }
    })
}

fn problem(error: &Error) -> String {
    match error.without_snippet() {
        // The parser's own words are those of its grammar.
        Error::Unexpected {
            expected: "mapping start",
            ..
        } => "keys with values are expected here".to_owned(),
        Error::Unexpected {
            expected: "sequence start",
            ..
        } => "a list is expected here".to_owned(),
        error => UserMessageFormatter.format_message(error).into_owned(),
    }
}
