//! Which data-parallel rank computes a request? The one that its header pins, else the least busy: what is cached
//! where plays no part in that, as in vLLM.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::driver::Command;
use super::fault::Faults;
use super::observed::Observed;

/// The request header that pins a rank.
const PIN: &str = "x-data-parallel-rank";

/// A header that pins a rank this server does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("data_parallel_rank {pinned} is out of range [0, {ranks}).")]
pub(super) struct OutOfRange {
    pinned: i64,
    ranks: usize,
}

/// One engine core of a server, from outside.
pub(super) struct Rank {
    /// Its number among all ranks of the model, as events and metrics tell it.
    pub(super) number: u32,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) observed: Arc<Mutex<Observed>>,
    pub(super) faults: Arc<Faults>,
    /// `tcp://…` of the live events and of their replay.
    pub(super) event_addresses: Option<(String, Option<String>)>,
    /// Answers that are not complete.
    pub(super) in_flight: InFlight,
}

/// Each clone stands for an answer that is not complete; the rank itself holds one more.
#[derive(Default)]
pub(super) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for InFlight {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The last one leaves nobody who could read the number.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rank {
    /// Answers that are not complete.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.count()
    }
}

/// All ranks of a server; there is at least one.
pub(super) struct Ranks {
    first: Rank,
    others: Vec<Rank>,
    /// Where the search for the least busy begins, so that equals take turns.
    turn: AtomicUsize,
}

impl Ranks {
    pub(super) fn new(first: Rank, others: Vec<Rank>) -> Self {
        Self {
            first,
            others,
            turn: AtomicUsize::new(0),
        }
    }

    pub(super) const fn first(&self) -> &Rank {
        &self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Rank> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// The rank of a number among all ranks of the model.
    pub(super) fn numbered(&self, number: u32) -> Option<&Rank> {
        self.iter().find(|rank| rank.number == number)
    }

    /// Where a request with these headers is computed.
    ///
    /// # Errors
    /// When it pins a rank that is not here. Ranks are counted from 0 within the server, whatever their numbers.
    pub(super) fn choose(&self, headers: &HeaderMap) -> Result<&Rank, OutOfRange> {
        if let Some(pinned) = pinned(headers) {
            let at = usize::try_from(pinned).ok();
            return at.and_then(|at| self.iter().nth(at)).ok_or(OutOfRange {
                pinned,
                ranks: self.len(),
            });
        }
        if self.others.is_empty() {
            return Ok(&self.first);
        }
        let start = self.turn.fetch_add(1, Ordering::Relaxed) % self.len();
        let in_turn = self.iter().cycle().skip(start).take(self.len());
        let least = in_turn.min_by_key(|rank| rank.in_flight.count());
        Ok(least.unwrap_or(&self.first))
    }
}

/// What is no whole number pins nothing: vLLM ignores it without a word.
fn pinned(headers: &HeaderMap) -> Option<i64> {
    headers.get(PIN)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(count: u32) -> Ranks {
        let rank = |number| Rank {
            number: 4 + number,
            commands: mpsc::channel(1).0,
            observed: Arc::default(),
            faults: Arc::default(),
            event_addresses: None,
            in_flight: InFlight::default(),
        };
        Ranks::new(rank(0), (1..count).map(rank).collect())
    }

    fn pin(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(PIN.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn a_pinned_rank_is_counted_within_the_server() {
        let ranks = ranks(2);
        for (value, number) in [("0", 4), ("1", 5), (" +1 ", 5)] {
            assert_eq!(
                ranks.choose(&pin(value)).map(|rank| rank.number),
                Ok(number)
            );
        }
        for pinned in ["2", "-1"] {
            let refused = ranks.choose(&pin(pinned)).map(|rank| rank.number);
            let text = format!("data_parallel_rank {pinned} is out of range [0, 2).");
            assert_eq!(refused.map_err(|error| error.to_string()), Err(text));
        }
    }

    #[test]
    fn equally_busy_ranks_take_turns_and_a_busier_one_is_passed_over() {
        let ranks = ranks(3);
        let choose = |headers: &HeaderMap| ranks.choose(headers).unwrap().number;
        let turns = [(); 4].map(|()| choose(&HeaderMap::new()));
        assert_eq!(turns, [4, 5, 6, 4]);
        let busy = ranks.numbered(5).unwrap().in_flight.clone();
        let turns = [(); 4].map(|()| choose(&pin("any")));
        assert_eq!(turns, [6, 6, 4, 6]);
        drop(busy);
        assert_eq!([(); 3].map(|()| choose(&HeaderMap::new())), [6, 4, 5]);
    }
}
