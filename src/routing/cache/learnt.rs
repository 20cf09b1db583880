//! What requests and reports tell of an engine's cache beyond its events: whose child is this orphan?
//!
//! An engine stores only what is new. Where a prompt's beginning was stored before we listened, the first event of
//! it names a parent that nobody knows. But the picker knows the prompt: if the event's blocks are those of the
//! prompt from block j on, the parent is block j−1, and all before it are cached. The parent then counts as told, under
//! the engine's own name for it, so that its removal is understood; those before it are credited, which have no name yet.
//!
//! Equal tokens at some place of a prompt are no proof that what stands before them is equal too. So all of the event's
//! blocks must agree with the prompt, at one place only; a report of fewer cached tokens drops what was concluded wrongly.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::super::block::{BlockKey, block_key};
use super::super::event::{EngineHash, Medium};
use super::super::ledger::credit::Note;
use super::orphans::Orphan;
use super::residents::Place;
use super::{CacheView, Write, next_key};

/// Blocks hashed in search of parents for one batch: 0.25 ms. A prompt of 8,000 tokens takes 500 for each orphan.
const MAX_HASHES: usize = 20_000;

/// A prompt that is, or was, computed at the endpoint, and how far its orphans may lie.
pub(super) struct Prompt {
    keys: Arc<[BlockKey]>,
    picked_at: Option<Instant>,
}

/// A prefix that must be cached, to be credited once the batch is written.
pub(super) struct Prefix {
    keys: Arc<[BlockKey]>,
    blocks: usize,
    picked_at: Option<Instant>,
}

/// Where an orphan belongs: behind so many blocks of a prompt.
#[derive(Clone, Copy)]
struct Found<'a> {
    prompt: &'a Prompt,
    behind: usize,
    parent: BlockKey,
}

impl CacheView {
    /// Acts on the reports since the last batch: what is not there loses a reference, before this batch's
    /// events, which may store the same blocks anew. Gives back the prompts of which more is cached than was known.
    pub(super) fn read_notes(&mut self) -> Vec<Prompt> {
        let mut known = Vec::new();
        let mut missing = FxHashSet::default();
        for note in self.credits.take_notes() {
            match note {
                Note::Known(keys, blocks) => known.push(Prompt {
                    // Beyond the last block cached nothing can have been stored before.
                    keys: keys
                        .get(..=blocks)
                        .map_or_else(|| Arc::clone(&keys), Arc::from),
                    picked_at: None,
                }),
                Note::Missing(keys) => missing.extend(keys),
            }
        }
        if !missing.is_empty() {
            // An engine looks on every tier for what it computes in the end.
            for medium in [Medium::Gpu, Medium::Cpu, Medium::Storage] {
                for key in self.residents.release(medium, &missing) {
                    self.note_write(medium, Write::Remove(key));
                }
            }
        }
        known
    }

    /// Finds parents: for the orphans since number `first` among the requests in flight, for all among `known` prompts.
    pub(super) fn find_parents(&mut self, first: u64, known: Vec<Prompt>) -> Vec<Prefix> {
        let mut prefixes = Vec::new();
        let mut budget = MAX_HASHES;
        if self.orphans.has_since(first) {
            let chains = self.state.ledger.lock().chains_at(self.feed.endpoint);
            let flying: Vec<Prompt> = chains
                .into_iter()
                .map(|(keys, at)| Prompt {
                    keys,
                    picked_at: Some(at),
                })
                .collect();
            self.bind_all(first, &flying, &mut budget, &mut prefixes);
        }
        if !known.is_empty() && !self.orphans.is_empty() {
            self.bind_all(0, &known, &mut budget, &mut prefixes);
        }
        prefixes
    }

