//! Least prefill with other terms in the same unit, derived and not tuned; for the study, not served.
//!
//! - *plain*: `cost = queued + uncached`, what is least work for *this* request.
//! - *step*: every step of a prefill carries the decoding that is there. A step in which requests decode takes `w + k · C`
//!   longer: the weights are read once, and the keys and values of all `C` tokens in their contexts. In prefill tokens
//!   computed in the same time (`p` seconds each) that is `W = w / p` and `K = k / p` a token. A prefill takes at least
//!   one step and one more for each full budget:
//!   `cost = work + (1 + work / budget) · (W + K · C)`, `work = queued + uncached`.
//! - *load*: what is served has the price of `routing::price`, with the share of picks at which no endpoint is free. Here the
//!   queues are taken to be separate: `cost = queued + uncached / (1 - r)` with the share `r` of replicas that have tokens
//!   queued.
//!
//! No guard leaves anybody out here.

use super::choose::{book, least_as_served, ready, uncached};
use super::{Asked, Context, Knowledge, Policy, Seen};
use crate::routing::price::Busy;
use crate::routing::router::{Decision, Refusal};
use crate::routing::tokens::TokenCount;

/// What the cost is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term {
    Plain,
    Step,
    Load,
}

pub(super) struct WithTerm {
    term: Term,
    context: Context,
    /// The share of replicas that have tokens queued.
    busy: Busy,
}

impl WithTerm {
    pub(super) fn new(context: &Context, term: Term) -> Self {
        Self {
            term,
            context: *context,
            busy: Busy::default(),
        }
    }

    fn see(&mut self, ready: &[Seen]) {
        let queued = ready.iter().filter(|seen| seen.queued > 0).count();
        self.busy.saw(queued as f64 / ready.len().max(1) as f64);
    }

    fn cost(&self, asked: &Asked<'_>, seen: &Seen) -> f64 {
        let (queued, uncached) = (seen.queued as f64, uncached(asked, seen) as f64);
        match self.term {
            Term::Plain => queued + uncached,
            Term::Step => {
                let decode = self.context.decode;
                let work = queued + uncached;
                let steps = 1.0 + work / f64::from(self.context.max_num_batched_tokens.max(1));
                // Nothing decodes where nothing is in flight.
                let weights = if seen.in_flight > 0 { decode.step } else { 0.0 };
                work + steps * (weights + decode.context_token * seen.context as f64)
            }
            Term::Load => queued + uncached * self.busy.price(),
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
