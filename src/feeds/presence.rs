//! Since when has the engine's process been the one that runs now? Pure.
//!
//! Two things tell of a restart. The state reports see the engine *away*: a refused connection
//! proves at once that no process listens, and so does nothing else by itself, for an engine that
//! hangs or a proxy before it that says 503 looks the same; three of those in a row are a silence.
//! The orchestrator's *count* of restarts proves that there was one, but not when, and comes
//! seconds after the new process began, or before it answers.
//!
//! So a refusal ends what came before it by itself, a silence only together with a count, and a
//! count that finds neither ends all up to now: too little foreseen costs a hit, too much would
//! send requests after blocks that are not there. One absence and one count belong together,
//! whichever comes first. What was sent after the engine was last seen away is never ended by a
//! count that comes late.
//!
//! Engines need seconds to start and are asked every two seconds at the least, so that their
//! absence is seen (by luck where there is no state report: such an engine is asked twice a minute);
//! only a process that is back within one interval is not.

use std::time::Instant;

/// So many failures in a row are a silence; fewer are a hiccup, which a busy machine has.
const FAILURES_OF_SILENCE: u32 = 3;

/// What was seen of one engine's comings and goings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// It answered once: before that it was away because it had not started, and no count tells of that.
    met: bool,
    /// In a row.
    failures: u32,
    away: Option<Absence>,
    /// When it was last asked in vain in the last absence that is over.
    gone_until: Option<Instant>,
    /// Refusals that are over and that no count told of yet. Counts come in order.
    owed: u32,
    /// The last absence was a mere silence, and no count told of it.
    doubtful: bool,
    /// A count came before any absence that it could tell of.
    early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Absence {
    /// When it was last asked in vain.
    last: Instant,
    /// Nobody listened.
    refused: bool,
    /// A count told of it.
    told: bool,
}

impl Presence {
    /// A question asked at `asked` got no answer; `refused`: nobody listened.
    pub fn failed(&mut self, asked: Instant, refused: bool) {
        self.failures = self.failures.saturating_add(1);
        if let Some(absence) = &mut self.away {
            absence.last = asked;
            absence.refused |= refused;
        } else if refused || self.failures >= FAILURES_OF_SILENCE {
            self.doubtful = false;
            self.away = Some(Absence {
                last: asked,
                refused,
                told: std::mem::take(&mut self.early),
            });
        }
    }

    /// It has answered before.
    pub const fn is_met(&self) -> bool {
        self.met
    }

    /// It answered. The moment of which is known that another process has run only since then,
    /// if it was away.
    pub fn answered(&mut self) -> Option<Instant> {
        self.failures = 0;
        let met = std::mem::replace(&mut self.met, true);
        let absence = self.away.take()?;
        self.gone_until = Some(absence.last);
        match (absence.told || !met, absence.refused) {
            (true, _) => {}
            (false, true) => self.owed = self.owed.saturating_add(1),
            (false, false) => self.doubtful = true,
        }
        (absence.refused || absence.told).then_some(absence.last)
    }

    /// The count of restarts rose. The same moment, if it is known by now.
    pub fn counted(&mut self, now: Instant) -> Option<Instant> {
        if self.owed > 0 {
            self.owed -= 1;
        } else if let Some(absence) = &mut self.away {
            absence.told = true;
        } else if !std::mem::take(&mut self.doubtful) {
            self.early = true;
            return Some(now);
        }
        match self.away {
            Some(_) => None,
            None => self.gone_until,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }
    }

    /// With an engine that has answered.
    fn clock() -> (Clock, Presence) {
        let mut presence = Presence::default();
        assert_eq!(presence.answered(), None);
        (Clock(Instant::now()), presence)
    }

    #[test]
    fn a_refusal_ends_what_came_before_it_when_the_engine_is_back() {
        let (clock, mut presence) = clock();
        presence.failed(clock.at(2), true);
        presence.failed(clock.at(4), true);
        assert_eq!(presence.answered(), Some(clock.at(4)));
        assert_eq!(presence.answered(), None);
    }

