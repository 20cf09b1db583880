//! Which requests come, and when? Generated, or read from a trace.

mod args;
mod arrivals;
mod choice;
mod distribution;
mod generated;
mod generator;
mod named;
mod names;
mod replay;
mod spec;
mod trace;

pub use args::{Args, TraceArgs};
pub use arrivals::{Arrivals, BadArrivals, Stage};
pub use distribution::{BadDistribution, Distribution};
pub use generated::{Burst, Conversation, Generated, Prefixes, Service};
pub use spec::{OpenError, Spec};
pub use trace::{Format, Trace};

use std::time::Duration;

use super::prompt::{Prompt, Segment};

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// When it comes, from the start of the run.
    pub at: Duration,
    /// What it asks.
    pub prompt: Prompt,
    /// How many tokens are answered, at least 1.
    pub output: u32,
    /// The name of the answer's tokens, so that the next turn's prompt can go on with them. The answer is
    /// `Segment { id: answer, tokens: output }`.
    pub answer: u64,
    /// The conversation it belongs to; a request that belongs to none has a number of its own.
    pub session: u64,
    /// The shared prefix it starts with (a customer's, an agent's), where the workload knows such: for statistics and
    /// for policies that hash a key.
    pub prefix: Option<u64>,
}

impl Arrival {
    /// The answer's tokens.
    pub const fn answer_segment(&self) -> Segment {
        Segment {
            id: self.answer,
            tokens: self.output,
        }
    }
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    /// Requests come at their recorded times, whatever the fleet does.
    Open,
    /// The next request of a conversation comes its thinking time after the end of the one before.
    Closed,
}

/// A source of requests. Two of the same seed give the same requests, whatever is asked of them in between.
pub trait Workload {
    /// The next request whose time does not depend on the fleet (in a closed loop: the first of a conversation), in
    /// order of time; `None` when there are no more.
    fn next(&mut self) -> Option<Arrival>;

    /// A request of this conversation has ended, at this time from the start of the run: the one that follows it in a
    /// closed loop, its `at` not before `ended`.
    fn follow(&mut self, session: u64, ended: Duration) -> Option<Arrival>;

    /// Requests there will be at most; for a progress bar.
    fn len_hint(&self) -> Option<u64>;
}

/// Tokens of the longest prompt or answer: more than any model reads. What is written beyond it is a slip.
const MOST_TOKENS: u32 = 1 << 24;

/// Nothing is waited for longer, and no trace is: virtual time costs a little while nothing happens, too.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

#[cfg(test)]
mod tests;
