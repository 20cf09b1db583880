//! A publisher says nothing: ought it to have said something? Pure.
//!
//! Whoever computes tokens fills blocks, and each block that becomes full is told of. What a
//! request computes without filling one is less than a block: the rest of its prompt behind
//! what was cached, and its first output. So once an engine has computed more tokens of its
//! own than its requests can have left in unfilled blocks, batches must have come. Prompts that
//! were found in the cache say nothing, and a thousand repetitions of one short prompt neither.
//!
//! A silence that should not be has two causes: the connection is dead without having said so
//! (a peer that vanished, a forgotten entry in a connection table), which a new connection
//! mends; or the publisher is silent by itself, and no view can be kept of such an engine.

use std::time::Duration;

use tokio::time::Instant;

use crate::routing::endpoint::Report;

/// How long nothing must have come, for all but tests. Batches come with the end of each step.
pub const QUIET_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that may have left an unfilled block without being counted: those that were aborted.
const UNCOUNTED_REQUESTS: u64 = 8;

/// Another engine's way to fill blocks may be unlike what was measured, so twice as much is wanted.
const MARGIN: u64 = 2;

/// An engine's work by its own figures, all counted since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// When it was asked.
    at: Instant,
    /// Prompt and output tokens.
    computed: u64,
    /// Those of them that its cache did not hold. An engine may count them before they are computed.
    fresh: u64,
    /// Requests finished.
    finished: u64,
    /// Requests that it has now.
    present: u64,
    /// Tokens a block.
    block_size: u64,
}

impl Work {
    /// What a report that was asked for `at` some time tells; `None` if it leaves something out.
    pub fn of(report: &Report, at: Instant) -> Option<Self> {
        Some(Self {
            at,
            computed: report.computed?,
            fresh: report.fresh?,
            finished: report.finished?,
            present: report.running.saturating_add(report.waiting),
            block_size: u64::from(report.block_size?),
        })
    }
}

/// A silence that should not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue {
    /// Tokens computed meanwhile that no batch told of.
    pub(super) tokens: u64,
    /// How long nothing came.
    pub(super) silence: Duration,
    /// Looked for before in the same silence, and a new connection did not mend it.
    pub(super) again: bool,
}

/// Listens for what does not come.
#[derive(Debug)]
pub(super) struct Quiet {
    patience: Duration,
    /// The last batch, or the beginning.
    heard: Instant,
    /// From when on tokens are counted: the last batch, or when a silence was last found overdue.
    since: Instant,
    /// The first figures since.
    base: Option<Work>,
    found: bool,
}

impl Quiet {
    pub(super) fn new(patience: Duration, now: Instant) -> Self {
        Self {
            patience,
            heard: now,
            since: now,
            base: None,
            found: false,
        }
    }

    /// A batch came.
    pub(super) fn heard(&mut self, now: Instant) {
        *self = Self::new(self.patience, now);
    }

    /// How often a follower should look.
    pub(super) fn look_every(&self) -> Duration {
        self.patience / 2
    }

    /// Figures asked for so soon after a batch may still lack what that batch told of.
    fn settled(&self) -> Instant {
        self.since + self.patience / 10
    }

