//! Blocks: how token ids become the keys that the index and the ledger speak.
//!
//! A key is a 64-bit xxh3 of the key before it and the block's own token ids, so a
//! key names a block and everything in front of it. The start of the chain covers
//! the block size and the adapter, a salt is folded in before block 0 and
//! multimodal items before each block they overlap. Every kind of input has its own
//! tag, so the salt `x` and the adapter `x` never meet (engines before vLLM 0.31 do
//! mix them up).
//!
//! Measured at 16 tokens a block on one of two shared cores: about 12 ns a block,
//! 6 µs for an 8,000-token prompt.

use std::num::NonZeroU32;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::event::BlockExtra;
use super::tokens::TokenCount;

#[cfg(test)]
mod tests;

/// How prompts are cut: tokens a block, never zero, and how many of the tokens after a block its
/// key covers (0 except for engines that hash ahead for their draft model).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize {
    tokens: NonZeroU32,
    lookahead: u8,
}

impl BlockSize {
    /// What vLLM takes on GPUs unless told otherwise.
    pub const DEFAULT: Self = Self {
        tokens: NonZeroU32::MIN.saturating_add(15),
        lookahead: 0,
    };

    /// `None` for zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self {
                tokens,
                lookahead: 0,
            }),
            None => None,
        }
    }

    /// The same for an engine whose block hashes cover so many of the tokens that follow.
    #[must_use]
    pub const fn with_lookahead(self, tokens: u8) -> Self {
        Self {
            lookahead: tokens,
            ..self
        }
    }

    /// Tokens a block.
    pub const fn get(self) -> u32 {
        self.tokens.get()
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

/// Bytes of text that stand for one block where there are no token ids: 64 tokens
/// of about four bytes. A constant, not the engine's block size, because a text key
/// has to mean the same before and after a block size is learnt.
pub const TEXT_PIECE_BYTES: usize = 256;

/// What a hash starts with, so that no two kinds of input can have the same bytes.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Tag {
    TokenRoot = 1,
    TextRoot = 2,
    Adapter = 3,
    Salt = 4,
    Item = 5,
    Lookahead = 6,
}

/// The key before the first block of a sequence.
pub fn root(size: BlockSize, adapter: Option<&str>) -> BlockKey {
    let start = fold(
        BlockKey(0),
        Tag::TokenRoot,
        &u64::from(size.get()).to_le_bytes(),
    );
    let start = match size.lookahead {
        0 => start,
        lookahead => fold(start, Tag::Lookahead, &[lookahead]),
    };
    with_adapter(start, adapter)
}

/// The key of one block that follows `parent`.
///
/// `extra` is what the block's hash covers besides its tokens; its `unknown` flag is
/// the caller's to look at, because such a block has no key.
pub fn block_key(parent: BlockKey, tokens: &[u32], extra: Option<&BlockExtra>) -> BlockKey {
    let Some(extra) = extra else {
        return chain(parent, tokens);
    };
    let key = chain(with_extra(parent, extra), tokens);
    if extra.lookahead.is_empty() {
        key
    } else {
        with_lookahead(key, &extra.lookahead)
    }
}

/// The keys of a prompt's full blocks, in order. A prompt that begins with another
/// one's full blocks begins with that one's keys. Where a key covers tokens that follow, a block
/// without enough of them behind it has none.
pub fn prompt_keys(tokens: &[u32], size: BlockSize, scope: &Scope) -> Vec<BlockKey> {
    let mut key = with_salt(root(size, scope.adapter.as_deref()), scope.salt.as_deref());
    let blocks = tokens.chunks_exact(size.get() as usize);
    if size.lookahead == 0 {
        let next = |block| {
            key = chain(key, block);
            key
        };
        return blocks.map(next).collect();
    }
    let ends = (1..).map(|n: usize| n * size.get() as usize);
    blocks
        .zip(ends)
        .map_while(|(block, end)| {
            let ahead = tokens.get(end..end + usize::from(size.lookahead))?;
            key = with_lookahead(chain(key, block), ahead);
            Some(key)
        })
        .collect()
}