    /// Credits what stands before the parents found, once the events of the batch are written. The engine need not
    /// compute it either.
    pub(super) fn credit(&mut self, prefixes: Vec<Prefix>) {
        for Prefix {
            keys,
            blocks,
            picked_at,
        } in prefixes
        {
            let cached = keys.get(..blocks).unwrap_or_default();
            self.batch.stored.extend_from_slice(cached);
            let Some((at, size)) = picked_at.zip(self.block_size) else {
                // A report credited it already.
                continue;
            };
            let capacity = self.state.ledger.lock().rank_capacity(self.feed.endpoint);
            let (life, size) = (self.credits.life(), u64::from(size.get()));
            let index = &self.state.index;
            self.credits.give(index, life, cached, size, capacity, at);
        }
    }

    /// What events tell takes up room that credits were given.
    pub(super) fn bound_credits(&self) {
        if let Some(size) = self.block_size.filter(|_| self.credits.any()) {
            let capacity = self.state.ledger.lock().rank_capacity(self.feed.endpoint);
            let index = &self.state.index;
            self.credits.bound(index, u64::from(size.get()), capacity);
        }
    }

    fn bind_all(
        &mut self,
        first: u64,
        prompts: &[Prompt],
        budget: &mut usize,
        prefixes: &mut Vec<Prefix>,
    ) {
        for number in self.orphans.newest_since(first) {
            // An orphan may have found its place as the child of one before.
            let Some((parent, orphan)) = self.orphans.get(number) else {
                continue;
            };
            let Some(found) = place_of(orphan, prompts, budget) else {
                continue;
            };
            let pool = orphan.pool;
            prefixes.push(Prefix {
                keys: Arc::clone(&found.prompt.keys),
                blocks: found.behind,
                picked_at: found.prompt.picked_at,
            });
            let key = found.parent;
            self.know(pool, parent, key);
            let children = self.orphans.take_children(parent);
            self.settle_all(
                children
                    .into_iter()
                    .map(|child| (child, Some(key)))
                    .collect(),
            );
        }
    }

    /// A parent is cached and has this key, though no event stored it.
    fn know(&mut self, pool: super::residents::Pool, parent: EngineHash, key: BlockKey) {
        let place = Place::Keyed(key);
        match self.residents.place_of(parent) {
            None => self.enter(pool, parent, place),
            Some(Place::Pending) => {
                let changes = &mut self.batch.changes;
                if self.residents.settle(parent, place, changes) {
                    self.note_entered(pool, place);
                }
            }
            Some(Place::Keyed(_) | Place::Unkeyed | Place::Ambiguous) => {}
        }
    }
}

/// The one place at which an orphan's blocks are those of some prompt; `None` if there are several, or none, or
/// looking for it takes too long.
fn place_of<'a>(orphan: &Orphan, prompts: &'a [Prompt], budget: &mut usize) -> Option<Found<'a>> {
    let event = &orphan.event;
    let extra = event.extras.first();
    if orphan.pool.medium != Medium::Gpu || extra.is_some_and(|extra| extra.unknown) {
        return None;
    }
    let tokens = event.tokens.get(..event.block_size as usize)?;
    let mut only: Option<Found<'a>> = None;
    for prompt in prompts {
        for (before, pair) in prompt.keys.windows(2).enumerate() {
            let &[parent, key] = pair else { continue };
            *budget = budget.checked_sub(1)?;
            if block_key(parent, tokens, extra) != key || !agrees(orphan, prompt, before) {
                continue;
            }
            match only {
                Some(found) if found.parent != parent => return None,
                Some(_) => {}
                None => {
                    only = Some(Found {
                        prompt,
                        behind: before + 1,
                        parent,
                    });
                }
            }
        }
    }
    only
}

/// All of an orphan's blocks are the prompt's from block `before + 1` on, as far as that goes.
fn agrees(orphan: &Orphan, prompt: &Prompt, before: usize) -> bool {
    let mut key = prompt.keys.get(before).copied();
    let rest = prompt.keys.get(before + 1..).unwrap_or_default();
    (0..orphan.event.hashes.len())
        .zip(rest)
        .all(|(i, expected)| {
            key = next_key(key, &orphan.event, i);
            key == Some(*expected)
        })
}
