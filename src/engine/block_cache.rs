//! Which blocks of the KV pool hold what: users, cached content, and who is evicted first.
//!
//! As vLLM's block pool: a block that nobody uses stays matchable until it is reused; freed blocks queue
//! with the tail of their sequence first, so that a prefix is eaten from its end; blocks without content
//! worth keeping go to the front (0.31 and later). One block of the pool is never handed out, vLLM's null block.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serializer;

use super::content_table::{ContentTable, TOUCHED_AHEAD};
use super::free_list::{BlockId, FreeList};
use crate::routing::block::BlockKey;
use crate::routing::event::{EngineHash, Medium, Stored};

/// One physical block. Two of them share a cache line, and the tables of a fleet of engines do not fit any cache: a
/// simulated request touches a thousand of these.
#[derive(Clone, Copy)]
struct Block {
    /// Its content, if it is cached.
    hash: EngineHash,
    /// The picker's name of the same.
    key: BlockKey,
    /// Running requests that hold it. Free exactly if zero.
    users: u32,
    /// The next younger block with the same content, or [`NO_BLOCK`]. There rarely is one: a recomputed last block, two
    /// requests that generate the same text.
    younger: u32,
    /// The block registered last behind this one: most likely the next one of the prompts that hit this one.
    behind: u32,
    /// It is full and registered.
    cached: bool,
    /// No older block has its content.
    oldest: bool,
}

const NO_BLOCK: u32 = u32::MAX;

const UNUSED: Block = Block {
    hash: EngineHash(0),
    key: BlockKey(0),
    users: 0,
    younger: NO_BLOCK,
    behind: NO_BLOCK,
    cached: false,
    oldest: false,
};

/// What a content is, besides the hash that events call it by.
pub(super) struct Name {
    /// The picker's key.
    pub(super) key: BlockKey,
    /// The whole block, where it is to be told of again when it moves.
    pub(super) described: Option<Arc<Stored>>,
}

/// A content that lost a physical block.
pub(super) struct Evicted {
    pub(super) hash: EngineHash,
    pub(super) key: BlockKey,
    pub(super) described: Option<Arc<Stored>>,
}

/// One cached content, as the debug route shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CachedBlock {
    /// The name that KV events give it.
    pub hash: u64,
    /// The picker's own name for it, made of the same tokens, adapter and salt: what its view must hold. In JSON as
    /// 16 hexadecimal digits.
    #[serde(serialize_with = "as_hex")]
    pub key: BlockKey,
    /// Where it lies; in JSON as events call it.
    #[serde(serialize_with = "as_events_call_it")]
    pub medium: Medium,
    /// Physical blocks that hold it: what a reader of the events must have counted.
    pub copies: usize,
    /// Running requests that hold one of them.
    pub users: usize,
}

fn as_hex<S: Serializer>(key: &BlockKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{:016x}", key.0))
}

fn as_events_call_it<S: Serializer>(medium: &Medium, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU",
        Medium::Storage => "STORAGE",
    })
}

/// The pool. 56 to 72 bytes a block: 32 here, 8 in the list, 16 to 32 in the table.
pub(super) struct BlockCache {
    blocks: Vec<Block>,
    free: FreeList,
    /// The oldest block with each content.
    by_hash: ContentTable,
    /// What blocks are told as when they move to the tier beneath; nothing where that does not describe them.
    described: FxHashMap<BlockId, Arc<Stored>>,
}

#[expect(
    clippy::indexing_slicing,
    reason = "block numbers are made here and are all below the length of the pool"
)]
impl BlockCache {
    /// A pool of `blocks`, of which one is never used.
    pub(super) fn new(blocks: usize) -> Self {
        let usable = blocks.saturating_sub(1);
        Self {
            blocks: vec![UNUSED; usable],
            free: FreeList::full(usable),
            by_hash: ContentTable::new(usable),
            described: FxHashMap::default(),
        }
    }

    /// Blocks that nobody uses, cached or not.
    pub(super) const fn free(&self) -> usize {
        self.free.len()
    }

    /// Share of the pool in use by running requests, 0 to 1.
    pub(super) fn usage(&self) -> f64 {
        let used = self.blocks.len() - self.free.len();
        used as f64 / self.blocks.len().max(1) as f64
    }

