//! What happens next? Things to come in order of time, and of being noted where times are equal.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use super::flights::FlightId;

/// Something that will happen. Replicas by number, with the life it was noted in where it dies with that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A request comes; after it, the next one is asked for if `next`.
    Arrival { flight: FlightId, next: bool },
    /// A request that nobody could take is offered again.
    Offer(FlightId),
    /// An engine's step is computed.
    Step { replica: usize, life: u32 },
    /// The oldest batch of KV events under way arrives.
    Events,
    /// A replica is asked for a report.
    AskReport(usize),
    /// The oldest report under way arrives.
    Report,
    /// An interval of the course is over.
    Interval,
    /// An outage of a replica begins.
    Down(usize),
    /// It ends.
    Up(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Duration,
    number: u64,
    what: What,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The future, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    noted: u64,
}

impl Agenda {
    pub(super) fn note(&mut self, at: Duration, what: What) {
        let number = self.noted;
        self.noted += 1;
        self.entries.push(Reverse(Entry { at, number, what }));
    }

    /// When the first thing happens that is neither a report nor the asking for one.
    pub(super) fn next_but_reports(&self) -> Option<Duration> {
        let others = self
            .entries
            .iter()
            .filter(|Reverse(entry)| !matches!(entry.what, What::AskReport(_) | What::Report));
        others.map(|Reverse(entry)| entry.at).min()
    }

    /// The next thing, and when it happens.
    pub(super) fn next(&mut self) -> Option<(Duration, What)> {
        let Reverse(entry) = self.entries.pop()?;
        Some((entry.at, entry.what))
    }
}
