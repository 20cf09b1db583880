//! The formula.
