//! Least queued tokens: `warmpath serve` with `policy: least-queued`, for loads where affinity does not pay.
//!
//! The cache is not looked at for the choice. Costs less than a block apart are equal; then the fewest in flight, then
//! chance, by the code that serves. What counts as queued are uncached tokens, so the cache's state is in it all the same.

use super::choose::{book, least_as_served, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};
use crate::routing::tokens::TokenCount;

pub(super) struct LeastQueued;

impl Policy for LeastQueued {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        let chosen = least_as_served(&ready, asked, |seen| TokenCount::new(seen.queued));
        book(asked, fleet, chosen)
    }
}
