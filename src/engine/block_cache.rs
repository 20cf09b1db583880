//! Which blocks of the KV pool hold what: users, cached content, and who is evicted first.
//!
//! As vLLM's block pool: a block that nobody uses stays matchable until it is reused; freed blocks queue
//! with the tail of their sequence first, so that a prefix is eaten from its end; blocks without content
//! worth keeping go to the front (0.31 and later). One block of the pool is never handed out, vLLM's null block.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serializer;

use super::content_table::{ContentTable, TOUCHED_AHEAD};
use super::free_list::{BlockId, FreeList, Place};
use crate::routing::block::BlockKey;
use crate::routing::event::{EngineHash, Medium, Stored};

/// What one physical block contains.
#[derive(Clone, Copy)]
struct Content {
    hash: EngineHash,
    /// The block registered last behind this one: most likely the next one of the prompts that hit this one.
    behind: u32,
    /// It is full and registered. Otherwise the rest means nothing.
    cached: bool,
    /// No older block has its content.
    oldest: bool,
    /// A younger one has its content as well. There rarely is one: a recomputed last block, two requests that generate
    /// the same text.
    followed: bool,
}

const EMPTY: Content = Content {
    hash: EngineHash(0),
    behind: NO_BLOCK,
    cached: false,
    oldest: false,
    followed: false,
};

const NO_BLOCK: BlockId = BlockId::MAX;

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

/// The pool. 44 to 64 bytes a block: 24 here, 4 to 8 in the list, 16 to 32 in the table. The tables of a fleet of engines
/// do not fit any cache and a simulated request touches a thousand places of them, so what is not changed together stands
/// apart, and what few blocks have is not kept for each.
pub(super) struct BlockCache {
    contents: Vec<Content>,
    /// Running requests that hold each block. Free exactly if zero.
    users: Vec<u32>,
    /// Where each free block stands among the free ones.
    places: Vec<Place>,
    free: FreeList,
    /// The oldest block with each content.
    by_hash: ContentTable,
    /// The next younger block with the same content, for each that is followed by one.
    younger: FxHashMap<BlockId, BlockId>,
    /// What is known of cached blocks besides their hash. Nothing where the hash is the key itself and all.
    names: FxHashMap<BlockId, Name>,
}

#[expect(
    clippy::indexing_slicing,
    reason = "block numbers are made here and are all below the length of the pool"
)]
impl BlockCache {
    /// A pool of `blocks`, of which one is never used.
    pub(super) fn new(blocks: usize) -> Self {
        // More would fit no memory.
        let usable = u32::try_from(blocks.saturating_sub(1)).unwrap_or(NO_BLOCK - 1);
        let free = FreeList::full(usable);
        Self {
            contents: vec![EMPTY; usable as usize],
            users: vec![0; usable as usize],
            places: free.places().collect(),
            free,
            by_hash: ContentTable::new(usable as usize),
            younger: FxHashMap::default(),
            names: FxHashMap::default(),
        }
    }

    /// Blocks that nobody uses, cached or not.
    pub(super) const fn free(&self) -> usize {
        self.free.len()
    }

    /// Share of the pool in use by running requests, 0 to 1.
    pub(super) fn usage(&self) -> f64 {
        let used = self.users.len() - self.free.len();
        used as f64 / self.users.len().max(1) as f64
    }

    /// The longest run of cached blocks from the start of `hashes`.
    pub(super) fn longest_prefix(&self, hashes: &[EngineHash]) -> Vec<BlockId> {
        let mut found = Vec::with_capacity(hashes.len());
        let mut behind = NO_BLOCK;
        for hash in hashes {
            // The table's places are scattered, blocks that follow each other mostly are not.
            let next = self.contents.get(behind as usize);
            let is_it = next.is_some_and(|next| next.cached && next.oldest && next.hash == *hash);
            let id = if is_it {
                behind
            } else {
                match self.by_hash.get(*hash, |id| self.at(id).hash == *hash) {
                    Some(id) => id,
                    None => break,
                }
            };
            behind = self.at(id).behind;
            found.push(id);
        }
        found
    }

    fn at(&self, id: BlockId) -> &Content {
        &self.contents[id as usize]
    }

    fn at_mut(&mut self, id: BlockId) -> &mut Content {
        &mut self.contents[id as usize]
    }

