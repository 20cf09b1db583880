//! What have the rules in common? Who may be chosen, the least of a cost, and the booking.

use fastrand::Rng;

use super::{Asked, Knowledge, Seen};
use crate::routing::pick::{Runner, best, tie_width};
use crate::routing::router::{Decision, Refusal};
use crate::routing::tokens::TokenCount;

/// Those that may be chosen, in order of their numbers.
pub(super) fn ready(seen: Vec<Seen>) -> Vec<Seen> {
    let mut seen = seen;
    seen.retain(|seen| seen.ready);
    seen
}

/// This request's tokens that a replica would have to compute.
pub(super) fn uncached(asked: &Asked<'_>, seen: &Seen) -> u64 {
    asked.prepared.prompt.get().saturating_sub(seen.cached)
}

/// The share of this request's whole blocks that a replica has, 0 to 1; 0 for a request without any.
pub(super) fn matched_share(asked: &Asked<'_>, seen: &Seen) -> f64 {
    let whole = asked.keys.len() as u64 * u64::from(asked.block_size);
    if whole == 0 {
        return 0.0;
    }
    seen.cached.min(whole) as f64 / whole as f64
}

/// The replica with the least cost; equals are drawn from by chance.
pub(super) fn least<T: PartialOrd>(
    from: &[Seen],
    chance: u64,
    cost: impl Fn(&Seen) -> T,
) -> Option<usize> {
    let mut best: Option<(T, usize)> = None;
    let mut equals = 0_usize;
    let mut rng = Rng::with_seed(chance);
    for seen in from {
        let cost = cost(seen);
        let (better, equal) = best
            .as_ref()
            .map_or((true, false), |(least, _)| (cost < *least, cost == *least));
        equals = if better {
            1
        } else {
            equals + usize::from(equal)
        };
        // The n-th of the equals takes the place with a chance of 1 in n: each then has it in the end with the same.
        if better || (equal && rng.usize(0..equals) == 0) {
            best = Some((cost, seen.replica));
        }
    }
    best.map(|(_, replica)| replica)
}

/// The replica with the least cost by the code that serves: costs less than a block apart are equal, then the fewest in
/// flight, then chance.
pub(super) fn least_as_served(
    from: &[Seen],
    asked: &Asked<'_>,
    cost: impl Fn(&Seen) -> TokenCount,
) -> Option<usize> {
    let runners = from.iter().map(|seen| Runner {
        place: seen.replica,
        cost: cost(seen),
        in_flight: seen.in_flight,
    });
    let width = tie_width(std::iter::once(asked.block_size));
    let chosen = best(runners.collect(), 1, width, asked.chance, |_, _| true);
    chosen.first().map(|runner| runner.place)
}

/// Books the request there.
pub(super) fn book(
    asked: &Asked<'_>,
    fleet: &dyn Knowledge,
    replica: Option<usize>,
) -> Result<Decision, Refusal> {
    fleet.book(asked, replica.ok_or(Refusal::NothingReady)?)
}
