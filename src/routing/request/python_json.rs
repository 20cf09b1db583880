//! Would Python's JSON reader take this body? Asked only after strict JSON said no.
//!
//! vLLM reads bodies with Python, which also takes NaN and infinities, lone surrogates in
//! escapes, numbers of any size and deeper nesting. Such a request must not be refused here.
//! The scanner is a loop with a stack of one byte a level: no recursion, whatever comes in.

use std::ops::Range;

/// What a body is to Python.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing but white space.
    Empty,
    /// An object; `oddity` names what strict JSON does not take.
    Object {
        oddity: &'static str,
        /// Value positions by key; keys with escapes are left out, later ones come later.
        top_level: Vec<(String, Range<usize>)>,
    },
    /// Something other than an object, by name.
    Other(&'static str),
    /// Not JSON to Python either.
    Invalid,
}

/// Python's own limit is on its stack (about a thousand); beyond this no reader follows.
const DEEPEST: usize = 10_000;

/// Judges a body.
pub(super) fn verdict(body: &[u8]) -> Verdict {
    let mut scanner = Scanner {
        body,
        at: 0,
        oddity: None,
    };
    scanner.skip_space();
    let kind = match scanner.peek() {
        None => return Verdict::Empty,
        Some(b'{') => None,
        Some(b'[') => Some("an array"),
        Some(b'"') => Some("a string"),
        Some(b't' | b'f') => Some("a boolean"),
        Some(b'n') => Some("null"),
        Some(_) => Some("a number"),
    };
    let Some(top_level) = scanner.document() else {
        return Verdict::Invalid;
    };
    match kind {
        Some(kind) => Verdict::Other(kind),
        None => Verdict::Object {
            oddity: scanner.oddity.unwrap_or("deep nesting"),
            top_level,
        },
    }
}

/// Whether Python reads a text as an object.
pub(in crate::routing) fn is_object(text: &str) -> bool {
    matches!(verdict(text.as_bytes()), Verdict::Object { .. })
}

struct Scanner<'a> {
    body: &'a [u8],
    at: usize,
    oddity: Option<&'static str>,
}

/// What may come next inside a container.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A value (after `:`, after `,` in an array, at the start).
    Value,
    /// A value or `]`.
    FirstItem,
    /// A key.
    Key,
    /// A key or `}`.
    FirstKey,
    /// `,` or the end of the container.
    Separator,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    /// Scans the whole body; `None` when it is not JSON.
    fn document(&mut self) -> Option<Vec<(String, Range<usize>)>> {
        let mut containers: Vec<u8> = Vec::new();
        let mut next = Next::Value;
        let mut top_level = Vec::new();
        let mut pending: Option<(Range<usize>, usize)> = None;
        loop {
            self.skip_space();
            if containers.is_empty() && next == Next::Separator {
                return (self.at == self.body.len()).then_some(top_level);
            }
            next = match next {
                Next::FirstItem if self.peek() == Some(b']') => self.close(&mut containers)?,
                Next::FirstKey if self.peek() == Some(b'}') => self.close(&mut containers)?,
                Next::Value | Next::FirstItem => self.value(&mut containers)?,
                Next::Key | Next::FirstKey => {
                    let start = self.at;
                    self.string()?;
                    let key = start + 1..self.at - 1;
                    self.skip_space();
                    self.eat(b':')?;
                    self.skip_space();
                    if containers.len() == 1 {
                        pending = Some((key, self.at));
                    }
                    Next::Value
                }
                Next::Separator => self.separator(&mut containers)?,
            };
            if containers.len() <= 1
                && next == Next::Separator
                && let Some((key, start)) = pending.take()
                && let Some(key) = self.plain_key(key)
            {
                top_level.push((key, start..self.at));
            }
        }
    }

    fn plain_key(&self, key: Range<usize>) -> Option<String> {
        let key = std::str::from_utf8(self.body.get(key)?).ok()?;
        (!key.contains('\\')).then(|| key.to_owned())
    }

    fn close(&mut self, containers: &mut Vec<u8>) -> Option<Next> {
        self.at += 1;
        containers.pop()?;
        Some(Next::Separator)
    }

    fn separator(&mut self, containers: &mut Vec<u8>) -> Option<Next> {
        let container = *containers.last()?;
        match (self.peek()?, container) {
            (b',', b'{') => {
                self.at += 1;
                Some(Next::Key)
            }
            (b',', b'[') => {
                self.at += 1;
                Some(Next::Value)
            }
            (b'}', b'{') | (b']', b'[') => self.close(containers),
            _ => None,
        }
    }

    fn value(&mut self, containers: &mut Vec<u8>) -> Option<Next> {
        match self.peek()? {
            open @ (b'{' | b'[') => {
                self.at += 1;
                containers.push(open);
                if containers.len() > DEEPEST {
                    return None;
                }
                Some(if open == b'{' {
                    Next::FirstKey
                } else {
                    Next::FirstItem
                })
            }
            b'"' => self.string().map(|()| Next::Separator),
            _ => self.word().map(|()| Next::Separator),
        }
    }

    fn string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.escape()?,
                // Python's reader refuses raw control characters as strict JSON does.
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        std::str::from_utf8(self.body.get(start..self.at)?).ok()?;
        self.at += 1;
        Some(())
    }

    fn escape(&mut self) -> Option<()> {
        self.at += 1;
        match self.peek()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'u' => {
                let digits = self.body.get(self.at + 1..self.at + 5)?;
                let digits = std::str::from_utf8(digits).ok()?;
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                self.at += 5;
                match u32::from_str_radix(digits, 16).ok()? {
                    0xd800..0xdc00 if self.low_surrogate_follows() => self.at += 6,
                    0xd800..0xe000 => {
                        self.oddity.get_or_insert("a lone surrogate");
                    }
                    _ => {}
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn low_surrogate_follows(&self) -> bool {
        let escape = self.body.get(self.at..self.at + 6).unwrap_or_default();
        let code = escape
            .strip_prefix(b"\\u")
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        matches!(code, Some(0xdc00..0xe000))
    }

    /// A number or a word, up to the next delimiter.
    fn word(&mut self) -> Option<()> {
        let start = self.at;
        while self
            .peek()
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
        {
            self.at += 1;
        }
        match self.body.get(start..self.at)? {
            b"true" | b"false" | b"null" => Some(()),
            b"NaN" | b"Infinity" | b"-Infinity" => {
                self.oddity.get_or_insert("a number that is not finite");
                Some(())
            }
            number => {
                is_number(number).then_some(())?;
                let value: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
                if value.is_infinite() {
                    self.oddity.get_or_insert("a number beyond all floats");
                }
                Some(())
            }
        }
    }
}

/// JSON's number grammar, of any length.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text.first() == Some(&b'0')) {
        return false;
    }
    let mut rest = text.get(whole..).unwrap_or_default();
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = fraction.get(count..).unwrap_or_default();
    }
    if let Some(exponent) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let exponent = exponent
            .strip_prefix(b"+")
            .or_else(|| exponent.strip_prefix(b"-"))
            .unwrap_or(exponent);
        return !exponent.is_empty() && digits(exponent) == exponent.len();
    }
    rest.is_empty()
}
