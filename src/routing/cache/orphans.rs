//! Stores whose parent has not come yet, bounded in blocks, oldest dropped first.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::super::event::{EngineHash, Stored};
use super::residents::Pool;

/// A store kept aside.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) pool: Pool,
    pub(super) event: Stored,
}

impl Orphan {
    pub(super) fn new(pool: Pool, event: Stored) -> Self {
        Self { pool, event }
    }

    fn blocks(&self) -> usize {
        self.event.hashes.len()
    }
}

/// All stores kept aside.
#[derive(Debug)]
pub(super) struct Orphans {
    limit: usize,
    blocks: usize,
    next: u64,
    /// By order of arrival, with the parent waited for.
    waiting: BTreeMap<u64, (EngineHash, Orphan)>,
    by_parent: FxHashMap<EngineHash, Vec<u64>>,
}

impl Orphans {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            blocks: 0,
            next: 0,
            waiting: BTreeMap::new(),
            by_parent: FxHashMap::default(),
        }
    }

    pub(super) fn set_limit(&mut self, blocks: usize) {
        self.limit = blocks;
    }

    /// Blocks kept aside.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps one more; what had to go for it is returned, oldest first.
    pub(super) fn push(&mut self, parent: EngineHash, orphan: Orphan) -> Vec<Orphan> {
        self.blocks += orphan.blocks();
        self.by_parent.entry(parent).or_default().push(self.next);
        self.waiting.insert(self.next, (parent, orphan));
        self.next += 1;
        let mut lost = Vec::new();
        while self.blocks > self.limit
            && let Some((number, (parent, orphan))) = self.waiting.pop_first()
        {
            self.blocks -= orphan.blocks();
            if let Some(siblings) = self.by_parent.get_mut(&parent) {
                siblings.retain(|&sibling| sibling != number);
                if siblings.is_empty() {
                    self.by_parent.remove(&parent);
                }
            }
            lost.push(orphan);
        }
        lost
    }

    /// The number that the next one gets.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// One with this number or a later one waits.
    pub(super) fn has_since(&self, first: u64) -> bool {
        self.waiting.range(first..).next().is_some()
    }

    /// The numbers of those that came since, newest first.
    pub(super) fn newest_since(&self, first: u64) -> Vec<u64> {
        self.waiting.range(first..).rev().map(|(&n, _)| n).collect()
    }

    /// One by its number, with the parent waited for.
    pub(super) fn get(&self, number: u64) -> Option<(EngineHash, &Orphan)> {
        let (parent, orphan) = self.waiting.get(&number)?;
        Some((*parent, orphan))
    }

    /// Hands over those that wait for `parent`, in order of arrival.
    pub(super) fn take_children(&mut self, parent: EngineHash) -> Vec<Orphan> {
        let numbers = self.by_parent.remove(&parent).unwrap_or_default();
        let mut children = Vec::with_capacity(numbers.len());
        for number in numbers {
            if let Some((_, orphan)) = self.waiting.remove(&number) {
                self.blocks -= orphan.blocks();
                children.push(orphan);
            }
        }
        children
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            next: self.next,
            ..Self::new(self.limit)
        };
    }
}