    /// The longest run of cached blocks from the start of `hashes`.
    pub(super) fn longest_prefix(&self, hashes: &[EngineHash]) -> Vec<BlockId> {
        let mut found = Vec::with_capacity(hashes.len());
        let mut behind = NO_BLOCK;
        for hash in hashes {
            // The table's places are scattered, blocks that follow each other mostly are not.
            let next = self.blocks.get(behind as BlockId);
            let is_it = next.is_some_and(|next| next.cached && next.oldest && next.hash == *hash);
            let id = if is_it {
                behind as BlockId
            } else {
                match self.by_hash.get(*hash, |id| self.blocks[id].hash == *hash) {
                    Some(id) => id,
                    None => break,
                }
            };
            behind = self.blocks[id].behind;
            found.push(id);
        }
        found
    }

    /// Nobody uses the block: holding it takes it off the free list.
    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id].users == 0
    }

    /// One more running request holds a cached block.
    pub(super) fn hold(&mut self, id: BlockId) {
        if self.blocks[id].users == 0 {
            self.free.remove(id);
        }
        self.blocks[id].users += 1;
    }

    /// Takes the next free block for new content, and names the content this evicts.
    pub(super) fn take(&mut self) -> Option<(BlockId, Option<Evicted>)> {
        let id = self.free.pop_front()?;
        self.blocks[id].users = 1;
        let evicted = self.blocks[id].cached.then(|| self.evict(id));
        Some((id, evicted))
    }

    /// A block became full: from now on it can be hit. `before` is the one before it in its sequence.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a pool of four billion blocks does not fit any memory"
    )]
    pub(super) fn register(
        &mut self,
        before: Option<BlockId>,
        id: BlockId,
        hash: EngineHash,
        name: Name,
    ) {
        if let Some(before) = before {
            self.blocks[before].behind = id as u32;
        }
        let block = &mut self.blocks[id];
        (block.hash, block.key, block.cached) = (hash, name.key, true);
        (block.younger, block.behind) = (NO_BLOCK, NO_BLOCK);
        if let Some(described) = name.described {
            self.described.insert(id, described);
        }
        let blocks = &self.blocks;
        let oldest = self
            .by_hash
            .get(hash, |it| it != id && blocks[it].hash == hash);
        let Some(mut last) = oldest else {
            self.by_hash.set(hash, id, |_| false);
            self.blocks[id].oldest = true;
            return;
        };
        while self.blocks[last].younger != NO_BLOCK {
            last = self.blocks[last].younger as BlockId;
        }
        self.blocks[last].younger = id as u32;
        self.blocks[id].oldest = false;
    }

    /// These are registered next: loads the places where they will stand.
    pub(super) fn touch(&self, hashes: &[EngineHash]) {
        let loaded = hashes
            .iter()
            .fold(0, |loaded, &hash| loaded ^ self.by_hash.touch(hash));
        // Keeps the loads, which nobody else needs the result of.
        std::hint::black_box(loaded);
    }

    /// Loads what is looked at when so many of the free blocks are taken.
    pub(super) fn touch_free(&self, blocks: usize) {
        let next = self.free.first(blocks.min(TOUCHED_AHEAD));
        let loaded = next.fold(0, |loaded, id| {
            loaded ^ self.by_hash.touch(self.blocks[id].hash)
        });
        std::hint::black_box(loaded);
    }

    /// A request lets go of its blocks, given in the order of its sequence.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id];
            block.users -= 1;
            if block.users > 0 {
                continue;
            }
            if block.cached {
                self.free.push_back(id);
            } else {
                self.free.push_front(id);
            }
        }
    }

    /// Forgets all content, unless a running request holds a block: then nothing changes and the answer is false.
    pub(super) fn clear(&mut self) -> bool {
        if self.free.len() != self.blocks.len() {
            return false;
        }
        self.by_hash.clear();
        self.described.clear();
        for block in &mut self.blocks {
            block.cached = false;
        }
        true
    }

    /// Every cached content, sorted by hash.
    pub(super) fn dump(&self) -> Vec<CachedBlock> {
        let mut all: Vec<_> = self
            .by_hash
            .blocks()
            .map(|oldest| CachedBlock {
                hash: self.blocks[oldest].hash.0,
                key: self.blocks[oldest].key,
                medium: Medium::Gpu,
                copies: self.copies(oldest).count(),
                users: self.copies(oldest).map(|block| block.users as usize).sum(),
            })
            .collect();
        all.sort_unstable_by_key(|block| block.hash);
        all
    }

    /// The blocks with one content, from the oldest on.
    fn copies(&self, oldest: BlockId) -> impl Iterator<Item = &Block> {
        let next = |it: &&Block| self.blocks.get(it.younger as BlockId);
        std::iter::successors(self.blocks.get(oldest), next)
    }

    /// Takes a block that is not the oldest with its content out of the list of them.
    fn unlink(&mut self, hash: EngineHash, id: BlockId, younger: u32) {
        let blocks = &self.blocks;
        let oldest = self.by_hash.get(hash, |it| blocks[it].hash == hash);
        let mut before = oldest;
        while let Some(at) = before {
            let next = self.blocks[at].younger;
            if next as BlockId == id {
                self.blocks[at].younger = younger;
                return;
            }
            before = (next != NO_BLOCK).then_some(next as BlockId);
        }
    }

    /// A block loses its content.
    fn evict(&mut self, id: BlockId) -> Evicted {
        let Block {
            hash, key, younger, ..
        } = self.blocks[id];
        self.blocks[id].cached = false;
        if self.blocks[id].oldest {
            if younger == NO_BLOCK {
                self.by_hash.remove(hash, id);
            } else {
                self.by_hash.set(hash, younger as BlockId, |it| it == id);
                self.blocks[younger as BlockId].oldest = true;
            }
        } else {
            self.unlink(hash, id, younger);
        }
        let described = if self.described.is_empty() {
            None
        } else {
            self.described.remove(&id)
        };
        Evicted {
            hash,
            key,
            described,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(cache: &mut BlockCache, hashes: &[u64]) -> Vec<BlockId> {
        hashes
            .iter()
            .map(|&hash| {
                let (id, _) = cache.take().unwrap();
                let name = Name {
                    key: BlockKey(!hash),
                    described: None,
                };
                cache.register(None, id, EngineHash(hash), name);
                id
            })
            .collect()
    }

    /// The content that the next block taken had.
    fn evict(cache: &mut BlockCache) -> Option<u64> {
        let (_, evicted) = cache.take().unwrap();
        evicted.map(|evicted| evicted.hash.0)
    }

    #[test]
    fn the_tail_of_a_freed_sequence_is_evicted_before_its_head() {
        let mut cache = BlockCache::new(4);
        let ids = store(&mut cache, &[1, 2, 3]);
        cache.release(&ids);
        let evicted: Vec<_> = (0..3).map(|_| evict(&mut cache).unwrap()).collect();
        assert_eq!(evicted, [3, 2, 1]);
    }

    #[test]
    fn a_block_without_content_is_reused_before_cached_ones() {
        let mut cache = BlockCache::new(4);
        let mut ids = store(&mut cache, &[1, 2]);
        ids.push(cache.take().unwrap().0);
        cache.release(&ids);
        assert_eq!(evict(&mut cache), None);
        assert_eq!(evict(&mut cache), Some(2));
    }

    #[test]
    fn content_stored_twice_is_gone_only_after_both_copies() {
        let mut cache = BlockCache::new(3);
        let ids = store(&mut cache, &[7, 7]);
        assert_eq!(cache.dump()[0].copies, 2);
        cache.release(&ids);
        assert_eq!(evict(&mut cache), Some(7));
        assert_eq!(cache.longest_prefix(&[EngineHash(7)]).len(), 1);
        assert_eq!(evict(&mut cache), Some(7));
        assert!(cache.longest_prefix(&[EngineHash(7)]).is_empty());
        assert!(cache.dump().is_empty());
    }

    #[test]
    fn a_pool_in_use_is_not_cleared() {
        let mut cache = BlockCache::new(3);
        let ids = store(&mut cache, &[1]);
        assert!(!cache.clear());
        cache.release(&ids);
        assert!(cache.clear());
        assert!(cache.dump().is_empty());
        assert_eq!(evict(&mut cache), None);
    }
}