/// The keys of a text's whole pieces of [`TEXT_PIECE_BYTES`], in a key space of their own.
pub fn text_keys(text: &[u8], scope: &Scope) -> Vec<BlockKey> {
    let start = with_adapter(
        fold(BlockKey(0), Tag::TextRoot, &[]),
        scope.adapter.as_deref(),
    );
    let mut key = with_salt(start, scope.salt.as_deref());
    let mut bytes = [0_u8; 8 + TEXT_PIECE_BYTES];
    text.chunks_exact(TEXT_PIECE_BYTES)
        .map(|piece| {
            let (before, content) = bytes.split_at_mut(8);
            before.copy_from_slice(&key.0.to_le_bytes());
            content.copy_from_slice(piece);
            key = BlockKey(xxh3_64(&bytes));
            key
        })
        .collect()
}

/// Hashes one block. Up to 256 tokens, which is every common block size, the input
/// is laid out on the stack and hashed in one go: the streaming hasher costs more
/// than the hash of a 16-token block.
fn chain(parent: BlockKey, tokens: &[u32]) -> BlockKey {
    if tokens.len() <= 32 {
        chain_on_stack::<{ 8 + 4 * 32 }>(parent, tokens)
    } else if tokens.len() <= 256 {
        chain_on_stack::<{ 8 + 4 * 256 }>(parent, tokens)
    } else {
        let mut bytes = Vec::with_capacity(8 + 4 * tokens.len());
        bytes.extend_from_slice(&parent.0.to_le_bytes());
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        BlockKey(xxh3_64(&bytes))
    }
}

/// `BYTES` must hold the parent's key and all tokens.
fn chain_on_stack<const BYTES: usize>(parent: BlockKey, tokens: &[u32]) -> BlockKey {
    let mut bytes = [0_u8; BYTES];
    let (before, content) = bytes.split_at_mut(8);
    before.copy_from_slice(&parent.0.to_le_bytes());
    for (place, token) in content.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
        *place = token.to_le_bytes();
    }
    let used = 8 + 4 * tokens.len();
    debug_assert!(used <= BYTES);
    BlockKey(xxh3_64(bytes.get(..used).unwrap_or(&bytes)))
}

fn with_adapter(key: BlockKey, adapter: Option<&str>) -> BlockKey {
    adapter.map_or(key, |name| fold(key, Tag::Adapter, name.as_bytes()))
}

fn with_salt(key: BlockKey, salt: Option<&str>) -> BlockKey {
    salt.map_or(key, |salt| fold(key, Tag::Salt, salt.as_bytes()))
}

fn with_extra(parent: BlockKey, extra: &BlockExtra) -> BlockKey {
    let mut key = with_salt(parent, extra.salt.as_deref());
    for (id, offset) in &extra.items {
        // An absent offset (vLLM up to 0.18) is not the offset 0.
        let mut bytes = Vec::with_capacity(id.len() + 9);
        bytes.push(u8::from(offset.is_some()));
        bytes.extend_from_slice(&offset.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(id.as_bytes());
        key = fold(key, Tag::Item, &bytes);
    }
    key
}

fn with_lookahead(key: BlockKey, ahead: &[u32]) -> BlockKey {
    let bytes: Vec<u8> = ahead.iter().flat_map(|token| token.to_le_bytes()).collect();
    fold(key, Tag::Lookahead, &bytes)
}

/// Folds one tagged value into a key. The tag and the fixed-width key come first and
/// the value ends the input, so no two different inputs have the same bytes.
fn fold(key: BlockKey, tag: Tag, value: &[u8]) -> BlockKey {
    let mut bytes = Vec::with_capacity(9 + value.len());
    bytes.push(tag as u8);
    bytes.extend_from_slice(&key.0.to_le_bytes());
    bytes.extend_from_slice(value);
    BlockKey(xxh3_64(&bytes))
}
