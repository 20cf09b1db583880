//! The formula.
//!
//! ```text
//! uncached = n − min(matched · B, ⌊(n − 1) / B⌋ · B)
//! cost     = queued + uncached
//! ```
//!
//! An engine always computes the last token, so a prompt that is cached whole still
//! costs its last block.

use super::router::Policy;
use super::tokens::TokenCount;

/// Tokens of a prompt of `prompt` tokens that are served from the cache when its
/// first `matched_blocks` are there. Blocks of no tokens serve nothing.
pub fn cached(prompt: TokenCount, tokens_a_block: u64, matched_blocks: u64) -> TokenCount {
    if tokens_a_block == 0 {
        return TokenCount::ZERO;
    }
    let most_blocks = prompt.get().saturating_sub(1) / tokens_a_block;
    TokenCount::new(matched_blocks.min(most_blocks) * tokens_a_block)
}

/// What an endpoint would have to prefill before this request's first token.
pub fn cost(
    policy: Policy,
    queued: TokenCount,
    prompt: TokenCount,
    cached: TokenCount,
) -> TokenCount {
    match policy {
        Policy::LeastPrefill => queued + prompt.saturating_sub(cached),
        // The whole prompt for everyone, which leaves the order to the queues.
        Policy::LeastQueued => queued + prompt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = cached(TokenCount::new(prompt), block, matched);
            assert_eq!(
                found.get(),
                expected,
                "{prompt} tokens, {matched} blocks of {block}"
            );
        }
    }

    #[test]
    fn least_queued_does_not_look_at_the_cache() {
        let n = TokenCount::new;
        assert_eq!(cost(Policy::LeastPrefill, n(50), n(100), n(80)), n(70));
        assert_eq!(cost(Policy::LeastQueued, n(50), n(100), n(80)), n(150));
    }
}
