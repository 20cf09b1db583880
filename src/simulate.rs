//! What would a fleet do under this load, if requests were placed by that rule? A fleet in virtual time.
//!
//! ```text
//! workload ─▶ policy ─▶ fleet of engine models ─▶ outcome ─▶ table, JSON, HTML
//! ```
//!
//! The engines are the very model that `warmpath engine` serves, and `least-prefill` the very code that picks: only
//! time is not real. Equal seeds give equal results.

mod args;
pub mod calibrate;
mod command;
pub mod fleet;
pub mod goal;
pub mod outcome;
pub mod parallel;
pub mod policy;
pub mod prompt;
pub mod report;
pub mod scenario;
pub mod search;
pub mod study;
pub mod workload;
mod writable;

pub use args::{Args, EngineArgs};
pub use command::run;
