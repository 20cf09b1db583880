//! The `tojson` filter of transformers: Python's `json.dumps`, not Jinja's own.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::python;

/// `json.dumps`' settings as far as transformers passes them on.
#[derive(Debug)]
struct Style {
    ensure_ascii: bool,
    /// One level of indentation; `None` writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii, indent, separators, sort_keys)`.
pub(super) fn filter(
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let style = Style::read(ensure_ascii, &kwargs)?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(value, &style, 0, &mut out)?;
    state.consume_fuel(out.len() as u64 / 64)?;
    Ok(Value::from_safe_string(out))
}

impl Style {
    fn read(ensure_ascii: Option<Value>, kwargs: &Kwargs) -> Result<Self, Error> {
        let ensure_ascii: Option<Value> = match ensure_ascii {
            Some(value) => Some(value),
            None => kwargs.get("ensure_ascii")?,
        };
        let indent: Option<Value> = kwargs.get("indent")?;
        let indent = indent.filter(|indent| !indent.is_none());
        let indent = match indent {
            None => None,
            Some(indent) => Some(match (indent.as_str(), indent.as_i64()) {
                (Some(text), _) => text.to_owned(),
                (None, Some(width)) => " ".repeat(usize::try_from(width.clamp(0, 64)).unwrap_or(0)),
                (None, None) => return Err(type_error("indent must be a number or a string")),
            }),
        };
        let separators: Option<Value> = kwargs.get("separators")?;
        let (item_separator, key_separator) = match separators.filter(|value| !value.is_none()) {
            Some(pair) => (part(&pair, 0)?, part(&pair, 1)?),
            // With an indentation each item ends its line.
            None => {
                let item = if indent.is_some() { "," } else { ", " };
                (item.to_owned(), ": ".to_owned())
            }
        };
        Ok(Self {
            ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
            indent,
            item_separator,
            key_separator,
            sort_keys: kwargs
                .get::<Option<Value>>("sort_keys")?
                .is_some_and(|value| value.is_true()),
        })
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }
}

fn part(pair: &Value, index: usize) -> Result<String, Error> {
    pair.get_item_by_index(index)?
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| type_error("separators must be two strings"))
}

fn type_error(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Deeper values come from templates that build themselves, not from requests.
const DEEPEST: usize = 256;

fn write(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(type_error("the value is nested too deeply for tojson"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Number => number(value, out)?,
        ValueKind::Seq => list(value, style, depth, out)?,
        ValueKind::Map => object(value, style, depth, out)?,
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of kind {kind} is not JSON serializable"),
            ));
        }
    }
    Ok(())
}

fn number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return Ok(());
    }
    let number = f64::try_from(value.clone())?;
    out.push_str(&match number {
        number if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        number => python::float(number),
    });
    Ok(())
}

fn list(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    out.push('[');
    let mut empty = true;
    for item in value.try_iter()? {
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        style.line(depth + 1, out);
        write(&item, style, depth + 1, out)?;
    }
    if !empty {
        style.line(depth, out);
    }
    out.push(']');
    Ok(())
}

fn object(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
    let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
    if style.sort_keys {
        pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
    }
    out.push('{');
    for (n, (key, item)) in pairs.iter().enumerate() {
        if n > 0 {
            out.push_str(&style.item_separator);
        }
        style.line(depth + 1, out);
        write_key(key, style, out)?;
        out.push_str(&style.key_separator);
        write(item, style, depth + 1, out)?;
    }
    if !pairs.is_empty() {
        style.line(depth, out);
    }
    out.push('}');
    Ok(())
}

/// Python turns scalar keys into strings.
fn write_key(key: &Value, style: &Style, out: &mut String) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => quote(key.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            out.push('"');
            write(key, style, 0, out)?;
            out.push('"');
        }
        _ => return Err(type_error("keys must be str, int, float, bool or None")),
    }
    Ok(())
}

fn quote(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    let mut rest = text;
    // Runs without anything to escape are copied whole.
    while let Some(at) = rest.find(|c: char| {
        matches!(c, '"' | '\\' | '\0'..='\x1f') || (ensure_ascii && !(' '..='~').contains(&c))
    }) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = special.chars();
        if let Some(c) = chars.next() {
            escape(c, out);
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        c => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _written = write!(out, "\\u{unit:04x}");
            }
        }
    }
}
