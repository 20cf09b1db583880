//! Values with a unit: how durations, sizes and bounded numbers are written, and what is refused.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a value was refused: what was written and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{written}` is not {expected}")]
pub struct BadValue {
    written: String,
    expected: String,
}

impl BadValue {
    fn new(written: &str, expected: impl Into<String>) -> Self {
        Self {
            written: written.to_owned(),
            expected: expected.into(),
        }
    }
}

const DURATION: &str = "a duration: a whole number with a unit, for example 500ms, 2s, 1m or 1h";
const SIZE: &str =
    "a size: a whole number with a unit, for example 1500B, 64KiB, 32MiB or 1GiB (powers of 1024)";

/// Splits `500ms` into the number and the unit.
fn number_and_unit(written: &str) -> Option<(u64, &str)> {
    let digits = written.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = written.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

/// A duration above zero, written as a whole number with a unit: `ms`, `s`, `m`, `h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A duration that may be zero (`0s`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpanOrZero(pub Duration);

impl FromStr for SpanOrZero {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::new(written, DURATION);
        let (number, unit) = number_and_unit(written.trim()).ok_or_else(bad)?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(bad()),
        };
        let total = number.checked_mul(unit_ms).ok_or_else(bad)?;
        Ok(Self(Duration::from_millis(total)))
    }
}

impl FromStr for Span {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        let SpanOrZero(span) = written.parse()?;
        if span.is_zero() {
            return Err(BadValue::new(written, "a duration above zero"));
        }
        Ok(Self(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SpanOrZero(self.0).fmt(f)
    }
}

impl fmt::Display for SpanOrZero {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0 => f.write_str("0s"),
            ms if ms % 3_600_000 == 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// A number of bytes above zero, written with a unit: `B`, `KiB`, `MiB`, `GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::new(written, SIZE);
        let (number, unit) = number_and_unit(written.trim()).ok_or_else(bad)?;
        let factor: u64 = match unit {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(bad()),
        };
        let bytes = number.checked_mul(factor).ok_or_else(bad)?;
        match usize::try_from(bytes) {
            Ok(0) => Err(BadValue::new(written, "a size above zero")),
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(bad()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

/// A TCP port.
pub type Port = Whole<1, 65_535>;

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// A value the code itself sets: bounds are checked when compiling.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(MIN <= N && N <= MAX) };
        Self(N)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a `usize`; saturates on targets with small ones.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Port {
    /// The port.
    pub fn port(self) -> u16 {
        // The bound of the type is u16's own; saturating keeps this total all the same.
        u16::try_from(self.0).unwrap_or(u16::MAX)
    }
}

impl<const MIN: u64, const MAX: u64> FromStr for Whole<MIN, MAX> {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        match written.trim().parse() {
            Ok(number) if (MIN..=MAX).contains(&number) => Ok(Self(number)),
            _ => Err(BadValue::new(
                written,
                format!("a whole number from {MIN} to {MAX}"),
            )),
        }
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Whole<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A share: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        match written.trim().parse::<f64>() {
            Ok(share) if share > 0.0 && share <= 1.0 => Ok(Self(share)),
            _ => Err(BadValue::new(
                written,
                "a share above 0 and at most 1, for example 0.95",
            )),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Positive(pub f64);

impl FromStr for Positive {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        match written.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Self(number)),
            _ => Err(BadValue::new(written, "a number above zero")),
        }
    }
}

impl fmt::Display for Positive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Yes or no, written `true` or `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl FromStr for Switch {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        match written.trim().parse() {
            Ok(on) => Ok(Self(on)),
            Err(_neither) => Err(BadValue::new(written, "`true` or `false`")),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The path of a URL: begins with a slash, without query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPath(pub String);

impl FromStr for UrlPath {
    type Err = BadValue;

    fn from_str(written: &str) -> Result<Self, BadValue> {
        let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#');
        if written.starts_with('/') && written.chars().all(allowed) {
            Ok(Self(written.to_owned()))
        } else {
            Err(BadValue::new(
                written,
                "a URL path: it begins with a slash and has no query, for example /metrics",
            ))
        }
    }
}

impl fmt::Display for UrlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// In files these values are plain scalars, written and refused as on the command line.
macro_rules! scalar {
    ({$($generics:tt)*} $type:ty) => {
        impl<'de, $($generics)*> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }

        impl<$($generics)*> Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

scalar!({} Span);
scalar!({} SpanOrZero);
scalar!({} Size);
scalar!({const MIN: u64, const MAX: u64} Whole<MIN, MAX>);
scalar!({} Share);
scalar!({} Positive);
scalar!({} Switch);
scalar!({} UrlPath);

#[cfg(test)]
mod tests;
