//! Least queued tokens: `warmpath serve` with `policy: least-queued`, for loads where affinity does not pay.
//!
//! The cache is not looked at for the choice. Costs less than a block apart are equal; then the fewest in flight, then
//! chance, by the code that serves. What counts as queued are uncached tokens, so the cache's state is in it all the same.

use super::choose::{book, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::pick::{Runner, best, tie_width};
use crate::routing::router::{Decision, Refusal};
use crate::routing::tokens::TokenCount;

pub(super) struct LeastQueued;

impl Policy for LeastQueued {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        let runners = ready.iter().map(|seen| Runner {
            place: seen.replica,
            cost: TokenCount::new(seen.queued),
            in_flight: seen.in_flight,
        });
        let width = tie_width(std::iter::once(asked.block_size));
        let chosen = best(runners.collect(), 1, width, asked.chance, |_, _| true);
        book(asked, fleet, chosen.first().map(|runner| runner.place))
    }
}
