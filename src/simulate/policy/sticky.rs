//! Sticky until saturated: llm-d's default since July 2026 (router 0.10: `prefix-cache-affinity-filter`, then
//! `token-load-scorer`).
//!
//! 1. Replicas that have at least 0.8 of the request's whole blocks are warm. If there are warm and other ones, and the
//!    least queue of the warm is no more than 286,720 tokens longer than the least of the others, only the warm stay in.
//!    The valve counts the prompt tokens booked and not yet prefilled, uncached ones only, without this request; its
//!    width is 14 s of prefill at 20,480 tokens a second, published in August 2026 for Qwen3-32B on two H100 (the
//!    default of the code, 18 s at 15,928, is 16 tokens less).
//! 2. Of those, the least (queued + uncached) tokens; above 4,194,304 all are equal. Equals by chance, as there.
//!
//! Idealised: the cache's state and the bookings are exact and prompt, tokens are counted and not estimated, booking is
//! one step with picking, and a booking shrinks while its prompt is computed (there it is whole until the first token).

use super::choose::{book, least, matched_share, ready, uncached};
use super::{Asked, Knowledge, Policy, Seen};
use crate::routing::router::{Decision, Refusal};

/// Share of the blocks from which on a replica is warm.
const WARM: f64 = 0.8;
/// Queued tokens by which the warm may be behind.
const VALVE_TOKENS: u64 = 286_720;
/// Tokens from which on loads are equal.
const FULL_TOKENS: u64 = 4_194_304;

pub(super) struct StickyUntilSaturated;

impl Policy for StickyUntilSaturated {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey(asked));
        let (warm, others): (Vec<Seen>, Vec<Seen>) = ready
            .iter()
            .partition(|seen| matched_share(asked, seen) >= WARM);
        let shortest = |of: &[Seen]| of.iter().map(|seen| seen.queued).min();
        let saturated = match (shortest(&warm), shortest(&others)) {
            (Some(warm), Some(others)) => warm > others.saturating_add(VALVE_TOKENS),
            _ => false,
        };
        let stay = if warm.is_empty() || saturated {
            &ready
        } else {
            &warm
        };
        let load = |seen: &Seen| (seen.queued + uncached(asked, seen)).min(FULL_TOKENS);
        book(asked, fleet, least(stay, asked.chance, load))
    }
}
