//! A cursor over msgpack bytes: one value's head at a time, or a whole value skipped.
//!
//! It borrows from the payload, never recurses and never allocates: a length that
//! the bytes cannot hold is an error before anything is reserved for it.

/// The framing broke: what follows cannot be told apart any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// One value, or the head of one that has parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Head<'a> {
    Nil,
    Bool,
    /// Zero and above.
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    /// This many values follow.
    Array(usize),
    /// This many pairs of values follow.
    Map(usize),
    Extension,
}

/// What is left of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Broken)?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Broken)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn length8(&mut self) -> Result<usize, Broken> {
        self.fixed::<1>().map(|[n]| usize::from(n))
    }

    fn length16(&mut self) -> Result<usize, Broken> {
        self.fixed().map(|b| usize::from(u16::from_be_bytes(b)))
    }

    fn length32(&mut self) -> Result<usize, Broken> {
        let n = u32::from_be_bytes(self.fixed()?);
        usize::try_from(n).map_err(|_| Broken)
    }

    /// `n` values of at least one byte each must still be there.
    fn array(&self, n: usize) -> Result<Head<'a>, Broken> {
        if n > self.rest.len() {
            return Err(Broken);
        }
        Ok(Head::Array(n))
    }

    fn map(&self, n: usize) -> Result<Head<'a>, Broken> {
        if n > self.rest.len() / 2 {
            return Err(Broken);
        }
        Ok(Head::Map(n))
    }

    fn signed(value: i64) -> Head<'a> {
        u64::try_from(value).map_or(Head::Negative(value), Head::Unsigned)
    }

    /// Reads a value, or the head of an array or map.
    pub(super) fn head(&mut self) -> Result<Head<'a>, Broken> {
        let [marker] = self.fixed()?;
        Ok(match marker {
            0x00..=0x7f => Head::Unsigned(u64::from(marker)),
            0x80..=0x8f => return self.map(usize::from(marker & 0x0f)),
            0x90..=0x9f => return self.array(usize::from(marker & 0x0f)),
            0xa0..=0xbf => Head::Text(self.take(usize::from(marker & 0x1f))?),
            0xc0 => Head::Nil,
            // Not used by msgpack: nothing says how long it is.
            0xc1 => return Err(Broken),
            0xc2 | 0xc3 => Head::Bool,
            0xc4..=0xc9 | 0xd4..=0xdb => return self.sized(marker),
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Head::Unsigned(u64::from(u8::from_be_bytes(self.fixed()?))),
            0xcd => Head::Unsigned(u64::from(u16::from_be_bytes(self.fixed()?))),
            0xce => Head::Unsigned(u64::from(u32::from_be_bytes(self.fixed()?))),
            0xcf => Head::Unsigned(u64::from_be_bytes(self.fixed()?)),
            0xd0 => Self::signed(i64::from(i8::from_be_bytes(self.fixed()?))),
            0xd1 => Self::signed(i64::from(i16::from_be_bytes(self.fixed()?))),
            0xd2 => Self::signed(i64::from(i32::from_be_bytes(self.fixed()?))),
            0xd3 => Self::signed(i64::from_be_bytes(self.fixed()?)),
            0xdc => {
                let n = self.length16()?;
                return self.array(n);
            }
            0xdd => {
                let n = self.length32()?;
                return self.array(n);
            }
            0xde => {
                let n = self.length16()?;
                return self.map(n);
            }
            0xdf => {
                let n = self.length32()?;
                return self.map(n);
            }
            0xe0..=0xff => Head::Negative(i64::from(i8::from_be_bytes([marker]))),
        })
    }

    /// Values that carry their length: text, binary, extensions (one byte of type, then the data).
    fn sized(&mut self, marker: u8) -> Result<Head<'a>, Broken> {
        let length = match marker {
            0xd4..=0xd8 => 1 << (marker - 0xd4),
            0xc4 | 0xc7 | 0xd9 => self.length8()?,
            0xc5 | 0xc8 | 0xda => self.length16()?,
            _ => self.length32()?,
        };
        match marker {
            0xc4..=0xc6 => self.take(length).map(Head::Binary),
            0xd9..=0xdb => self.take(length).map(Head::Text),
            _ => {
                self.take(1)?;
                self.take(length).map(|_| Head::Extension)
            }
        }
    }

    /// A token id in one of its usual forms, or nothing and no move: by far the most of a
    /// payload are these.
    pub(super) fn id(&mut self) -> Option<u32> {
        let (id, rest) = match self.rest {
            [0xcd, a, b, rest @ ..] => (u32::from(u16::from_be_bytes([*a, *b])), rest),
            [0xce, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
            [id @ 0..=0x7f, rest @ ..] => (u32::from(*id), rest),
            _ => return None,
        };
        self.rest = rest;
        Some(id)
    }

    /// The next head, without moving on.
    pub(super) fn peek(&self) -> Result<Head<'a>, Broken> {
        let mut ahead = *self;
        ahead.head()
    }

    /// Passes over one whole value, however deep: in a loop, with one counter for
    /// the values still to pass, so nesting costs no stack.
    pub(super) fn skip(&mut self) -> Result<(), Broken> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            let parts = match self.head()? {
                Head::Array(n) => n as u64,
                Head::Map(n) => (n as u64).saturating_mul(2),
                _ => 0,
            };
            left = left.saturating_add(parts);
        }
        Ok(())
    }
}
