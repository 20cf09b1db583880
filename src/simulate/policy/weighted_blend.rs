//! Weighted blend: llm-d's scorers with the weights of its guides until mid-2026 (prefix 3, queue 2, KV 2, no-hit LRU 2).
//!
//! Each scorer gives 0 to 1, the greatest weighted sum wins, equals by chance (its max-score picker shuffles first):
//! - prefix: the share of the request's whole blocks that is cached (`prefix-cache-scorer`, no weight on length);
//! - queue: requests waiting as reported, from 1 for the fewest to 0 for the most; all equal, all 1 (`queue-scorer`);
//! - KV: 1 less the reported usage (`kv-cache-utilization-scorer`);
//! - no-hit LRU: for a request that nobody has a block of, 1 for whoever has gone longest without such a request, down
//!   to 0 for the latest; who never had one comes first. For any other request one half for all (`no-hit-lru-scorer`).
//!
//! The reports are as late as reports are. Idealised: the cache's state is exact and prompt.

use fastrand::Rng;

use super::choose::{book, least, matched_share, ready};
use super::{Asked, Knowledge, Policy, Seen};
use crate::routing::router::{Decision, Refusal};

const PREFIX: f64 = 3.0;
const QUEUE: f64 = 2.0;
const KV: f64 = 2.0;
const NO_HIT_LRU: f64 = 2.0;

#[derive(Default)]
pub(super) struct WeightedBlend {
    /// Replicas that had a request without a hit, the latest last.
    had_cold: Vec<usize>,
}

impl Policy for WeightedBlend {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey(asked));
        let cold = ready.iter().all(|seen| seen.cached == 0);
        let fewest = ready.iter().map(|seen| seen.waiting).min().unwrap_or(0);
        let most = ready.iter().map(|seen| seen.waiting).max().unwrap_or(0);
        let turns = self.turns(&ready, asked.chance);
        let score = |seen: &Seen| {
            let queue = if most > fewest {
                (most - seen.waiting) as f64 / (most - fewest) as f64
            } else {
                1.0
            };
            let lru = if cold {
                turn(&turns, ready.len(), seen.replica)
            } else {
                0.5
            };
            PREFIX * matched_share(asked, seen)
                + QUEUE * queue
                + KV * (1.0 - seen.kv_usage)
                + NO_HIT_LRU * lru
        };
        let chosen = least(&ready, asked.chance, |seen| -score(seen));
        let decision = book(asked, fleet, chosen)?;
        if let (true, Some(chosen)) = (cold, chosen) {
            self.had_cold.retain(|&other| other != chosen);
            self.had_cold.push(chosen);
        }
        Ok(decision)
    }
}

impl WeightedBlend {
    /// Who is to take a request without a hit, first to last. Those that are not ready keep their places, as they do
    /// there; those that never had one come in any order, as there, where a map gives it.
    fn turns(&self, ready: &[Seen], chance: u64) -> Vec<usize> {
        let mut never: Vec<usize> = ready
            .iter()
            .map(|seen| seen.replica)
            .filter(|replica| !self.had_cold.contains(replica))
            .collect();
        Rng::with_seed(!chance).shuffle(&mut never);
        never.extend(&self.had_cold);
        never
    }
}

/// 1 for the first, down to 0 for whoever has as many before it as there are others to choose from.
fn turn(turns: &[usize], candidates: usize, replica: usize) -> f64 {
    let others = candidates.saturating_sub(1).max(1) as f64;
    let at = turns.iter().position(|&other| other == replica);
    match at {
        Some(_) if candidates == 1 => 1.0,
        Some(at) => (1.0 - at as f64 / others).max(0.0),
        None => 0.0,
    }
}
