//! A request's prompts as chains of keys, one set for every block size in the pool.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::super::block::{
    BlockKey, BlockSize, Scope, Sequence, TEXT_PIECE_BYTES, prompt_keys, text_keys,
};
use super::super::index::{Match, PrefixIndex};
use super::super::tokens::TokenCount;

/// One prompt, cut into blocks.
#[derive(Clone, Debug)]
pub(in crate::routing) struct Chain {
    /// The keys of its whole blocks, in order.
    pub(in crate::routing) keys: Arc<[BlockKey]>,
    /// What each key stands for.
    pub(in crate::routing) tokens_a_block: u64,
    /// The prompt's length.
    pub(in crate::routing) prompt: TokenCount,
    /// Leading keys that an earlier prompt of the same request brings.
    pub(in crate::routing) brought: usize,
    /// The keys are of text, and only the approximate index knows such.
    pub(in crate::routing) text: bool,
}

/// All prompts of a request, for each block size.
#[derive(Debug, Default)]
pub(in crate::routing) struct Prompts {
    by_size: Vec<(BlockSize, Vec<Chain>)>,
}

impl Prompts {
    /// Cuts and hashes.
    pub(in crate::routing) fn new(
        sequences: &[Sequence],
        scope: &Scope,
        sizes: &[BlockSize],
    ) -> Self {
        let texts: Vec<Option<Chain>> = sequences
            .iter()
            .map(|sequence| match sequence {
                Sequence::Tokens(_) => None,
                Sequence::Estimate { tokens, text } => Some(text_chain(*tokens, text, scope)),
            })
            .collect();
        let by_size = sizes
            .iter()
            .map(|&size| {
                let chains = sequences
                    .iter()
                    .zip(&texts)
                    .filter_map(|(sequence, text)| match sequence {
                        Sequence::Tokens(tokens) => Some(token_chain(tokens, size, scope)),
                        Sequence::Estimate { .. } => text.clone(),
                    })
                    .collect();
                (size, mark_brought(chains))
            })
            .collect();
        Self { by_size }
    }

    /// One prompt whose keys are known, for one size.
    pub(in crate::routing) fn of_keys(
        keys: Arc<[BlockKey]>,
        prompt: TokenCount,
        size: BlockSize,
    ) -> Self {
        let chain = Chain {
            keys,
            tokens_a_block: u64::from(size.get()),
            prompt,
            brought: 0,
            text: false,
        };
        Self {
            by_size: vec![(size, vec![chain])],
        }
    }

    /// Every size with its chains.
    pub(in crate::routing) fn by_size(&self) -> impl Iterator<Item = (BlockSize, &[Chain])> {
        self.by_size
            .iter()
            .map(|(size, chains)| (*size, chains.as_slice()))
    }

    /// The chains of one size; none when it was learnt after the request was prepared.
    pub(in crate::routing) fn of_size(&self, size: BlockSize) -> &[Chain] {
        self.by_size()
            .find(|(here, _)| *here == size)
            .map_or(&[], |(_, chains)| chains)
    }

    /// Looks every chain up in both indexes.
    pub(in crate::routing) fn look_up(
        &self,
        exact: &PrefixIndex,
        approximate: &PrefixIndex,
    ) -> Found {
        let by_size = self
            .by_size()
            .map(|(size, chains)| {
                let found = chains
                    .iter()
                    .map(|chain| ChainFound {
                        text: chain.text,
                        exact: if chain.text {
                            Vec::new()
                        } else {
                            exact.lookup(&chain.keys)
                        },
                        approximate: approximate.lookup(&chain.keys),
                    })
                    .collect();
                (size, found)
            })
            .collect();
        Found { by_size }
    }
}

/// Who holds how much of one chain.
#[derive(Debug)]
pub(in crate::routing) struct ChainFound {
    pub(in crate::routing) text: bool,
    pub(in crate::routing) exact: Vec<Match>,
    pub(in crate::routing) approximate: Vec<Match>,
}

/// What the indexes hold of a request, in the order of its chains.
#[derive(Debug, Default)]
pub(in crate::routing) struct Found {
    by_size: Vec<(BlockSize, Vec<ChainFound>)>,
}

impl Found {
    /// What was found of the chains of one size.
    pub(in crate::routing) fn of_size(&self, size: BlockSize) -> &[ChainFound] {
        self.by_size
            .iter()
            .find(|(here, _)| *here == size)
            .map_or(&[], |(_, found)| found)
    }
}

fn token_chain(tokens: &[u32], size: BlockSize, scope: &Scope) -> Chain {
    Chain {
        keys: prompt_keys(tokens, size, scope).into(),
        tokens_a_block: u64::from(size.get()),
        prompt: TokenCount::of(tokens),
        brought: 0,
        text: false,
    }
}

/// Spreads the estimated tokens evenly over the text's pieces.
fn text_chain(tokens: TokenCount, text: &[u8], scope: &Scope) -> Chain {
    let pieces_bytes = TEXT_PIECE_BYTES as u64;
    let tokens_a_block = tokens
        .get()
        .saturating_mul(pieces_bytes)
        .checked_div(text.len() as u64)
        .unwrap_or(0);
    let mut keys = text_keys(text, scope);
    if tokens_a_block == 0 {
        keys.clear();
    }
    Chain {
        keys: keys.into(),
        tokens_a_block,
        prompt: tokens,
        brought: 0,
        text: true,
    }
}

/// The engine prefills a request's prompts one after the other, so a later one finds
/// what an earlier one has in common with it. Keys are chained: a known key means that
/// all before it are known.
fn mark_brought(mut chains: Vec<Chain>) -> Vec<Chain> {
    if chains.len() < 2 {
        return chains;
    }
    let mut seen = FxHashSet::default();
    for chain in &mut chains {
        chain.brought = chain
            .keys
            .iter()
            .take_while(|key| seen.contains(*key))
            .count();
        seen.extend(chain.keys.iter().skip(chain.brought).copied());
    }
    chains
}
