//! KV-cache events in our own words: what an engine says entered or left its cache.
//!
//! `feeds/kv_wire.rs` makes these from every dialect of msgpack; the cache view
//! applies them. An engine in the same process that calls its blocks by the index's keys
//! tells key changes instead. Engine hashes are only names for parents and removals, never keys
//! of the index: that is the chained hash of the token ids themselves.

use super::block::BlockKey;

/// A block entered or left a cache, told by the index's own key: what an engine in the same process may tell instead of
/// events. A key stored twice is two physical blocks, and gone when both are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Which.
    pub key: BlockKey,
    /// It entered; else it left.
    pub stored: bool,
}

/// An engine's own name for a block: an integer folded to `u64` by two's complement
/// (so signed and unsigned views of one hash are equal), or a digest folded to `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineHash(pub u64);

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// The accelerator's KV pool (also said by CPU-only engines); the default.
    Gpu,
    /// Host memory (`CPU`, `CPU_PINNED`).
    Cpu,
    /// Anything slower (`DISK`, `STORAGE`, `FS`, `OBJ`, `EXTERNAL`).
    Storage,
}

/// What a block's hash covers besides its own tokens and the adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockExtra {
    /// The request's `cache_salt`, in the first block of a sequence only.
    pub salt: Option<String>,
    /// Multimodal item ids (with their offsets) that overlap this block, in order.
    pub items: Vec<(String, Option<i64>)>,
    /// The tokens that follow the block, where its hash covers some (speculative decoding that looks
    /// ahead): the block serves only prompts that go on with them.
    pub lookahead: Vec<u32>,
    /// Something of unknown meaning was among the keys: the block cannot be keyed by us.
    pub unknown: bool,
}

/// One `BlockStored`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The engine's names of the blocks, in sequence order.
    pub hashes: Vec<EngineHash>,
    /// The block before the first one; `None` at the start of a sequence.
    pub parent: Option<EngineHash>,
    /// Token ids of all logical blocks in the range; empty for a mere residency change.
    pub tokens: Vec<u32>,
    /// The token ids were of a kind that cannot be keyed (bigrams, strings).
    pub opaque_tokens: bool,
    /// Tokens a block; 0 is a placeholder of offload connectors.
    pub block_size: u32,
    /// The adapter whose blocks these are.
    pub lora_name: Option<String>,
    /// One entry a block, or empty when the engine sends none.
    pub extras: Vec<BlockExtra>,
    /// Where they lie.
    pub medium: Medium,
    /// The cache group, when the engine has several.
    pub group: Option<u32>,
    /// The group's blocks are dense and can serve a prefix hit (full attention).
    pub indexable_group: bool,
}

/// One `BlockRemoved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The engine's names of the blocks.
    pub hashes: Vec<EngineHash>,
    /// Where they lay.
    pub medium: Medium,
    /// The cache group.
    pub group: Option<u32>,
}

/// One event of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum KvEvent {
    /// Blocks entered the cache.
    Stored(Stored),
    /// Blocks left the cache.
    Removed(Removed),
    /// The whole cache was dropped.
    Cleared,
}
