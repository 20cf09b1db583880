//! Least prefill: the very code that `warmpath serve` runs.
//!
//! Least (queued + price · uncached) tokens; below a block's difference the fewest in flight; then chance.

use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

pub(super) struct LeastPrefill;

impl Policy for LeastPrefill {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        fleet.pick(asked)
    }
}
