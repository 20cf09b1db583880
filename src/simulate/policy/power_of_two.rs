//! Power of two: of two ready replicas drawn at random, the one with fewer requests in flight.
//!
//! Envoy's `LEAST_REQUEST` as it is by default, and a mode of Dynamo 1.6 and smg 1.13. Idealised: smg polls its counts
//! every 10 s; here they are exact.

use fastrand::Rng;

use super::choose::{book, least, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

pub(super) struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        // Two different ones, where there are two.
        let drawn = Rng::with_seed(!asked.chance).choose_multiple(ready, 2);
        book(
            asked,
            fleet,
            least(&drawn, asked.chance, |seen| seen.in_flight),
        )
    }
}
