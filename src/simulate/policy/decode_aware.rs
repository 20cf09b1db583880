//! Least prefill with a term for decoding, derived and in the same unit; for the study, not served.
//!
//! A step of an engine takes `w + k · C` longer while requests decode in it: the weights are read once, and the keys and
//! values of all `C` tokens in their contexts. In prefill tokens computed in the same time (`p` seconds each) that is
//! `W = w/p` and `K = k/p` a token.
//!
//! - *step*: how long until the first token? `queued + uncached` take at least one step and one more for every full
//!   budget, and every step carries the decoding that is there:
//!   `cost = queued + uncached + (1 + (queued + uncached) / budget) · (W + K · C)`.
//! - *others*: how much later are first tokens and the tokens of those that decode? Each computed token delays this
//!   request once, and the `n` that are in flight there once each:
//!   `cost = queued + uncached · (1 + n)`.
//! - *load*: work that a queue is given delays also those who come while it lasts, all the more the busier the fleet is.
//!   In a queue that is busy for the share `r` of the time, work `u` costs `u / (1 - r)` in all, its own included; `r` is
//!   seen at the picks, as the share of replicas that have prompt tokens queued:
//!   `cost = queued + uncached / (1 - r)`.
//! - *pool*: the same where the queues are one: whoever comes goes where there is none, so that work delays others only
//!   while every replica has tokens queued, which is `r` here.

use super::choose::{book, ready, uncached};
use super::{Asked, Context, Knowledge, Policy, Seen};
use crate::routing::pick::{Runner, best, tie_width};
use crate::routing::router::{Decision, Refusal};
use crate::routing::tokens::TokenCount;

/// What is to be least.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term {
    Step,
    Others,
    Load,
    Pool,
}

/// Picks over which the load is averaged.
const REMEMBERED: f64 = 256.0;
/// No fleet is taken to be busier.
const MOST_BUSY: f64 = 0.95;

pub(super) struct DecodeAware {
    term: Term,
    context: Context,
    /// Share of replicas with tokens queued, as the last few hundred picks saw them.
    busy: f64,
    /// Share of these picks at which every replica had some.
    full: f64,
}

impl DecodeAware {
    pub(super) const fn new(context: &Context, term: Term) -> Self {
        Self {
            term,
            context: *context,
            busy: 0.0,
            full: 0.0,
        }
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
            Term::Others => queued + uncached * (1.0 + f64::from(seen.in_flight)),
            Term::Load => queued + uncached / (1.0 - self.busy.min(MOST_BUSY)),
            Term::Pool => queued + uncached / (1.0 - self.full.min(MOST_BUSY)),
        }
    }

    /// Enters what this pick sees of the load.
    fn remember(&mut self, ready: &[Seen]) {
        if ready.is_empty() {
            return;
        }
        let busy = ready.iter().filter(|seen| seen.queued > 0).count();
        let full = u8::from(busy == ready.len());
        self.busy += (busy as f64 / ready.len() as f64 - self.busy) / REMEMBERED;
        self.full += (f64::from(full) - self.full) / REMEMBERED;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cost is a number of tokens above zero; casts saturate"
)]
impl Policy for DecodeAware {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey(asked));
        self.remember(&ready);
        let runners = ready.iter().map(|seen| Runner {
            place: seen.replica,
            cost: TokenCount::new(self.cost(asked, seen).round().max(0.0) as u64),
            in_flight: seen.in_flight,
        });
        let width = tie_width(std::iter::once(asked.block_size));
        let chosen = best(runners.collect(), 1, width, asked.chance, |_, _| true);
        let chosen = chosen.first().map(|runner| runner.place);
        book(asked, fleet, chosen)
    }
}