    /// Nobody uses the block: holding it takes it off the free list.
    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.users[id as usize] == 0
    }

    /// One more running request holds each of these cached blocks.
    pub(super) fn hold(&mut self, ids: &[BlockId]) {
        for &id in ids {
            let users = &mut self.users[id as usize];
            if *users == 0 {
                self.free.remove(self.places[id as usize]);
            }
            *users += 1;
        }
        if self.free.is_mostly_void() {
            let places = &mut self.places;
            self.free.sweep(|id, place| places[id as usize] = place);
        }
    }

    /// Takes the next free block for new content, and names the content this evicts.
    pub(super) fn take(&mut self) -> Option<(BlockId, Option<Evicted>)> {
        let id = self.free.pop_front()?;
        self.users[id as usize] = 1;
        let evicted = self.at(id).cached.then(|| self.evict(id));
        Some((id, evicted))
    }

    /// A block became full: from now on it can be hit. `before` is the one before it in its sequence.
    pub(super) fn register(
        &mut self,
        before: Option<BlockId>,
        id: BlockId,
        hash: EngineHash,
        name: Name,
    ) {
        if let Some(before) = before {
            self.at_mut(before).behind = id;
        }
        if name.key.0 != hash.0 || name.described.is_some() {
            self.names.insert(id, name);
        }
        let contents = &self.contents;
        // The block itself is not in the table, though it may have had this content before.
        let has = |it: BlockId| it != id && contents[it as usize].hash == hash;
        let oldest = self.by_hash.get_or_set(hash, id, has);
        *self.at_mut(id) = Content {
            hash,
            behind: NO_BLOCK,
            cached: true,
            oldest: oldest.is_none(),
            followed: false,
        };
        let Some(mut last) = oldest else {
            return;
        };
        while let Some(&younger) = self.younger.get(&last) {
            last = younger;
        }
        self.at_mut(last).followed = true;
        self.younger.insert(last, id);
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
            loaded ^ self.by_hash.touch(self.at(id).hash)
        });
        std::hint::black_box(loaded);
    }

    /// A request lets go of its blocks, given in the order of its sequence.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let users = &mut self.users[id as usize];
            *users -= 1;
            if *users > 0 {
                continue;
            }
            self.places[id as usize] = if self.contents[id as usize].cached {
                self.free.push_back(id)
            } else {
                self.free.push_front(id)
            };
        }
    }

    /// Forgets all content, unless a running request holds a block: then nothing changes and the answer is false.
    pub(super) fn clear(&mut self) -> bool {
        if self.free.len() != self.users.len() {
            return false;
        }
        self.by_hash.clear();
        self.younger.clear();
        self.names.clear();
        self.contents.fill(EMPTY);
        true
    }

    /// Every cached content, sorted by hash.
    pub(super) fn dump(&self) -> Vec<CachedBlock> {
        let mut all: Vec<_> = self
            .by_hash
            .blocks()
            .map(|oldest| CachedBlock {
                hash: self.at(oldest).hash.0,
                key: self.key(oldest),
                medium: Medium::Gpu,
                copies: self.copies(oldest).count(),
                users: self
                    .copies(oldest)
                    .map(|id| self.users[id as usize] as usize)
                    .sum(),
            })
            .collect();
        all.sort_unstable_by_key(|block| block.hash);
        all
    }

    /// The blocks with one content, from the oldest on.
    fn copies(&self, oldest: BlockId) -> impl Iterator<Item = BlockId> {
        let next = |id: &BlockId| self.younger.get(id).copied();
        std::iter::successors(Some(oldest), next)
    }

    /// The picker's name of a cached block.
    fn key(&self, id: BlockId) -> BlockKey {
        let name = self.names.get(&id);
        name.map_or_else(|| BlockKey(self.at(id).hash.0), |name| name.key)
    }

    /// Takes a block that is not the oldest with its content out of the list of them.
    fn unlink(&mut self, hash: EngineHash, id: BlockId, younger: Option<BlockId>) {
        let mut before = self.by_hash.get(hash, |it| self.at(it).hash == hash);
        while let Some(at) = before {
            let next = self.younger.get(&at).copied();
            if next != Some(id) {
                before = next;
                continue;
            }
            match younger {
                Some(younger) => self.younger.insert(at, younger),
                None => self.younger.remove(&at),
            };
            self.at_mut(at).followed = younger.is_some();
            return;
        }
    }

    /// A block loses its content.
    fn evict(&mut self, id: BlockId) -> Evicted {
        let block = self.at_mut(id);
        let (hash, oldest) = (block.hash, block.oldest);
        block.cached = false;
        let younger = if block.followed {
            self.younger.remove(&id)
        } else {
            None
        };
        match younger {
            _ if !oldest => self.unlink(hash, id, younger),
            None => {
                self.by_hash.remove(hash, id);
            }
            Some(younger) => {
                self.by_hash.set(hash, younger, |it| it == id);
                self.at_mut(younger).oldest = true;
            }
        }
        let name = if self.names.is_empty() {
            None
        } else {
            self.names.remove(&id)
        };
        let unnamed = || Name {
            key: BlockKey(hash.0),
            described: None,
        };
        let Name { key, described } = name.unwrap_or_else(unnamed);
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
