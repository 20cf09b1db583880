//! What would a fleet do under this load, if requests were placed by that rule? A fleet in virtual time.
//!
//! ```text
//! workload ─▶ policy ─▶ fleet of engine models ─▶ outcome ─▶ table, JSON, HTML
//! ```
//!
//! The engines are the very model that `warmpath engine` serves, and `least-prefill` the very code that picks: only
//! time is not real. Equal seeds give equal results.

pub mod outcome;
pub mod policy;
pub mod prompt;
pub mod report;
pub mod workload;
