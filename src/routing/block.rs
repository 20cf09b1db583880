//! Blocks: how token ids become the keys that the index and the ledger speak.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::tokens::TokenCount;

/// Tokens a block; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// `None` for zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(size) => Some(Self(size)),
            None => None,
        }
    }

    /// Tokens a block.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// Our chained hash of a block and all that stands before it (tokens, adapter, salt, items).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub u64);

/// What besides the token ids separates caches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The LoRA adapter the request names, if its model is one.
    pub adapter: Option<Arc<str>>,
    /// The request's `cache_salt`.
    pub salt: Option<Arc<str>>,
}

/// One prompt as the engine will prefill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// The exact token ids.
    Tokens(Vec<u32>),
    /// No ids to be had: an estimated length, and the bytes that stand for the content.
    Estimate {
        /// Estimated number of tokens.
        tokens: TokenCount,
        /// The prompt's text (or raw body) in order, for the approximate index.
        text: Vec<u8>,
    },
}
