//! Least prefill with a further term in the same unit, derived and not tuned; for the study, not served.
//!
//! The plain rule asks what is least work for *this* request. Two things it leaves out:
//!
//! - *step*: every step of a prefill carries the decoding that is there. A step in which requests decode takes `w + k · C`
//!   longer: the weights are read once, and the keys and values of all `C` tokens in their contexts. In prefill tokens
//!   computed in the same time (`p` seconds each) that is `W = w / p` and `K = k / p` a token. A prefill takes at least
//!   one step and one more for each full budget:
//!   `cost = work + (1 + work / budget) · (W + K · C)`, `work = queued + uncached`.
//! - *load*, *pool*: work that a queue is given delays also those who come while it lasts, all the more the busier it is. A
//!   queue that is busy for the share `r` of the time makes of work `u` a delay of `u / (1 - r)` in all:
//!   `cost = queued + uncached / (1 - r)`. Here `r` is what picks see: the share of replicas with tokens queued (*load*:
//!   each queue by itself), or how often every replica has some (*pool*: whoever comes goes where there is no queue, so
//!   that work delays others only while there is one everywhere).

use super::choose::{book, least_as_served, ready, uncached};
use super::{Asked, Context, Knowledge, Policy, Seen};
use crate::routing::router::{Decision, Refusal};
use crate::routing::tokens::TokenCount;

/// What is added to the plain rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term {
    Step,
    Load,
    Pool,
}

/// Picks over which the load is averaged.
const REMEMBERED: f64 = 256.0;
/// No fleet is taken to be busier.
const MOST_BUSY: f64 = 0.95;

pub(super) struct WithTerm {
    term: Term,
    context: Context,
    /// The share `r` of the term, as the last few hundred picks saw it.
    busy: f64,
}

impl WithTerm {
    pub(super) const fn new(context: &Context, term: Term) -> Self {
        Self {
            term,
            context: *context,
            busy: 0.0,
        }
    }

    fn see(&mut self, ready: &[Seen]) {
        let queued = ready.iter().filter(|seen| seen.queued > 0).count();
        let now = match self.term {
            Term::Step => return,
            Term::Load => queued as f64 / ready.len().max(1) as f64,
            Term::Pool => f64::from(u8::from(queued == ready.len())),
        };
        self.busy += (now - self.busy) / REMEMBERED;
    }

    fn cost(&self, asked: &Asked<'_>, seen: &Seen) -> f64 {
        let (queued, uncached) = (seen.queued as f64, uncached(asked, seen) as f64);
        match self.term {
            Term::Step => {
                let decode = self.context.decode;
                let work = queued + uncached;
                let steps = 1.0 + work / f64::from(self.context.max_num_batched_tokens.max(1));
                // Nothing decodes where nothing is in flight.
                let weights = if seen.in_flight > 0 { decode.step } else { 0.0 };
                work + steps * (weights + decode.context_token * seen.context as f64)
            }
            Term::Load | Term::Pool => queued + uncached / (1.0 - self.busy.min(MOST_BUSY)),
        }
    }
}

impl Policy for WithTerm {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cost is a number of tokens above zero; casts saturate"
    )]
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey(asked));
        self.see(&ready);
        let cost = |seen: &Seen| TokenCount::new(self.cost(asked, seen).round() as u64);
        let chosen = least_as_served(&ready, asked, cost);
        book(asked, fleet, chosen)
    }
}
