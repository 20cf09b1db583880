//! One integration binary (one link on few cores); a line on each part.

#![expect(
    clippy::unwrap_used,
    reason = "tests: a failed unwrap is a failed test"
)]

/// Model files from a stub of the hub: which are asked for, when again, and by whom.
mod hub;
/// Token ids by the three ways, against a double of an engine.
mod tokens;
