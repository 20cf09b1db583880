//! What do pools find of the recording, by their number?

use std::fmt::Write as _;

use serde::Serialize;

use super::super::reuse::Reuse;
use super::super::sums::Sums;
use super::{Page, grouped, percent, tokens};

/// Fleets that are shown in any case: one that somebody has is near one of them.
const FLEETS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// What pools find.
#[derive(Clone, Debug, Serialize)]
pub(in crate::plan) struct Found {
    /// Half of what is found ever is found by a cache of so many tokens.
    half_within_tokens: f64,
    /// Nine tenths of it.
    most_within_tokens: f64,
    /// By the number of pools.
    fleets: Vec<Pools>,
}

/// Shares of all prompt tokens that so many pools find.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pools {
    replicas: u64,
    /// As one.
    together: f64,
    /// Each by itself, when requests go anywhere.
    by_chance: f64,
}

impl Found {
    /// What pools of these sums' size find, those of the planned fleets among them.
    pub(in crate::plan) fn of(reuse: &Reuse, sums: &Sums) -> Self {
        let mut fleets = FLEETS.to_vec();
        fleets.extend([sums.chance.replicas, sums.affinity.replicas]);
        fleets.sort_unstable();
        fleets.dedup();
        let pools = |replicas: u64| Pools {
            replicas,
            together: reuse.together(replicas as f64 * sums.pool_tokens),
            by_chance: reuse.by_chance(replicas, sums.pool_tokens),
        };
        Self {
            half_within_tokens: reuse.capacity_for(0.5),
            most_within_tokens: reuse.capacity_for(0.9),
            fleets: fleets.into_iter().map(pools).collect(),
        }
    }

    pub(super) fn tell(&self, page: &mut Page) {
        page.head("What pools find of it, as it was asked");
        page.line(
            "asked again within",
            &tokens(self.half_within_tokens),
            "half of what is shared: other tokens that were used in between, each once",
        );
        page.line("", &tokens(self.most_within_tokens), "nine tenths of it");
        let _infallible = writeln!(
            page.text,
            "  {:>9} {:>14} {:>11}   of all prompt tokens",
            "replicas", "with affinity", "by chance"
        );
        for pools in &self.fleets {
            let _infallible = writeln!(
                page.text,
                "  {:>9} {:>14} {:>11}",
                grouped(pools.replicas as f64),
                percent(pools.together),
                percent(pools.by_chance)
            );
        }
        page.text.push_str(
            "  with affinity: in an LRU cache as large as all pools together; by chance: in pools of which each request goes to any\n",
        );
    }
}