    /// Whether the silence up to `now` should not be, by the figures last reported. Tokens are then counted anew.
    pub(super) fn look(&mut self, work: Option<Work>, now: Instant) -> Option<Overdue> {
        let work = work?;
        let Some(base) = self.base else {
            if work.at >= self.settled() {
                self.base = Some(work);
            }
            return None;
        };
        let grown = |of: fn(&Work) -> u64| of(&work).checked_sub(of(&base));
        let (Some(computed), Some(fresh), Some(finished)) = (
            grown(|work| work.computed),
            grown(|work| work.fresh),
            grown(|work| work.finished),
        ) else {
            // Another process counts from 0 again.
            self.base = Some(work);
            return None;
        };
        let tokens = computed.min(fresh);
        let requests = finished
            .saturating_add(work.present)
            .saturating_add(UNCOUNTED_REQUESTS);
        let unfilled = requests
            .saturating_mul(work.block_size)
            .saturating_mul(MARGIN);
        if now < self.since + self.patience || tokens <= unfilled {
            return None;
        }
        let again = std::mem::replace(&mut self.found, true);
        self.since = now;
        self.base = None;
        Some(Overdue {
            tokens,
            silence: now - self.heard,
            again,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Engine {
        start: Instant,
        report: Report,
    }

    impl Engine {
        fn new() -> Self {
            Self {
                start: Instant::now(),
                report: Report {
                    block_size: Some(16),
                    computed: Some(50_000),
                    fresh: Some(10_000),
                    finished: Some(100),
                    ..Report::default()
                },
            }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// So many requests, each of so many tokens of which so many were cached.
        fn serves(&mut self, requests: u64, tokens: u64, cached: u64) {
            let add = |counter: &mut Option<u64>, n: u64| *counter = counter.map(|was| was + n);
            add(&mut self.report.computed, requests * tokens);
            add(&mut self.report.fresh, requests * (tokens - cached));
            add(&mut self.report.finished, requests);
        }

        fn work(&self, seconds: u64) -> Option<Work> {
            Work::of(&self.report, self.at(seconds))
        }
    }

    #[test]
    fn an_engine_that_computes_new_prompts_and_tells_of_none_is_overdue_after_ten_seconds() {
        let mut engine = Engine::new();
        let mut quiet = Quiet::new(QUIET_TIMEOUT, engine.start);
        assert_eq!(quiet.look(engine.work(0), engine.at(1)), None);
        assert_eq!(quiet.look(engine.work(2), engine.at(2)), None);
        engine.serves(1, 2000, 1000);
        assert_eq!(quiet.look(engine.work(9), engine.at(9)), None, "too soon");
        let overdue = Overdue {
            tokens: 1000,
            silence: Duration::from_secs(11),
            again: false,
        };
        assert_eq!(quiet.look(engine.work(11), engine.at(11)), Some(overdue));
        assert_eq!(quiet.look(engine.work(13), engine.at(13)), None);
        engine.serves(10, 100, 0);
        let later = quiet.look(engine.work(22), engine.at(22)).unwrap();
        assert_eq!((later.tokens, later.again), (1000, true));
        assert_eq!(later.silence, Duration::from_secs(22));
        quiet.heard(engine.at(23));
        assert_eq!(quiet.look(engine.work(25), engine.at(25)), None);
        engine.serves(1, 2000, 1000);
        assert!(!quiet.look(engine.work(40), engine.at(40)).unwrap().again);
    }

    #[test]
    fn cached_prompts_and_short_ones_again_and_again_need_no_batches() {
        let mut engine = Engine::new();
        let mut quiet = Quiet::new(QUIET_TIMEOUT, engine.start);
        quiet.look(engine.work(2), engine.at(2));
        for second in 3..100 {
            engine.serves(50, 5829, 5824);
            engine.serves(50, 16, 0);
            assert_eq!(quiet.look(engine.work(second), engine.at(second)), None);
        }
    }

    #[test]
    fn tokens_counted_before_they_are_computed_are_not_missed_yet() {
        let mut engine = Engine::new();
        let mut quiet = Quiet::new(QUIET_TIMEOUT, engine.start);
        quiet.look(engine.work(2), engine.at(2));
        // A long prompt was scheduled and its one step takes a minute.
        engine.report.fresh = engine.report.fresh.map(|was| was + 30_000);
        engine.report.running = 1;
        assert_eq!(quiet.look(engine.work(60), engine.at(60)), None);
    }

    #[test]
    fn figures_of_another_process_are_no_growth_and_missing_ones_tell_nothing() {
        let mut engine = Engine::new();
        let mut quiet = Quiet::new(QUIET_TIMEOUT, engine.start);
        quiet.look(engine.work(2), engine.at(2));
        engine.report.computed = Some(3000);
        engine.report.fresh = Some(30_000);
        assert_eq!(quiet.look(engine.work(20), engine.at(20)), None);
        engine.report.finished = None;
        assert_eq!(engine.work(21), None);
        assert_eq!(quiet.look(None, engine.at(22)), None);
    }
}
