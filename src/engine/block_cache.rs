//! Which blocks of the KV pool hold what: users, cached content, and who is evicted first.
//!
//! As vLLM's block pool: a block that nobody uses stays matchable until it is reused; freed blocks queue
//! with the tail of their sequence first, so that a prefix is eaten from its end; blocks without content
//! worth keeping go to the front (0.31 and later). One block of the pool is never handed out, vLLM's null block.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serializer;

use super::free_list::{BlockId, FreeList};
use crate::routing::block::BlockKey;
use crate::routing::event::{EngineHash, Medium, Stored};

#[derive(Clone, Default)]
struct Block {
    /// Its content, once it is full and registered.
    hash: Option<EngineHash>,
    /// Running requests that hold it. Free exactly if zero.
    users: usize,
}

/// The physical blocks with one content, oldest first. More than one is rare
/// (a recomputed last block, two requests that generate the same text).
enum Copies {
    One(BlockId),
    Several(Vec<BlockId>),
}

/// One content.
struct Content {
    copies: Copies,
    name: Name,
}

/// What a content is, besides the hash that events call it by.
#[derive(Clone)]
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

/// The pool. About 70 bytes a block when all of them are cached.
pub(super) struct BlockCache {
    blocks: Vec<Block>,
    free: FreeList,
    by_hash: FxHashMap<EngineHash, Content>,
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
            blocks: vec![Block::default(); usable],
            free: FreeList::full(usable),
            by_hash: FxHashMap::default(),
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
        hashes
            .iter()
            .map_while(|hash| match &self.by_hash.get(hash)?.copies {
                Copies::One(id) => Some(*id),
                Copies::Several(ids) => ids.first().copied(),
            })
            .collect()
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
        let evicted = self.blocks[id].hash.take();
        let evicted = evicted.and_then(|hash| self.forget_copy(hash, id));
        Some((id, evicted))
    }

    /// A block became full: from now on it can be hit.
    pub(super) fn register(&mut self, id: BlockId, hash: EngineHash, name: Name) {
        self.blocks[id].hash = Some(hash);
        let Some(content) = self.by_hash.get_mut(&hash) else {
            let copies = Copies::One(id);
            self.by_hash.insert(hash, Content { copies, name });
            return;
        };
        match &mut content.copies {
            Copies::Several(ids) => ids.push(id),
            Copies::One(first) => content.copies = Copies::Several(vec![*first, id]),
        }
    }

    /// A request lets go of its blocks, given in the order of its sequence.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id];
            block.users -= 1;
            if block.users > 0 {
                continue;
            }
            if block.hash.is_some() {
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
        for block in &mut self.blocks {
            block.hash = None;
        }
        true
    }

    /// Every cached content, sorted by hash.
    pub(super) fn dump(&self) -> Vec<CachedBlock> {
        let mut all: Vec<_> = self
            .by_hash
            .iter()
            .map(|(hash, content)| {
                let ids = match &content.copies {
                    Copies::One(id) => std::slice::from_ref(id),
                    Copies::Several(ids) => ids.as_slice(),
                };
                CachedBlock {
                    hash: hash.0,
                    key: content.name.key,
                    medium: Medium::Gpu,
                    copies: ids.len(),
                    users: ids.iter().map(|&id| self.blocks[id].users).sum(),
                }
            })
            .collect();
        all.sort_unstable_by_key(|block| block.hash);
        all
    }

    fn forget_copy(&mut self, hash: EngineHash, id: BlockId) -> Option<Evicted> {
        let content = self.by_hash.get_mut(&hash)?;
        let Name { key, described } = content.name.clone();
        let last = match &mut content.copies {
            Copies::Several(ids) => {
                ids.retain(|&copy| copy != id);
                ids.is_empty()
            }
            Copies::One(_) => true,
        };
        if last {
            self.by_hash.remove(&hash);
        }
        Some(Evicted {
            hash,
            key,
            described,
        })
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
                cache.register(id, EngineHash(hash), name);
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
