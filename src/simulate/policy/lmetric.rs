//! LMetric (arXiv 2603.15202, March 2026; llm-d's `lmetric-scorer`): least uncached tokens x (requests in flight + 1).
//!
//! Queued tokens are not in it, and nothing is to be tuned. Equals by chance. Idealised: tokens, where llm-d counts
//! whole blocks, so that a prompt cached whole costs nothing there, however busy the replica.

use super::choose::{book, least, ready, uncached};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

pub(super) struct LMetric;

impl Policy for LMetric {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey(asked));
        let chosen = least(&ready, asked.chance, |seen| {
            uncached(asked, seen).saturating_mul(u64::from(seen.in_flight) + 1)
        });
        book(asked, fleet, chosen)
    }
}
