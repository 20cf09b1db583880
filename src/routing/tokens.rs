//! The one unit of the rule: a number of prompt tokens.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// A number of tokens. Adds and subtracts without ever wrapping: a sum that does
/// not fit stays at the maximum, a difference below zero is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenCount(u64);

impl TokenCount {
    /// No tokens.
    pub const ZERO: Self = Self(0);

    /// A count of `tokens`.
    pub const fn new(tokens: u64) -> Self {
        Self(tokens)
    }

    /// The count of a slice's items (token ids).
    pub const fn of<T>(items: &[T]) -> Self {
        Self(items.len() as u64)
    }

    /// The plain number, for metrics and pages.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for TokenCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for TokenCount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for TokenCount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for TokenCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
