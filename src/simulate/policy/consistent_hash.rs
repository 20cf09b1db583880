//! Consistent hashing of the prefix, plain and with bounded load.
//!
//! The key is the prefix that the workload names (as if clients sent it in a header), else the first block, else, for a
//! prompt without a whole block, the session. Each replica has 160 places on a ring, as in ketama; the key goes to the
//! next place of a ready one. With bounded load (Mirrokni et al. 2016; Envoy's `hash_balance_factor` and HAProxy's
//! `hash-balance-factor` 125) a replica is passed over that would then have more than 1.25 times the mean in flight.
//!
//! Idealised: the key is exactly what is shared. Peers hash what they have: a header, the first 256 tokens (smg's
//! `prefix_hash`), or a user.

use super::choose::{book, ready};
use super::{Asked, Context, Knowledge, Policy, Seen};
use crate::routing::router::{Decision, Refusal};

/// Places on the ring for each replica. The load of a replica then varies by about 1 / sqrt(160) = 8 %.
const PLACES: usize = 160;

/// Whether load matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// No.
    None,
    /// At most 1.25 times the mean.
    OverMean,
}

pub(super) struct ConsistentHash {
    /// Places and whose they are, in order.
    ring: Vec<(u64, usize)>,
    bound: Bound,
}

impl ConsistentHash {
    pub(super) fn new(context: &Context, bound: Bound) -> Self {
        let place = |replica: usize, n: usize| {
            let name = (replica * PLACES + n) as u64;
            (stir(stir(name) ^ context.seed), replica)
        };
        let mut ring: Vec<_> = (0..context.replicas)
            .flat_map(|replica| (0..PLACES).map(move |n| place(replica, n)))
            .collect();
        ring.sort_unstable();
        Self { ring, bound }
    }

    /// From the key's place on, the first whose replica may be taken.
    fn find(&self, key: u64, may: impl Fn(usize) -> bool) -> Option<usize> {
        let from = self.ring.partition_point(|&(place, _)| place < key);
        let (before, after) = self.ring.split_at(from);
        let mut places = after.iter().chain(before);
        places.find_map(|&(_, replica)| may(replica).then_some(replica))
    }
}

impl Policy for ConsistentHash {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        let most = match self.bound {
            Bound::None => u64::MAX,
            Bound::OverMean => bound(&ready),
        };
        let may = |replica: usize| {
            ready
                .iter()
                .any(|seen| seen.replica == replica && u64::from(seen.in_flight) < most)
        };
        book(asked, fleet, self.find(key(asked), may))
    }
}

/// Requests that none may have more of: 1.25 times the mean, this one included, rounded up. Somebody always has fewer.
fn bound(ready: &[Seen]) -> u64 {
    let all: u64 = ready.iter().map(|seen| u64::from(seen.in_flight)).sum();
    (5 * (all + 1)).div_ceil(4 * ready.len().max(1) as u64)
}

fn key(asked: &Asked<'_>) -> u64 {
    let first = asked.keys.first().map(|key| key.0);
    let name = asked.arrival.prefix.or(first);
    stir(name.unwrap_or(asked.arrival.session))
}

/// Spreads a name over the ring (SplitMix64).
const fn stir(name: u64) -> u64 {
    let mut z = name.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
