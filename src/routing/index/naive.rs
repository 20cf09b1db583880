//! The index as literally as can be, to hold the real one against.

use std::collections::{BTreeMap, BTreeSet};

use super::super::block::BlockKey;

/// Every source's blocks as a plain set, by slot.
#[derive(Debug, Default)]
pub(super) struct NaiveIndex {
    held: BTreeMap<u32, BTreeSet<BlockKey>>,
}

impl NaiveIndex {
    pub(super) fn store(&mut self, slot: u32, key: BlockKey) -> bool {
        self.held.entry(slot).or_default().insert(key)
    }

    pub(super) fn remove(&mut self, slot: u32, key: BlockKey) -> bool {
        self.held
            .get_mut(&slot)
            .is_some_and(|keys| keys.remove(&key))
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.held.remove(&slot);
    }

    pub(super) fn blocks(&self, slot: u32) -> u64 {
        self.held.get(&slot).map_or(0, |keys| keys.len() as u64)
    }

    pub(super) fn distinct(&self) -> usize {
        self.held.values().flatten().collect::<BTreeSet<_>>().len()
    }

    pub(super) fn lookup(&self, keys: &[BlockKey]) -> BTreeMap<u32, u32> {
        self.held
            .iter()
            .map(|(&slot, held)| {
                let blocks = keys.iter().take_while(|key| held.contains(key)).count();
                (slot, u32::try_from(blocks).unwrap())
            })
            .filter(|&(_, blocks)| blocks > 0)
            .collect()
    }
}
