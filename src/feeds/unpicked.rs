//! How many requests has an engine finished, and to how many of them can no pick of ours have led? Pure.
//!
//! A gateway that goes past the picker (it fails open, a filter takes the picker out, a Service stands beside the pool)
//! shows nowhere but at the engines. Their counts alone do not tell: one request of ours may finish as several (`n`,
//! several prompts) or as none (its client left). What does tell is time: an engine that finishes requests while we
//! have none there, and had none before that could still have been running, serves somebody else.

use std::time::Duration;

use tokio::time::Instant;

use crate::routing::endpoint::{Ours, Report};

/// Reports follow the engine by a step: one that shows it empty so soon after our last request proves nothing.
const GRACE: Duration = Duration::from_secs(1);

/// An engine that is never seen empty has finished by then what we had sent: longer decodes are not known.
const LONGEST_DECODE: Duration = Duration::from_secs(600);

/// What one report adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown {
    /// Requests finished since the report before.
    pub(super) finished: u64,
    /// Of these, requests to which no pick of ours can have led.
    pub(super) unpicked: u64,
}

/// What reports have said of one endpoint so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    finished: Option<u64>,
    ours: Ours,
    /// Since when every look found nothing of ours.
    quiet_since: Option<Instant>,
    /// Nothing that the engine has can be ours.
    foreign: bool,
}

impl Tally {
    /// Takes a report, what we had there right after it came, and when that was. `None` when it has no count.
    ///
    /// The first count is where counting begins; one that is lower than the last is a restarted engine's.
    pub(super) fn take(&mut self, report: &Report, ours: Ours, now: Instant) -> Option<Grown> {
        let was_foreign = self.foreign;
        self.judge(report, ours, now);
        let now_finished = report.finished?;
        let finished = match self.finished.replace(now_finished) {
            None => 0,
            Some(before) => now_finished.checked_sub(before).unwrap_or(now_finished),
        };
        // The report that proves the engine empty of ours may still count what was.
        let unpicked = if was_foreign && self.foreign {
            finished
        } else {
            0
        };
        Some(Grown { finished, unpicked })
    }

    fn judge(&mut self, report: &Report, ours: Ours, now: Instant) {
        let before = std::mem::replace(&mut self.ours, ours);
        if !ours.idle || ours.booked != before.booked {
            self.foreign = false;
            self.quiet_since = None;
        }
        if !ours.idle {
            return;
        }
        let quiet = now.duration_since(*self.quiet_since.get_or_insert(now));
        self.foreign |= (!report.is_busy() && quiet >= GRACE) || quiet >= LONGEST_DECODE;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE: Ours = Ours {
        booked: 0,
        idle: true,
    };

    fn report(finished: u64, running: u64) -> Report {
        Report {
            finished: Some(finished),
            running,
            ..Report::default()
        }
    }

    /// Plays `(second, finished, running, ours)`; what each adds.
    fn play(looks: &[(u64, u64, u64, Ours)]) -> Vec<(u64, u64)> {
        let mut tally = Tally::default();
        let began = Instant::now();
        let take = |&(second, finished, running, ours): &(u64, u64, u64, Ours)| {
            let at = began + Duration::from_secs(second);
            let grown = tally.take(&report(finished, running), ours, at).unwrap();
            (grown.finished, grown.unpicked)
        };
        looks.iter().map(take).collect()
    }

    #[test]
    fn what_an_engine_finishes_past_us_is_counted_once_it_was_seen_empty() {
        let looks = [
            (0, 1_000, 0, IDLE),
            (2, 1_000, 0, IDLE),
            (4, 1_005, 3, IDLE),
            (6, 1_008, 0, IDLE),
        ];
        assert_eq!(play(&looks), [(0, 0), (0, 0), (5, 5), (3, 3)]);
    }

    #[test]
    fn what_may_be_ours_is_not() {
        let flying = Ours {
            booked: 1,
            idle: false,
        };
        let landed = Ours {
            booked: 1,
            idle: true,
        };
        let looks = [
            (0, 0, 0, IDLE),
            (2, 0, 0, IDLE),
            // Ours came: what ends now may be ours, however much it is (n, several prompts).
            (4, 2, 1, flying),
            (6, 6, 1, landed),
            // It may go on computing where we are shown no response.
            (8, 7, 1, landed),
            (10, 8, 0, landed),
            // From here on, nothing is.
            (12, 9, 0, landed),
            // A whole request of ours between two looks.
            (
                14,
                10,
                0,
                Ours {
                    booked: 2,
                    ..landed
                },
            ),
        ];
        let unpicked: Vec<_> = play(&looks)
            .into_iter()
            .map(|(_, unpicked)| unpicked)
            .collect();
        assert_eq!(unpicked, [0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn an_engine_that_is_never_empty_is_somebody_elses_after_the_longest_decode() {
        let looks = [
            (0, 0, 9, IDLE),
            (599, 50, 9, IDLE),
            (600, 60, 9, IDLE),
            (602, 75, 9, IDLE),
        ];
        assert_eq!(play(&looks), [(0, 0), (50, 0), (10, 0), (15, 15)]);
    }

    #[test]
    fn a_restarted_engine_adds_what_it_has_finished_since() {
        let looks = [
            (0, 100, 0, IDLE),
            (2, 110, 0, IDLE),
            (4, 3, 0, IDLE),
            (6, 4, 0, IDLE),
        ];
        assert_eq!(play(&looks), [(0, 0), (10, 0), (3, 3), (1, 1)]);
    }

    #[test]
    fn a_page_without_the_count_adds_nothing_but_still_tells_that_the_engine_is_empty() {
        let mut tally = Tally::default();
        let began = Instant::now();
        assert_eq!(tally.take(&Report::default(), IDLE, began), None);
        let later = began + Duration::from_secs(2);
        assert_eq!(tally.take(&Report::default(), IDLE, later), None);
        let first = tally.take(&report(7, 0), IDLE, later).unwrap();
        assert_eq!((first.finished, first.unpicked), (0, 0));
    }

    proptest! {
        #[test]
        fn no_request_of_ours_is_ever_counted_and_none_is_counted_twice(
            // Each: seconds until then, whether we are asked for one, whether one of ours ends, others that end.
            story in prop::collection::vec((1_u64..30, any::<bool>(), any::<bool>(), 0_u64..5), 0..40),
            n in 1_u64..4,
        ) {
            let mut tally = Tally::default();
            let began = Instant::now();
            let (mut at, mut finished, mut flying, mut booked, mut others) = (0, 0, 0_u64, 0, 0);
            let (mut total, mut unpicked) = (0, 0);
            tally.take(&report(0, 0), IDLE, began);
            for (seconds, begins, ends, foreign) in story {
                at += seconds;
                if begins {
                    booked += 1;
                    flying += 1;
                }
                if ends && flying > 0 {
                    flying -= 1;
                    finished += n;
                }
                finished += foreign;
                others += foreign;
                let ours = Ours { booked, idle: flying == 0 };
                let at = began + Duration::from_secs(at);
                let grown = tally.take(&report(finished, flying), ours, at).unwrap();
                total += grown.finished;
                unpicked += grown.unpicked;
                prop_assert!(grown.unpicked <= foreign);
            }
            prop_assert_eq!(total, finished);
            prop_assert!(unpicked <= others);
        }
    }
}
