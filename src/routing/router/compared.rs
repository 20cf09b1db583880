//! How does an answer's report of cached tokens compare with what was foreseen, and what is learnt from it?

use std::time::Instant;

use super::super::block::BlockKey;
use super::super::ledger::credit::Note;
use super::super::ledger::trust::{Evidence, Verdict};
use super::super::ledger::{BookingId, Comparison, Reach, Standing, TrustChange};
use super::super::tokens::TokenCount;
use super::State;

/// How a report compares with the prediction, in whole blocks: less than a block is no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// As foreseen.
    Equal,
    /// The engine had more.
    TooLow,
    /// The engine had less.
    TooHigh,
    /// Another figure, but right when it was made: since then events removed the block at which the engine's prefix
    /// ended, or brought the one that was foreseen to be missing, or a request whose blocks were counted on was
    /// not there in time.
    Overtaken,
    /// Nothing to compare with: the endpoint left, or the request has no single prompt of known tokens.
    Unknown,
}

/// What came of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// How it compares.
    pub agreement: Agreement,
    /// Blocks credited to the endpoint that it must have.
    pub credited: u64,
    /// Blocks credited before that it has not.
    pub dropped: u64,
    /// The endpoint's events are no longer believed, or are again.
    pub trust: Option<TrustChange>,
}

impl Compared {
    pub(super) const UNKNOWN: Self = Self {
        agreement: Agreement::Unknown,
        credited: 0,
        dropped: 0,
        trust: None,
    };
}

impl State {
    /// Compares and learns. The ledger is asked, then the index, then the ledger again: an endpoint that leaves
    /// in between is not found.
    pub(super) fn compare(&self, booking: BookingId, cached: TokenCount, now: Instant) -> Compared {
        let comparison = self.ledger.lock().comparison(booking, cached);
        let Some(comparison) = comparison else {
            return Compared::UNKNOWN;
        };
        let view = comparison
            .view
            .map(|reach| self.agreement(&comparison, reach.foreseen, reach.held));
        let served = self.agreement_served(&comparison, view);
        let (credited, dropped) = self.learn(&comparison, view);
        let evidence = self.evidence(&comparison, view, served);
        let trust = evidence.and_then(|evidence| {
            let mut ledger = self.ledger.lock();
            ledger.judge(comparison.id, evidence, now)
        });
        Compared {
            agreement: served,
            credited,
            dropped,
            trust,
        }
    }

    /// How the report compares with what the events foretold.
    fn agreement(&self, comparison: &Comparison, foreseen: usize, held: usize) -> Agreement {
        let Comparison { reported, most, .. } = *comparison;
        let foreseen = foreseen.min(most);
        if reported == foreseen {
            return Agreement::Equal;
        }
        let cleared = comparison
            .credits
            .as_ref()
            .is_some_and(|(credits, life)| credits.life() != *life);
        let overtaken = if reported < foreseen {
            reported >= held || comparison.was_removed
        } else {
            self.is_told(comparison, foreseen)
        };
        match (overtaken || cleared, reported < foreseen) {
            (true, _) => Agreement::Overtaken,
            (false, true) => Agreement::TooHigh,
            (false, false) => Agreement::TooLow,
        }
    }

    /// The same of whichever index served the pick.
    fn agreement_served(&self, comparison: &Comparison, view: Option<Agreement>) -> Agreement {
        let by_view = comparison.view.filter(|_| !comparison.is_approximate);
        if let Some(agreement) = view.filter(|_| by_view.is_some()) {
            return agreement;
        }
        let foreseen = comparison.served.foreseen.min(comparison.most);
        match comparison.reported.cmp(&foreseen) {
            std::cmp::Ordering::Less if comparison.reported >= comparison.served.held => {
                Agreement::Overtaken
            }
            std::cmp::Ordering::Less => Agreement::TooHigh,
            std::cmp::Ordering::Equal => Agreement::Equal,
            std::cmp::Ordering::Greater => Agreement::TooLow,
        }
    }

