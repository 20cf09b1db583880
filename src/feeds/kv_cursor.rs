//! Sequence numbers of one event source: contiguous, gap, duplicate, restart.
//!
//! A publisher numbers its batches from 0 and never sends a number twice on its live
//! socket. A replay sends old numbers again, so two marks are kept: what is covered
//! (by either way), and the last number that came live. Only the live ones going
//! backwards tell of a restart; a live number that a replay already covered is a
//! duplicate.

/// What one number means for the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first number since the beginning, a restart or a loss: nothing to compare it with.
    Initial,
    /// The next one.
    Contiguous,
    /// Already covered.
    Duplicate,
    /// Numbers from `expected` to before `got` are missing. The cursor has not moved.
    Gap {
        /// The number that should have come.
        expected: u64,
        /// The number that came.
        got: u64,
    },
    /// Another life of the publisher began. The cursor has not moved.
    Restarted,
}

/// Where one source stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The highest number covered, live or replayed.
    last: Option<u64>,
    /// The last number on the present connection's live socket.
    last_live: Option<u64>,
}

impl Cursor {
    /// The highest number covered.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// A batch came on the live socket. On `Initial` and `Contiguous` it is to be applied.
    pub fn observe_live(&mut self, seq: u64) -> Step {
        // Equal is backwards as well: one life never sends a number twice.
        if self.last_live.is_some_and(|live| seq <= live) {
            return Step::Restarted;
        }
        let step = self.step(seq);
        if !matches!(step, Step::Gap { .. }) {
            self.last_live = Some(seq);
        }
        step
    }

    /// A batch came out of a replay. On `Initial` and `Contiguous` it is to be applied.
    pub fn observe_replayed(&mut self, seq: u64) -> Step {
        self.step(seq)
    }

    fn step(&mut self, seq: u64) -> Step {
        let step = match self.last {
            None => Step::Initial,
            Some(last) if seq <= last => Step::Duplicate,
            Some(last) if seq - last == 1 => Step::Contiguous,
            Some(last) => Step::Gap {
                expected: last.saturating_add(1),
                got: seq,
            },
        };
        if matches!(step, Step::Initial | Step::Contiguous) {
            self.last = Some(seq);
        }
        step
    }

    /// The connection was lost: the next live number may be any.
    pub fn disconnected(&mut self) {
        self.last_live = None;
    }

    /// What was covered counts no more (the view was cleared).
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn live_numbers_in_order_are_contiguous() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.observe_live(7), Step::Initial);
        assert_eq!(cursor.observe_live(8), Step::Contiguous);
        assert_eq!(cursor.last(), Some(8));
    }

    #[test]
    fn a_gap_does_not_move_the_cursor_so_that_it_can_be_mended() {
        let mut cursor = Cursor::default();
        cursor.observe_live(0);
        let gap = Step::Gap {
            expected: 1,
            got: 3,
        };
        assert_eq!(cursor.observe_live(3), gap);
        assert_eq!(cursor.observe_replayed(1), Step::Contiguous);
        assert_eq!(cursor.observe_replayed(2), Step::Contiguous);
        assert_eq!(cursor.observe_live(3), Step::Contiguous);
    }

    #[test]
    fn live_numbers_that_a_replay_covered_are_duplicates_and_not_a_restart() {
        let mut cursor = Cursor::default();
        for seq in 0..=5 {
            cursor.observe_replayed(seq);
        }
        assert_eq!(cursor.observe_live(3), Step::Duplicate);
        assert_eq!(cursor.observe_live(5), Step::Duplicate);
        assert_eq!(cursor.observe_live(6), Step::Contiguous);
    }

    #[test]
    fn a_live_number_at_or_below_the_last_live_one_is_a_restart() {
        for seq in [0, 4, 5] {
            let mut cursor = Cursor::default();
            cursor.observe_live(5);
            assert_eq!(cursor.observe_live(seq), Step::Restarted);
        }
    }

    #[test]
    fn after_a_reset_the_new_life_starts_over() {
        let mut cursor = Cursor::default();
        cursor.observe_live(5);
        assert_eq!(cursor.observe_live(0), Step::Restarted);
        cursor.reset();
        assert_eq!(cursor.observe_live(0), Step::Initial);
        assert_eq!(cursor.observe_live(1), Step::Contiguous);
    }

    #[test]
    fn a_lost_connection_forgets_the_live_number_but_not_what_is_covered() {
        let mut cursor = Cursor::default();
        cursor.observe_live(5);
        cursor.disconnected();
        assert_eq!(cursor.observe_live(5), Step::Duplicate);
        assert_eq!(cursor.last(), Some(5));
    }

    #[test]
    fn the_largest_number_is_no_overflow() {
        let mut cursor = Cursor::default();
        cursor.observe_live(u64::MAX - 1);
        assert_eq!(cursor.observe_live(u64::MAX), Step::Contiguous);
        assert_eq!(cursor.observe_live(u64::MAX), Step::Restarted);
    }

    proptest! {
        /// Whatever a publisher of one life does with its two sockets, every number is applied
        /// once and in order, and no restart is seen.
        #[test]
        fn one_life_is_applied_once_and_in_order(
            lost in proptest::collection::vec(any::<bool>(), 1..200),
            first in 0_u64..1000,
        ) {
            let mut cursor = Cursor::default();
            let mut applied = Vec::new();
            cursor.observe_replayed(first);
            applied.push(first);
            for (n, lost) in lost.iter().enumerate() {
                let seq = first + 1 + n as u64;
                if *lost {
                    continue;
                }
                if let Step::Gap { expected, .. } = cursor.observe_live(seq) {
                    // The ring answers beyond what came live, as real ones do.
                    for seq in expected - 1..=seq {
                        if cursor.observe_replayed(seq) == Step::Contiguous {
                            applied.push(seq);
                        }
                    }
                    prop_assert_eq!(cursor.observe_live(seq), Step::Duplicate);
                } else {
                    applied.push(seq);
                }
            }
            prop_assert!(applied.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }
}
