//! What are the blocks of a prompt and its answer called? Hashed once for all requests that begin alike.
//!
//! The names are those that [`prompt_keys`](crate::routing::block::prompt_keys) gives the token ids. Hashing the 8,000
//! tokens of a prompt takes 8 µs, which is too much where a request is to take 60 in all: what several requests begin
//! with is kept by the names of its segments.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::routing::block::{BlockKey, BlockSize, block_key, root};
use crate::simulate::prompt::Segment;

/// Names kept at most: 32 MB.
const MAX_KEPT: usize = 4_000_000;

/// A beginning: segments one after the other, by a hash of all of them.
type Beginning = u64;

/// The names of what was asked for more than once.
#[derive(Debug)]
pub(super) struct Names {
    size: BlockSize,
    /// The names of a beginning's whole blocks.
    known: FxHashMap<Beginning, Arc<[BlockKey]>>,
    /// How many they are in all.
    kept: usize,
    /// Beginnings that came once; those that come again are worth keeping.
    seen: FxHashSet<Beginning>,
    /// Kept to reuse its memory.
    tokens: Vec<u32>,
}

impl Names {
    pub(super) fn new(size: BlockSize) -> Self {
        Self {
            size,
            known: FxHashMap::default(),
            kept: 0,
            seen: FxHashSet::default(),
            tokens: Vec::new(),
        }
    }

    /// The names of the whole blocks of these segments, in order.
    pub(super) fn of(&mut self, segments: &[Segment]) -> Vec<BlockKey> {
        let block = self.size.get() as usize;
        let beginnings = beginnings(segments);
        // Each with the number of segments and of tokens in it; the longest known one is gone on from.
        let start = beginnings
            .iter()
            .rev()
            .find_map(|&(beginning, _)| self.known.get(&beginning));
        let total = beginnings.last().map_or(0, |&(_, tokens)| tokens);
        let mut keys = Vec::with_capacity(total / block);
        keys.extend_from_slice(start.map_or(&[], |known| known));
        self.write_tokens(segments, keys.len() * block);
        let mut parent = keys
            .last()
            .copied()
            .unwrap_or_else(|| root(self.size, None));
        for tokens in self.tokens.chunks_exact(block) {
            parent = block_key(parent, tokens, None);
            keys.push(parent);
        }
        self.keep(&beginnings, &keys);
        keys
    }

    /// The token ids from a place on.
    fn write_tokens(&mut self, segments: &[Segment], from: usize) {
        self.tokens.clear();
        let mut at = 0;
        for segment in segments {
            let skipped = from.saturating_sub(at).min(segment.tokens as usize);
            at += segment.tokens as usize;
            segment.write_from(u32::try_from(skipped).unwrap_or(u32::MAX), &mut self.tokens);
        }
    }

    fn keep(&mut self, beginnings: &[(Beginning, usize)], keys: &[BlockKey]) {
        if self.kept > MAX_KEPT || self.seen.len() > MAX_KEPT {
            // What is still asked for comes again.
            self.known.clear();
            self.seen.clear();
            self.kept = 0;
        }
        for &(beginning, tokens) in beginnings {
            if self.seen.insert(beginning) || self.known.contains_key(&beginning) {
                continue;
            }
            let whole = keys
                .get(..tokens / self.size.get() as usize)
                .unwrap_or_default();
            self.kept += whole.len();
            self.known.insert(beginning, whole.into());
        }
    }
}

/// All beginnings of a prompt that end with a segment, each with its tokens.
fn beginnings(segments: &[Segment]) -> Vec<(Beginning, usize)> {
    let mut beginning = 0;
    let mut tokens = 0;
    let next = |segment: &Segment| {
        beginning = stir(stir(beginning ^ segment.id) ^ u64::from(segment.tokens));
        tokens += segment.tokens as usize;
        (beginning, tokens)
    };
    segments.iter().map(next).collect()
}

const fn stir(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::routing::block::{Scope, prompt_keys};
    use crate::simulate::prompt::Prompt;

    proptest! {
        #[test]
        fn names_are_the_keys_of_the_token_ids_however_often_beginnings_come(
            prompts in prop::collection::vec(prop::collection::vec((0..3_u64, 0..40_u32), 0..5), 1..30),
        ) {
            let mut names = Names::new(BlockSize::DEFAULT);
            for parts in prompts {
                let segments: Vec<Segment> =
                    parts.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
                let tokens = Prompt::new(segments.iter().copied()).token_ids();
                let expected = prompt_keys(&tokens, BlockSize::DEFAULT, &Scope::default());
                prop_assert_eq!(names.of(&segments), expected);
            }
        }
    }
}
