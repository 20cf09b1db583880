//! How Python prints values: `str()` where a template puts a value out, `repr()` inside lists.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::Value;
use minijinja::value::ValueKind;

/// White space to Python's `str.strip`: Unicode's, and four control characters.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `rstrip`.
pub(super) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Python's `splitlines`: no empty line after the last break, and more breaks than `\n`.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find(is_line_break) else {
            return Some(std::mem::take(&mut rest));
        };
        let (line, end) = rest.split_at(at);
        rest = end
            .strip_prefix("\r\n")
            .or_else(|| end.strip_prefix(is_line_break))
            .unwrap_or_default();
        Some(line)
    })
}

fn is_line_break(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r'
            | '\x0b'
            | '\x0c'
            | '\x1c'
            | '\x1d'
            | '\x1e'
            | '\u{85}'
            | '\u{2028}'
            | '\u{2029}'
    )
}

/// `str(value)`; nothing for an undefined value, as Jinja prints it.
pub(super) fn text_of(value: &Value) -> Cow<'_, str> {
    if let Some(text) = value.as_str() {
        return Cow::Borrowed(text);
    }
    match value.kind() {
        ValueKind::Undefined => Cow::Borrowed(""),
        _ => {
            let mut text = String::new();
            repr(value, &mut text);
            Cow::Owned(text)
        }
    }
}

/// `repr(value)`.
fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Map => repr_map(value, out),
        ValueKind::Seq => repr_list(value, out),
        _ => out.push_str(&value.to_string()),
    }
}

fn repr_map(value: &Value, out: &mut String) {
    let Some(pairs) = value.as_object().and_then(|object| object.try_iter_pairs()) else {
        return out.push_str(&value.to_string());
    };
    out.push('{');
    for (n, (key, value)) in pairs.enumerate() {
        if n > 0 {
            out.push_str(", ");
        }
        repr(&key, out);
        out.push_str(": ");
        repr(&value, out);
    }
    out.push('}');
}

fn repr_list(value: &Value, out: &mut String) {
    let Ok(items) = value.try_iter() else {
        return out.push_str(&value.to_string());
    };
    let (open, close) = if value.is_tuple() {
        ('(', ')')
    } else {
        ('[', ']')
    };
    out.push(open);
    let mut count = 0;
    for item in items {
        if count > 0 {
            out.push_str(", ");
        }
        repr(&item, out);
        count += 1;
    }
    if value.is_tuple() && count == 1 {
        out.push(',');
    }
    out.push(close);
}

/// A string in quotes: single ones unless it has those and no double ones.
fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => escape(c, out),
        }
    }
    out.push(quote);
}

fn escape(c: char, out: &mut String) {
    let code = u32::from(c);
    // Writing to a string cannot fail.
    let _written = match code {
        0..0x100 => write!(out, "\\x{code:02x}"),
        0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// Rust's own notion of printable, asked for a character that does not stand first (there it
/// would escape combining marks, which Python prints).
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let after_letter: String = ['a', c].iter().collect();
    after_letter.escape_debug().count() == 2 && (c == ' ' || !c.is_whitespace())
}

/// A float as Python prints it: the shortest digits that read back, with an exponent below
/// 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
