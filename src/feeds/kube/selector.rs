//! What is a label selector? The grammar of the API server, so that a mistake is told at start and not once a second.

use std::collections::BTreeMap;
use std::fmt;

/// A valid label selector that selects by at least one label, in the form that the API server takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector(String);

/// Why a text is no label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// It would select every Pod.
    #[error("an empty selector would select every Pod of the namespace")]
    Empty,
    /// A key is none.
    #[error(
        "`{0}` is no label key: [prefix/]name, where name is 1 to 63 letters, digits, `-`, `_` or `.`"
    )]
    Key(String),
    /// A value is none.
    #[error("`{0}` is no label value: at most 63 letters, digits, `-`, `_` or `.`")]
    Value(String),
    /// Something else stands where an operator should.
    #[error(
        "after the key `{key}` there is `{found}`: expected `=`, `==`, `!=`, `<`, `>`, `in (…)` or `notin (…)`"
    )]
    Operator {
        /// The key before it.
        key: String,
        /// What stands there.
        found: String,
    },
    /// `in` and `notin` need a list in parentheses.
    #[error("`{key} {operator}` needs values in parentheses, as in `{key} {operator} (a, b)`")]
    Set {
        /// The key before it.
        key: String,
        /// `in` or `notin`.
        operator: &'static str,
    },
    /// `<` and `>` compare whole numbers.
    #[error("`{0}` is no whole number to compare with")]
    Number(String),
}

impl LabelSelector {
    /// Reads a selector as `kubectl -l` takes it: `app=vllm`, `tier in (a, b)`, `!draft`, parts joined by commas.
    ///
    /// # Errors
    /// When it is none, or empty.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.trim().is_empty() {
            return Err(SelectorError::Empty);
        }
        let parts = split(text)
            .map(requirement)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self(parts.join(",")))
    }

    /// The selector that wants each of `labels`.
    ///
    /// # Errors
    /// When one is no label, or there is none.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Result<Self, SelectorError> {
        if labels.is_empty() {
            return Err(SelectorError::Empty);
        }
        let parts = labels
            .iter()
            .map(|(name, text)| Ok(format!("{}={}", key(name)?, value(text)?)));
        Ok(Self(parts.collect::<Result<Vec<_>, _>>()?.join(",")))
    }

    /// In the API server's words.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The parts between the commas that are not inside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
    .map(str::trim)
}

fn requirement(part: &str) -> Result<String, SelectorError> {
    if let Some(absent) = part.strip_prefix('!') {
        return Ok(format!("!{}", key(absent.trim_start())?));
    }
    let end = part.find(|c: char| c.is_whitespace() || "=!<>(".contains(c));
    let (name, rest) = part.split_at(end.unwrap_or(part.len()));
    let (name, rest) = (key(name)?, rest.trim_start());
    if rest.is_empty() {
        return Ok(name.to_owned());
    }
    for operator in ["==", "=", "!="] {
        if let Some(text) = rest.strip_prefix(operator) {
            let operator = if operator == "!=" { "!=" } else { "=" };
            return Ok(format!("{name}{operator}{}", value(text.trim())?));
        }
    }
    for operator in ['<', '>'] {
        if let Some(text) = rest.strip_prefix(operator) {
            let number = text.trim();
            let is_number = number.parse::<i64>().is_ok();
            return match is_number {
                true => Ok(format!("{name}{operator}{number}")),
                false => Err(SelectorError::Number(number.to_owned())),
            };
        }
    }
    for operator in ["notin", "in"] {
        if let Some(set) = rest.strip_prefix(operator) {
            return Ok(format!(
                "{name} {operator} ({})",
                values(name, operator, set.trim())?
            ));
        }
    }
    Err(SelectorError::Operator {
        key: name.to_owned(),
        found: rest.to_owned(),
    })
}

