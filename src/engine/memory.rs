//! Where does the KV of requests lie, and what do events tell of it? The pool, and a lower tier beneath it.

use std::sync::Arc;

use super::block_cache::{BlockCache, CachedBlock, Evicted, Name};
use super::content_table::TOUCHED_AHEAD;
use super::free_list::BlockId;
use super::lower_tier::LowerTier;
use super::model::Settings;
use super::sequence::Sequence;
use crate::routing::block::BlockKey;
use crate::routing::event::{BlockExtra, EngineHash, KeyChange, KvEvent, Medium, Removed, Stored};

/// The pool, what is beneath it, and what is to be told of both.
pub(super) struct Memory {
    pub(super) cache: BlockCache,
    lower: LowerTier,
    /// Events since the last step was published.
    pub(super) events: Vec<KvEvent>,
    /// The same by key; one of the two lists is empty.
    pub(super) changes: Vec<KeyChange>,
    by_keys: bool,
}

impl Memory {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            cache: BlockCache::new(settings.blocks),
            lower: LowerTier::new(settings.lower_blocks),
            events: Vec::new(),
            changes: Vec::new(),
            by_keys: false,
        }
    }

    /// From now on the pool's changes are told by key. The tier beneath it has no such way.
    pub(super) const fn tell_by_keys(&mut self) {
        self.by_keys = true;
    }

    /// The longest run of blocks from the start of `hashes` that are in the pool, and how many after them are beneath.
    pub(super) fn longest_prefix(&mut self, hashes: &[EngineHash]) -> (Vec<BlockId>, usize) {
        let hits = self.cache.longest_prefix(hashes);
        let beneath = hashes.get(hits.len()..).unwrap_or_default();
        let beneath = self.lower.longest_prefix(beneath);
        (hits, beneath)
    }

    /// Gives a request the blocks for its next `tokens`, and registers those that become full.
    /// False, and nothing changed, if the pool has not enough free blocks.
    pub(super) fn compute(
        &mut self,
        settings: &Settings,
        sequence: &mut Sequence,
        tokens: usize,
    ) -> bool {
        let block_size = settings.block_size.get() as usize;
        let end = sequence.computed + tokens;
        // Most steps stay in a block that is there; this comparison needs no division.
        if end <= sequence.blocks.len() * block_size && end < (sequence.registered + 1) * block_size
        {
            sequence.computed = end;
            sequence.scheduled = tokens;
            return true;
        }
        let missing = end
            .div_ceil(block_size)
            .saturating_sub(sequence.blocks.len());
        if missing > self.cache.free() {
            return false;
        }
        for left in (1..=missing).rev() {
            if (missing - left).is_multiple_of(TOUCHED_AHEAD) {
                self.cache.touch_free(left);
            }
            let Some((id, evicted)) = self.cache.take() else {
                break;
            };
            sequence.blocks.push(id);
            if let Some(evicted) = evicted {
                self.evict(&evicted);
            }
        }
        sequence.computed = end;
        sequence.scheduled = tokens;
        self.register_full_blocks(settings, sequence);
        true
    }

    /// The lower tier has the block before the pool is rid of it, so that its hash is never unknown in between.
    fn evict(&mut self, evicted: &Evicted) {
        if self.by_keys {
            self.note(evicted.key, false);
            return;
        }
        self.events.extend(self.lower.offload(evicted));
        self.events.push(KvEvent::Removed(Removed {
            hashes: vec![evicted.hash],
            medium: Medium::Gpu,
            group: Some(0),
        }));
    }

    fn register_full_blocks(&mut self, settings: &Settings, sequence: &mut Sequence) {
        let block_size = settings.block_size.get() as usize;
        let (from, to) = (sequence.registered, sequence.computed / block_size);
        if from >= to {
            return;
        }
        for at in from..to {
            if (at - from).is_multiple_of(TOUCHED_AHEAD) {
                let next = at..to.min(at + TOUCHED_AHEAD);
                self.cache
                    .touch(sequence.hashes.get(next).unwrap_or_default());
            }
            let (Some(&id), Some(&hash), Some(key)) = (
                sequence.blocks.get(at),
                sequence.hashes.get(at),
                sequence.key(at),
            ) else {
                break;
            };
            let described = (settings.lower_blocks > 0 && settings.lower_describes)
                .then(|| Arc::new(stored(settings, sequence, at, at + 1)));
            let before = at.checked_sub(1).and_then(|at| sequence.blocks.get(at));
            let name = Name { key, described };
            self.cache.register(before.copied(), id, hash, name);
        }
        sequence.registered = to;
        if self.by_keys {
            let stored = |key| KeyChange { key, stored: true };
            let keys = (from..to).filter_map(|at| sequence.key(at));
            self.changes.extend(keys.map(stored));
        } else {
            let stored = stored(settings, sequence, from, to);
            self.events.push(KvEvent::Stored(stored));
        }
    }

    fn note(&mut self, key: BlockKey, stored: bool) {
        self.changes.push(KeyChange { key, stored });
    }

    /// Forgets what is in the pool, unless a running request holds a block: then nothing changes and the answer is
    /// false. The next step announces it.
    pub(super) fn clear(&mut self) -> bool {
        let cached = if self.by_keys {
            self.cache.dump()
        } else {
            Vec::new()
        };
        let done = self.cache.clear();
        if done && self.by_keys {
            for block in cached {
                for _ in 0..block.copies {
                    self.note(block.key, false);
                }
            }
        } else if done {
            self.events.push(KvEvent::Cleared);
        }
        done
    }

    /// Forgets what is beneath the pool, which nobody is told.
    pub(super) fn clear_lower(&mut self) {
        self.lower.clear();
    }

    /// Every cached content, sorted by hash, the pool before what is beneath it.
    pub(super) fn dump(&self) -> Vec<CachedBlock> {
        let mut all = self.cache.dump();
        all.extend(self.lower.dump());
        all.sort_by_key(|block| (block.hash, block.medium != Medium::Gpu));
        all
    }
}

/// What is told of some blocks of a request.
fn stored(settings: &Settings, sequence: &Sequence, from: usize, to: usize) -> Stored {
    let block_size = settings.block_size.get() as usize;
    let scope = &sequence.request.scope;
    let extras = match (from, &scope.salt) {
        (0, Some(salt)) => {
            let mut extras = vec![BlockExtra::default(); to];
            if let Some(first) = extras.first_mut() {
                first.salt = Some(salt.to_string());
            }
            extras
        }
        _ => Vec::new(),
    };
    Stored {
        hashes: sequence.hashes.get(from..to).unwrap_or_default().to_vec(),
        parent: from
            .checked_sub(1)
            .and_then(|at| sequence.hashes.get(at).copied()),
        tokens: sequence.block_tokens(from, to, block_size),
        opaque_tokens: false,
        block_size: settings.block_size.get(),
        lora_name: scope.adapter.as_deref().map(str::to_owned),
        extras,
        medium: Medium::Gpu,
        group: Some(0),
        indexable_group: true,
    }
}
