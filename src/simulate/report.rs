//! How are outcomes shown? As a table in text, as JSON, and as one page of HTML with plots.
//!
//! Everything here is a pure function of the outcomes and of what the command says about the run. A figure that
//! nothing was measured for (the time to the first token where nobody was answered) is shown as a dash, never as zero:
//! zero would be the best of its column.

mod columns;
mod failures;
mod html;
mod json;
mod numbers;
mod progress;
mod text;

#[cfg(test)]
mod tests;

use super::outcome::Outcome;

pub(in crate::simulate) use failures::why_failed;
pub use html::html;
pub use json::json;
pub(crate) use numbers::grouped;
pub use progress::Progress;
pub use text::table;

/// What is said of a run beside its figures.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// One line: what was simulated.
    pub title: String,
    /// Name and value of everything that was chosen: workload, loop, fleet, seed, version.
    pub lines: Vec<(String, String)>,
    /// Whole sentences that the reader should know before trusting the figures.
    pub notes: Vec<String>,
}

/// A part of a page: runs that are compared with one another.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What sets it apart from the other parts; not shown where it is the only one.
    pub name: &'a str,
    /// What was simulated.
    pub setup: &'a Setup,
    /// A policy each; in all parts the same policies in the same order.
    pub outcomes: &'a [Outcome],
}