fn values(name: &str, operator: &'static str, set: &str) -> Result<String, SelectorError> {
    let inner = set.strip_prefix('(').and_then(|set| set.strip_suffix(')'));
    let inner = inner.filter(|inner| !inner.trim().is_empty());
    let inner = inner.ok_or_else(|| SelectorError::Set {
        key: name.to_owned(),
        operator,
    })?;
    let values = inner.split(',').map(|text| value(text.trim()));
    Ok(values.collect::<Result<Vec<_>, _>>()?.join(","))
}

fn key(text: &str) -> Result<&str, SelectorError> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if is_word(name) && prefix.is_none_or(is_dns_name) {
        Ok(text)
    } else {
        Err(SelectorError::Key(text.to_owned()))
    }
}

fn value(text: &str) -> Result<&str, SelectorError> {
    if text.is_empty() || is_word(text) {
        Ok(text)
    } else {
        Err(SelectorError::Value(text.to_owned()))
    }
}

/// 1 to 63 letters, digits, `-`, `_` or `.`, with a letter or digit at both ends.
fn is_word(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let bytes = text.as_bytes();
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && end(bytes.first()) && end(bytes.last())
}

/// A DNS name in lower case: what namespaces, objects and API groups are called.
pub(super) fn is_dns_name(text: &str) -> bool {
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        bytes.iter().copied().all(inner) && end(bytes.first()) && end(bytes.last())
    };
    text.len() <= 253 && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_the_grammar_is_taken() {
        let cases = [
            ("app=vllm", "app=vllm"),
            (" app == vllm , tier!=draft ", "app=vllm,tier!=draft"),
            ("tier in (a, b),app", "tier in (a,b),app"),
            (
                "llm-d.ai/role notin (prefill,)",
                "llm-d.ai/role notin (prefill,)",
            ),
            ("!draft,app=", "!draft,app="),
            ("gpus>4,gpus < 9", "gpus>4,gpus<9"),
            ("tier in(a)", "tier in (a)"),
        ];
        for (text, expected) in cases {
            let parsed = LabelSelector::parse(text);
            assert_eq!(
                parsed.as_ref().map(LabelSelector::as_str),
                Ok(expected),
                "{text}"
            );
        }
    }

    #[test]
    fn refusals_name_the_part_that_is_wrong() {
        let long = "x".repeat(64);
        let cases = [
            ("", "an empty selector would select every Pod"),
            ("  ", "an empty selector"),
            ("app=vllm,", "`` is no label key"),
            (
                "app vllm",
                "after the key `app` there is `vllm`: expected `=`",
            ),
            ("app=a b", "`a b` is no label value"),
            ("app=$(APP)", "`$(APP)` is no label value"),
            (
                "tier in a,b",
                "`tier in` needs values in parentheses, as in `tier in (a, b)`",
            ),
            ("tier notin ()", "`tier notin` needs values"),
            ("gpus>many", "`many` is no whole number"),
            ("Example.com/app=x", "`Example.com/app` is no label key"),
            ("-app=x", "`-app` is no label key"),
            (long.as_str(), "is no label key"),
            ("app=ä", "`ä` is no label value"),
        ];
        for (text, expected) in cases {
            let refusal = LabelSelector::parse(text).unwrap_err().to_string();
            assert!(refusal.contains(expected), "{text:?}: {refusal}");
        }
    }

    #[test]
    fn labels_make_a_selector_of_all_of_them() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|&(k, v)| (k.to_owned(), v.to_owned()))
                .collect()
        };
        let selector = LabelSelector::of_labels(&labels(&[("tier", "a"), ("app", "vllm")]));
        assert_eq!(selector.unwrap().as_str(), "app=vllm,tier=a");
        assert_eq!(
            LabelSelector::of_labels(&labels(&[])),
            Err(SelectorError::Empty)
        );
        assert!(LabelSelector::of_labels(&labels(&[("a,b", "c")])).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused_and_what_is_taken_reads_as_itself(text in "[a-c!=<>(), in/.\\-ä]{0,24}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                let again = LabelSelector::parse(selector.as_str());
                prop_assert_eq!(again.as_ref(), Ok(&selector));
            }
        }
    }
}
