//! The index as literally as can be, to hold the real one against.

use std::collections::{BTreeMap, BTreeSet};

use super::super::block::BlockKey;

/// Every source's blocks with the number of reasons to hold them, by slot.
#[derive(Debug, Default)]
pub(super) struct NaiveIndex {
    held: BTreeMap<u32, BTreeMap<BlockKey, u32>>,
}

impl NaiveIndex {
    pub(super) fn store(&mut self, slot: u32, key: BlockKey) -> bool {
        let reasons = self.held.entry(slot).or_default().entry(key).or_insert(0);
        *reasons += 1;
        *reasons == 1
    }

    pub(super) fn remove(&mut self, slot: u32, key: BlockKey) -> bool {
        let Some(keys) = self.held.get_mut(&slot) else {
            return false;
        };
        match keys.remove(&key) {
            None => false,
            Some(1) => true,
            Some(reasons) => {
                keys.insert(key, reasons - 1);
                false
            }
        }
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.held.remove(&slot);
    }

    pub(super) fn blocks(&self, slot: u32) -> u64 {
        self.held.get(&slot).map_or(0, |keys| keys.len() as u64)
    }

    pub(super) fn keys(&self, slot: u32) -> Vec<BlockKey> {
        let held = self.held.get(&slot);
        held.map_or_else(Vec::new, |keys| keys.keys().copied().collect())
    }

    pub(super) fn distinct(&self) -> usize {
        self.held
            .values()
            .flat_map(BTreeMap::keys)
            .collect::<BTreeSet<_>>()
            .len()
    }

    pub(super) fn lookup(&self, keys: &[BlockKey]) -> BTreeMap<u32, u32> {
        self.held
            .iter()
            .map(|(&slot, held)| {
                let blocks = keys.iter().take_while(|key| held.contains_key(key)).count();
                (slot, u32::try_from(blocks).unwrap())
            })
            .filter(|&(_, blocks)| blocks > 0)
            .collect()
    }
}
