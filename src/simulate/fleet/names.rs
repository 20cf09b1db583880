//! What are the blocks of a simulated prompt and its answer called? Equal names exactly where equal tokens stand behind
//! equal beginnings, as with the keys that real prompts have.
//!
//! No token is looked at: what a block contains follows from the segment that it ends in, its place there, and the
//! segments before. The router takes names for uniform hashes and goes by nothing but their equality, so they may be
//! chosen such that the names of [`RUN`] neighbours are close to each other: every table of router and engines then has
//! them in a few cache lines of one page that follow each other, which a processor loads ahead by itself.

use crate::routing::block::{BlockKey, BlockSize};
use crate::simulate::prompt::Segment;

/// Neighbours whose names are close to each other. A power of two.
const RUN: u64 = 64;

/// From one name of a run to the next. A power of two. The names between them are another run's: where two runs meet in a
/// table with linear probing, one mostly finds its places between those of the other, instead of behind all of them.
///
/// A request of `benches/simulate.rs` (medians in turns on a busy machine, with rows of 12 bytes in the index): 80 µs with
/// runs of 8 and no names between; 74 with runs of 32 and 69 of 64; 74, 65, 60 and 64 with runs of 16, 32, 64 and 128 and
/// one name between. Three names between made no difference.
const APART: u64 = 2;

/// The names of the whole blocks of these segments, in order.
pub(super) fn names(segments: &[Segment], size: BlockSize) -> Vec<BlockKey> {
    let block = u64::from(size.get());
    let total: u64 = segments.iter().map(|it| u64::from(it.tokens)).sum();
    let mut names = Vec::with_capacity(usize::try_from(total / block).unwrap_or(0));
    // Stands for all segments before, their lengths included.
    let mut before = stir(block);
    let mut at = 0;
    for segment in segments.iter().filter(|segment| segment.tokens > 0) {
        let first = at / block;
        at += u64::from(segment.tokens);
        let here = stir(before ^ segment.id);
        let mut run = 0;
        for place in 0..at / block - first {
            if place % RUN == 0 {
                let hash = stir(here ^ (place / RUN));
                run = hash & !(RUN * APART - APART);
            }
            names.push(BlockKey(run | (place % RUN * APART)));
        }
        before = stir(here ^ !u64::from(segment.tokens));
    }
    names
}

const fn stir(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::routing::block::{Scope, prompt_keys};
    use crate::simulate::prompt::Prompt;

    proptest! {
        #[test]
        fn names_are_equal_exactly_where_the_keys_of_the_token_ids_are(
            prompts in prop::collection::vec(prop::collection::vec((0..3_u64, 0..400_u32), 0..5), 1..30),
        ) {
            let mut by_key = BTreeMap::new();
            let mut by_name = BTreeMap::new();
            for parts in prompts {
                let segments: Vec<Segment> =
                    parts.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
                let tokens = Prompt::new(segments.iter().copied()).token_ids();
                let keys = prompt_keys(&tokens, BlockSize::DEFAULT, &Scope::default());
                let names = names(&segments, BlockSize::DEFAULT);
                prop_assert_eq!(keys.len(), names.len());
                for (key, name) in keys.into_iter().zip(names) {
                    prop_assert_eq!(*by_key.entry(key).or_insert(name), name);
                    prop_assert_eq!(*by_name.entry(name).or_insert(key), key);
                }
            }
        }
    }
}
