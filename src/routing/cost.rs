//! The formula.
//!
//! ```text
//! cached   = min((at hand + beneath) · B, ⌊(n − 1) / B⌋ · B)
//! uncached = n − cached
//! work     = uncached + factor · (tokens of cached that come from beneath)
//! cost     = queued + price · work
//! ```
//!
//! An engine always computes the last token, so a prompt that is cached whole still
//! costs its last block. Blocks *beneath* lie on a slower tier (the host's memory, storage):
//! the engine reports them as cached, but has to copy them first. The price is [`super::price`]'s: 1 while some endpoint
//! is free, more the longer none has been.

use super::event::Medium;
use super::router::Policy;
use super::tokens::TokenCount;

/// What a cached token costs on each slower tier, as a share of computing it: above 0, at most 1.
/// At 1 the tier is not counted at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiers {
    /// The host's memory.
    pub cpu: f64,
    /// Anything slower.
    pub storage: f64,
}

impl Default for Tiers {
    /// A token of an 8B model has 128 KiB of keys and values: 5 µs over PCIe 4.0 x16 as it is in
    /// practice (25 GB/s), against 71 µs of prefill on the older card that goes with it, or 2.6 µs
    /// against 30 µs on a newer pair. So a tenth or less, where the copy has the link to itself and
    /// pieces are large. A quarter leaves room for small pieces, for requests that share the
    /// link, and for a tier whose events are known to tell less than the truth.
    ///
    /// Storage may be a local disk (26 µs) or an object store far away (slower than computing),
    /// and nothing in its events tells which: whoever knows theirs says so.
    fn default() -> Self {
        Self {
            cpu: 0.25,
            storage: 1.0,
        }
    }
}

impl Tiers {
    /// The factor of a medium; `None` for the accelerator's own, and for a tier not counted.
    pub fn factor(self, medium: Medium) -> Option<f64> {
        let factor = match medium {
            Medium::Gpu => return None,
            Medium::Cpu => self.cpu,
            Medium::Storage => self.storage,
        };
        (factor < 1.0).then_some(factor)
    }
}

/// What an endpoint has of a prompt's blocks, from the first one on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    /// Blocks at hand.
    pub at_hand: u64,
    /// Blocks that follow them on a slower tier.
    pub beneath: u64,
    /// What a token from there costs, as a share of computing it.
    pub factor: f64,
}

impl Run {
    /// The one that saves more.
    #[must_use]
    pub fn better(self, other: Self) -> Self {
        if other.saved() > self.saved() {
            other
        } else {
            self
        }
    }

    /// When so many blocks are at hand by now, brought by requests in flight: the slower tier serves
    /// what of its run is left behind them.
    #[must_use]
    pub fn reaching(self, at_hand: u64) -> Self {
        Self {
            at_hand,
            beneath: (self.at_hand + self.beneath).saturating_sub(at_hand),
            ..self
        }
    }

    fn saved(self) -> f64 {
        self.at_hand as f64 + self.beneath as f64 * (1.0 - self.factor)
    }
}

/// Tokens of a prompt that need not be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// All of them.
    pub tokens: TokenCount,
    /// Of these, what comes from a slower tier.
    pub below: TokenCount,
    /// What bringing those costs, in tokens computed in the same time.
    pub load: TokenCount,
}

impl std::ops::AddAssign for Cached {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.below += other.below;
        self.load += other.load;
    }
}

/// What of a prompt of `prompt` tokens is served from the cache. Blocks of no tokens serve nothing.
pub fn cached(prompt: TokenCount, tokens_a_block: u64, run: Run) -> Cached {
    if tokens_a_block == 0 {
        return Cached::default();
    }
    let most_blocks = prompt.get().saturating_sub(1) / tokens_a_block;
    let at_hand = run.at_hand.min(most_blocks);
    let beneath = run.beneath.min(most_blocks - at_hand);
    let below = TokenCount::new(beneath * tokens_a_block);
    Cached {
        tokens: TokenCount::new((at_hand + beneath) * tokens_a_block),
        below,
        load: times(below, run.factor.clamp(0.0, 1.0)),
    }
}