    /// Gives and drops credit; how many blocks of each.
    fn learn(&self, comparison: &Comparison, view: Option<Agreement>) -> (u64, u64) {
        let (Some(reach), Some((credits, life))) = (comparison.view, &comparison.credits) else {
            return (0, 0);
        };
        if credits.life() != *life {
            return (0, 0);
        }
        let keys = &comparison.keys;
        let (had, lacked) = keys.split_at(comparison.reported.min(keys.len()));
        let size = comparison.tokens_a_block;
        credits.confirm(had, size, comparison.picked_at);
        let dropped = if comparison.reported < reach.held {
            credits.drop_all_of(&self.index, lacked)
        } else {
            0
        };
        match view {
            Some(Agreement::TooLow) => {
                let (capacity, at) = (comparison.capacity, comparison.picked_at);
                let given = credits.give(&self.index, *life, had, size, capacity, at);
                credits.leave(*life, Note::Known(keys.clone(), had.len()));
                (given, dropped)
            }
            Some(Agreement::TooHigh) => {
                let believed = reach.held.saturating_sub(comparison.reported);
                let missing = lacked.iter().take(believed).copied().collect();
                credits.leave(*life, Note::Missing(missing));
                (0, dropped)
            }
            _ => (0, dropped),
        }
    }

    /// What the answer says of the endpoint's events; `None` where they say themselves that they are not to be relied on.
    fn evidence(
        &self,
        comparison: &Comparison,
        view: Option<Agreement>,
        served: Agreement,
    ) -> Option<Evidence> {
        let reach = comparison.view?;
        if comparison.feed == Standing::Unsure {
            return None;
        }
        let foreseen = reach.foreseen.max(comparison.served.foreseen);
        // That nothing was foreseen and nothing was there is no proof of anything.
        let says_something = comparison.reported > 0 || foreseen > 0;
        let verdict = match view? {
            Agreement::Equal => Some(Verdict::Right),
            Agreement::TooLow if comparison.feed == Standing::Whole => Some(Verdict::TooLow),
            Agreement::TooHigh => too_high(comparison, reach),
            Agreement::TooLow | Agreement::Overtaken | Agreement::Unknown => None,
        };
        let last = comparison.most.checked_sub(1);
        let computed = last.filter(|last| *last >= comparison.reported);
        let computed = computed.and_then(|last| {
            let key = *comparison.keys.get(last)?;
            let told = comparison.computed_was_removed || self.is_told(comparison, last);
            Some((key, told))
        });
        Some(Evidence {
            view: verdict.filter(|_| says_something),
            served_right: served == Agreement::Equal,
            computed,
        })
    }

    /// Whether events, and not a mere credit, tell that one of a prompt's blocks is cached.
    fn is_told(&self, comparison: &Comparison, place: usize) -> bool {
        let Some(&key) = comparison.keys.get(place) else {
            return false;
        };
        let credited = |key: BlockKey| {
            let credits = comparison.credits.as_ref();
            credits.is_some_and(|(credits, _)| credits.contains(key))
        };
        let held = comparison
            .sources
            .iter()
            .any(|&source| self.index.holds(source, key));
        held && !credited(key)
    }
}

/// What a report of less says of the view: nothing where several ranks share the endpoint, of which one alone has
/// what was foreseen and any may have answered. One block less is as good as right: an engine that drafts tokens
/// (EAGLE, MTP) and hashes no lookahead computes the last block of each hit anew, and no choice hangs on a block.
fn too_high(comparison: &Comparison, reach: Reach) -> Option<Verdict> {
    if comparison.sources.len() > 1 {
        return None;
    }
    let lacking = reach
        .held
        .min(comparison.most)
        .saturating_sub(comparison.reported);
    match (lacking, comparison.reported) {
        (1, 0) => None,
        (1, _) => Some(Verdict::Right),
        _ => Some(Verdict::TooHigh),
    }
}
