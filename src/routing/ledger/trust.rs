//! Does what an endpoint's events tell agree with what its answers report?
//!
//! A feed may be connected and without a gap, and its view wrong all the same: a publisher that is silent, an engine
//! whose tokens are not ours, one that dropped its cache without a word. Two things show it. An answer reports other cached tokens
//! than the view foretold, or an engine computes a prompt's blocks and no event announces them. An endpoint of which
//! that is so again and again is *doubted*: the approximate index serves it, its view goes on beside, and when that
//! has been right for a while the endpoint goes back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::block::BlockKey;

/// Answers that are looked back on: few enough that a change shows within one burst of traffic.
const WINDOW: usize = 16;

/// So many wrong ones among them raise the doubt. One half: a feed that lags or an engine that evicts in the
/// middle of a step is wrong now and then, and at one half the approximate index is no worse.
const WRONG_TO_DOUBT: usize = 8;

/// So many right ones lift it. Nearly all, so that an endpoint near the border does not go to and fro.
const RIGHT_TO_RETURN: usize = 15;

/// An event about blocks that an answer says were computed is late after this: engines send it at the end of
/// the step, milliseconds before the answer.
const LATE: Duration = Duration::from_secs(1);

/// What one answer says of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routing) enum Verdict {
    /// It foretold what the engine reported.
    Right,
    /// The engine had more.
    TooLow,
    /// The engine had less.
    TooHigh,
}

/// What one answer showed.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::routing) struct Evidence {
    /// Of the view's blocks; `None` when nothing could have been wrong, or events have changed them meanwhile.
    pub(in crate::routing) view: Option<Verdict>,
    /// The index that served the pick was right.
    pub(in crate::routing) served_right: bool,
    /// A block that the engine computed for it, and whether events have announced it.
    pub(in crate::routing) computed: Option<(BlockKey, bool)>,
}

/// Of what an endpoint is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoubtCause {
    /// Its engine has more cached than its events tell.
    TooLow,
    /// Its engine has less: the view holds phantoms. Only a new view can be right.
    TooHigh,
    /// Its engine computes blocks that no event announces.
    Unannounced,
}

/// How the standing of an endpoint changed; for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustChange {
    /// The approximate index serves it from here on.
    Doubted {
        /// Of what.
        cause: DoubtCause,
        /// The same in words.
        reason: String,
    },
    /// Its events serve again.
    Trusted,
}

/// The standing of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// The last answers of which something could be said, with whether the serving index was right.
    answers: VecDeque<(Verdict, bool)>,
    /// Whether the blocks of the last prompts that the engine computed were announced.
    announcements: VecDeque<bool>,
    /// Computed blocks not announced yet, oldest first.
    awaited: VecDeque<(BlockKey, Instant)>,
    doubt: Option<String>,
    /// That nothing is announced has turned out to be right: the engine keeps nothing.
    silence_is_right: bool,
}

impl Trust {
    /// Why the endpoint is doubted, if it is.
    pub(super) fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// The engine stored these blocks.
    pub(super) fn announced(&mut self, keys: &[BlockKey]) {
        // Mostly empty: the events come before the answer.
        if self.awaited.is_empty() {
            return;
        }
        let before = self.awaited.len();
        self.awaited.retain(|(key, _)| !keys.contains(key));
        for _ in self.awaited.len()..before {
            push(&mut self.announcements, true);
        }
    }

    /// The view starts over: what was seen of the old one says nothing of the new one. A doubt stays until
    /// the new one has been right.
    pub(super) fn start_over(&mut self) {
        self.answers.clear();
        self.announcements.clear();
        self.awaited.clear();
        self.silence_is_right = false;
    }

    /// One more answer.
    pub(super) fn note(&mut self, evidence: Evidence, now: Instant) -> Option<TrustChange> {
        while let Some((_, since)) = self.awaited.front()
            && now.saturating_duration_since(*since) > LATE
        {
            self.awaited.pop_front();
            push(&mut self.announcements, false);
        }
        match evidence.computed {
            Some((_, true)) => push(&mut self.announcements, true),
            Some((key, false)) if self.awaited.len() < WINDOW => {
                self.awaited.push_back((key, now));
            }
            Some(_) | None => {}
        }
        if let Some(verdict) = evidence.view {
            if verdict == Verdict::TooLow {
                self.silence_is_right = false;
            }
            push(&mut self.answers, (verdict, evidence.served_right));
        }
        match self.doubt {
            None => self.doubted(),
            Some(_) => self.trusted(),
        }
    }

    fn doubted(&mut self) -> Option<TrustChange> {
        let (cause, wrong, of, what) = self.charge()?;
        let reason = format!("{wrong} of the last {of} {what}");
        self.doubt = Some(reason.clone());
        self.answers.clear();
        self.announcements.clear();
        Some(TrustChange::Doubted { cause, reason })
    }

    /// What there is to hold against the view: the cause, how often, of how many, in words.
    fn charge(&self) -> Option<(DoubtCause, usize, usize, &'static str)> {
        let (too_low, too_high) = (self.count(Verdict::TooLow), self.count(Verdict::TooHigh));
        let answers = self.answers.len();
        if too_low + too_high >= WRONG_TO_DOUBT {
            return Some(if too_low >= too_high {
                let what = "answers reported more cached tokens than its events tell: they are missing, or its tokens are not ours";
                (DoubtCause::TooLow, too_low, answers, what)
            } else {
                let what = "answers reported fewer cached tokens than its events tell: it has dropped blocks without a word";
                (DoubtCause::TooHigh, too_high, answers, what)
            });
        }
        let unannounced = self.unannounced();
        let what = "prompts computed there came in no event: its publisher is silent, or its tokens are not ours";
        (unannounced >= WRONG_TO_DOUBT && !self.silence_is_right).then_some((
            DoubtCause::Unannounced,
            unannounced,
            self.announcements.len(),
            what,
        ))
    }

    fn trusted(&mut self) -> Option<TrustChange> {
        if self.answers.len() < WINDOW || self.count(Verdict::Right) < RIGHT_TO_RETURN {
            return None;
        }
        if self.unannounced() > WINDOW - RIGHT_TO_RETURN {
            // An engine without a prefix cache announces nothing, and what was sent to it is not cached:
            // then the silent view is right and the approximate index is not. Else both are right
            // by what reports taught, which a silent publisher's evictions will prove wrong.
            let served_right = self.answers.iter().filter(|(_, served)| *served).count();
            if served_right > WINDOW - WRONG_TO_DOUBT {
                return None;
            }
            self.silence_is_right = true;
        }
        self.doubt = None;
        self.answers.clear();
        self.announcements.clear();
        Some(TrustChange::Trusted)
    }

    fn count(&self, wanted: Verdict) -> usize {
        let counted = self
            .answers
            .iter()
            .filter(|(verdict, _)| *verdict == wanted);
        counted.count()
    }

    fn unannounced(&self) -> usize {
        self.announcements
            .iter()
            .filter(|announced| !**announced)
            .count()
    }
}

fn push<T>(window: &mut VecDeque<T>, item: T) {
    window.push_back(item);
    if window.len() > WINDOW {
        window.pop_front();
    }
}

#[cfg(test)]
mod tests;
