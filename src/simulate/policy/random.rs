//! Random: any ready replica, each with the same chance.

use super::choose::{book, least, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

pub(super) struct Random;

impl Policy for Random {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        book(asked, fleet, least(&ready, asked.chance, |_| 0))
    }
}
