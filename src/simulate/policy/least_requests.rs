//! Least requests: the fewest in flight.
//!
//! Envoy's `LEAST_REQUEST` with full knowledge instead of two draws (those are `power-of-two`), and llm-d's
//! `active-request-scorer` alone. Idealised: one picker books all requests, so the counts are exact.

use super::choose::{book, least, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

pub(super) struct LeastRequests;

impl Policy for LeastRequests {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        book(
            asked,
            fleet,
            least(&ready, asked.chance, |seen| seen.in_flight),
        )
    }
}