    #[test]
    fn a_late_count_ends_nothing_that_came_after_the_absence() {
        let (clock, mut presence) = clock();
        presence.failed(clock.at(2), true);
        presence.answered();
        assert_eq!(presence.counted(clock.at(40)), Some(clock.at(2)));
        // The next restart was seen by nobody.
        assert_eq!(presence.counted(clock.at(90)), Some(clock.at(90)));
    }

    #[test]
    fn a_count_never_tells_of_the_wait_for_the_first_start() {
        for refused in [true, false] {
            let (clock, _) = clock();
            let mut presence = Presence::default();
            for seconds in 0..3 {
                presence.failed(clock.at(seconds), refused);
            }
            presence.answered();
            // A restart that nobody saw.
            assert_eq!(presence.counted(clock.at(90)), Some(clock.at(90)));
        }
    }

    #[test]
    fn a_silence_is_a_restart_only_if_a_count_says_so() {
        let (clock, mut presence) = clock();
        for seconds in 0..3 {
            presence.failed(clock.at(seconds), false);
        }
        assert_eq!(presence.answered(), None);
        assert_eq!(presence.counted(clock.at(9)), Some(clock.at(2)));
        for seconds in 10..13 {
            presence.failed(clock.at(seconds), false);
        }
        assert_eq!(presence.counted(clock.at(13)), None);
        presence.failed(clock.at(14), false);
        assert_eq!(presence.answered(), Some(clock.at(14)));
    }

    #[test]
    fn a_hiccup_is_nothing() {
        let (clock, mut presence) = clock();
        presence.failed(clock.at(1), false);
        presence.failed(clock.at(2), false);
        assert_eq!(presence.answered(), None);
        presence.failed(clock.at(3), false);
        assert_eq!(presence.answered(), None);
        assert_eq!(presence.counted(clock.at(9)), Some(clock.at(9)));
    }

    #[test]
    fn a_count_that_comes_before_the_absence_is_seen_belongs_to_it() {
        let (clock, mut presence) = clock();
        assert_eq!(presence.counted(clock.at(1)), Some(clock.at(1)));
        presence.failed(clock.at(2), true);
        assert_eq!(presence.answered(), Some(clock.at(2)));
        assert_eq!(
            presence.counted(clock.at(50)),
            Some(clock.at(50)),
            "a second restart, which nobody saw"
        );
    }

    #[test]
    fn counts_of_a_crash_loop_belong_to_one_absence() {
        let (clock, mut presence) = clock();
        for seconds in 0..5 {
            presence.failed(clock.at(seconds), true);
            assert_eq!(presence.counted(clock.at(seconds)), None);
        }
        assert_eq!(presence.answered(), Some(clock.at(4)));
    }

    proptest! {
        /// Restarts that are seen, with counts that come in order but up to several restarts
        /// late: what was sent before the last refusal is over when the engine is back, and no
        /// count ever ends what was sent after it.
        #[test]
        fn seen_restarts_end_the_past_and_never_what_is_fresh(
            steps in prop::collection::vec((prop::bool::weighted(0.4), prop::bool::weighted(0.3)), 1..200),
        ) {
            let (clock, mut presence) = clock();
            let (mut ended, mut last_refusal, mut uncounted) = (None, None, 0);
            let mut away = false;
            for (time, (refuses, counts)) in steps.into_iter().enumerate() {
                let now = clock.at(time as u64);
                if refuses {
                    presence.failed(now, true);
                    last_refusal = Some(now);
                    uncounted += u32::from(!away);
                } else {
                    ended = presence.answered().max(ended);
                }
                away = refuses;
                if counts && uncounted > 0 {
                    uncounted -= 1;
                    ended = presence.counted(now).max(ended);
                }
                if !away {
                    prop_assert_eq!(ended, last_refusal);
                }
            }
        }
    }
}
