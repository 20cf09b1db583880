//! Which blocks does host memory still hold? Those evicted from the pool, the least recently used going first.
//!
//! As vLLM's offloading connector: a block that leaves the pool is still here, a prompt that continues with it loads it
//! back instead of computing it, and events tell of it under the medium of the CPU.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::block_cache::{CachedBlock, Evicted};
use crate::routing::block::BlockKey;
use crate::routing::event::{EngineHash, KvEvent, Medium, Removed, Stored};

struct Held {
    key: BlockKey,
    used: u64,
}

/// The tier. Without capacity nothing is ever in it.
pub(super) struct LowerTier {
    capacity: usize,
    blocks: FxHashMap<EngineHash, Held>,
    /// By when they were used, the oldest first.
    by_use: BTreeMap<u64, EngineHash>,
    uses: u64,
}

impl LowerTier {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: FxHashMap::default(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// How many of these blocks follow each other here. They count as used.
    pub(super) fn longest_prefix(&mut self, hashes: &[EngineHash]) -> usize {
        let found = hashes
            .iter()
            .take_while(|hash| self.blocks.contains_key(hash));
        let found = found.count();
        // The tail is older than the head: a prefix is eaten from its end.
        for &hash in hashes.iter().take(found).rev() {
            self.touch(hash);
        }
        found
    }

    /// Takes over a block that leaves the pool; what this tells.
    pub(super) fn offload(&mut self, evicted: &Evicted) -> Vec<KvEvent> {
        if self.capacity == 0 || self.touch(evicted.hash) {
            return Vec::new();
        }
        let mut events = Vec::new();
        while self.blocks.len() >= self.capacity {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.blocks.remove(&oldest);
            events.push(KvEvent::Removed(Removed {
                hashes: vec![oldest],
                medium: Medium::Cpu,
                group: None,
            }));
        }
        let held = Held {
            key: evicted.key,
            used: self.uses,
        };
        self.blocks.insert(evicted.hash, held);
        self.by_use.insert(self.uses, evicted.hash);
        self.uses += 1;
        events.push(KvEvent::Stored(told(evicted)));
        events
    }

    /// Forgets everything. vLLM's connector tells nobody.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.by_use.clear();
    }

    /// What is here, in no order.
    pub(super) fn dump(&self) -> impl Iterator<Item = CachedBlock> {
        self.blocks.iter().map(|(hash, held)| CachedBlock {
            hash: hash.0,
            key: held.key,
            medium: Medium::Cpu,
            copies: 1,
            users: 0,
        })
    }

    /// True if the block is here; it counts as used.
    fn touch(&mut self, hash: EngineHash) -> bool {
        let Some(held) = self.blocks.get_mut(&hash) else {
            return false;
        };
        self.by_use.remove(&held.used);
        held.used = self.uses;
        self.by_use.insert(self.uses, hash);
        self.uses += 1;
        true
    }
}

/// The whole block where the connector describes what it stores, else its hash alone.
fn told(evicted: &Evicted) -> Stored {
    match &evicted.described {
        Some(block) => Stored {
            medium: Medium::Cpu,
            ..Stored::clone(block)
        },
        None => Stored {
            hashes: vec![evicted.hash],
            parent: None,
            tokens: Vec::new(),
            opaque_tokens: false,
            block_size: 0,
            lora_name: None,
            extras: Vec::new(),
            medium: Medium::Cpu,
            group: None,
            indexable_group: true,
        },
    }
}
