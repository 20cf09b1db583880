//! Round robin: the next ready replica in order of their numbers.
//!
//! What a Kubernetes Service or a proxy does with one picker; several would each have a turn of their own.

use super::choose::{book, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

#[derive(Default)]
pub(super) struct RoundRobin {
    /// The first number that has its turn now.
    next: usize,
}

impl Policy for RoundRobin {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        let turn = ready
            .iter()
            .find(|seen| seen.replica >= self.next)
            .or_else(|| ready.first());
        let decision = book(asked, fleet, turn.map(|seen| seen.replica))?;
        self.next = turn.map_or(0, |seen| seen.replica + 1);
        Ok(decision)
    }
}