/// A number of tokens, so many times; rounded to whole ones.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float holds a prompt's length exactly and factors are positive; casts saturate"
)]
fn times(tokens: TokenCount, factor: f64) -> TokenCount {
    TokenCount::new((tokens.get() as f64 * factor).round() as u64)
}

/// What an endpoint would have to do before this request's first token, and what that costs those who come after.
pub fn cost(
    policy: Policy,
    price: f64,
    queued: TokenCount,
    prompt: TokenCount,
    cached: Cached,
) -> TokenCount {
    match policy {
        Policy::LeastPrefill => {
            let work = prompt.saturating_sub(cached.tokens) + cached.load;
            queued + times(work, price)
        }
        // The whole prompt for everyone, which leaves the order to the queues.
        Policy::LeastQueued => queued + prompt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(at_hand: u64, beneath: u64, factor: f64) -> Run {
        Run {
            at_hand,
            beneath,
            factor,
        }
    }

    #[test]
    fn the_last_block_is_never_served() {
        let cases = [
            (0, 16, 5, 0),
            (1, 16, 0, 0),
            (16, 16, 1, 0),
            (17, 16, 1, 16),
            (32, 16, 2, 16),
            (32, 16, 9, 16),
            (33, 16, 2, 32),
            (100, 16, 3, 48),
            (8_000, 16, 375, 6_000),
            (100, 0, 3, 0),
        ];
        for (prompt, block, matched, expected) in cases {
            let of = |run| cached(TokenCount::new(prompt), block, run).tokens.get();
            let case = format!("{prompt} tokens, {matched} blocks of {block}");
            assert_eq!(of(run(matched, 0, 1.0)), expected, "{case}");
            assert_eq!(of(run(0, matched, 0.5)), expected, "{case} beneath");
            assert_eq!(
                of(run(matched / 2, matched.div_ceil(2), 0.5)),
                expected,
                "{case} split"
            );
        }
    }

    #[test]
    fn blocks_beneath_are_whole_and_cost_their_share() {
        let cases = [
            (1_000, run(10, 20, 0.25), 480, 320, 80),
            (1_000, run(0, 20, 0.25), 320, 320, 80),
            (1_000, run(30, 0, 0.25), 480, 0, 0),
            // What may not be served costs nothing to bring.
            (33, run(1, 9, 0.5), 32, 16, 8),
            (33, run(2, 9, 0.5), 32, 0, 0),
            // Rounded to whole tokens, halves up.
            (100, run(0, 1, 0.03), 16, 16, 0),
            (100, run(0, 1, 0.032), 16, 16, 1),
        ];
        for (prompt, run, tokens, below, load) in cases {
            let found = cached(TokenCount::new(prompt), 16, run);
            let found = (found.tokens.get(), found.below.get(), found.load.get());
            assert_eq!(found, (tokens, below, load), "{prompt} tokens, {run:?}");
        }
    }

    #[test]
    fn the_price_is_of_work_alone_and_least_queued_looks_at_neither_cache_nor_price() {
        let n = TokenCount::new;
        let cached = Cached {
            tokens: n(80),
            below: n(40),
            load: n(10),
        };
        let cost = |policy, price| cost(policy, price, n(50), n(100), cached);
        assert_eq!(cost(Policy::LeastPrefill, 1.0), n(80));
        assert_eq!(cost(Policy::LeastPrefill, 2.5), n(125));
        assert_eq!(cost(Policy::LeastQueued, 1.0), n(150));
        assert_eq!(cost(Policy::LeastQueued, 2.5), n(150));
    }

    #[test]
    fn a_tier_that_costs_as_much_as_computing_is_not_counted() {
        let tiers = Tiers::default();
        assert_eq!(tiers.factor(Medium::Gpu), None);
        assert_eq!(tiers.factor(Medium::Cpu), Some(0.25));
        assert_eq!(tiers.factor(Medium::Storage), None);
    }
}
