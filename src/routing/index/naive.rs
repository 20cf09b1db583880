//! The index as literally as can be, to hold the real one against.

use std::collections::{BTreeMap, BTreeSet};

use super::super::block::BlockKey;

/// Every source's blocks with the number of reasons to hold them, by slot.
#[derive(Debug, Default)]
pub(super) struct NaiveIndex {
    held: BTreeMap<u32, BTreeMap<BlockKey, u32>>,
    /// The lower slot by the upper one.
    beneath: BTreeMap<u32, u32>,
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

    pub(super) fn put_beneath(&mut self, upper: u32, lower: u32) {
        self.beneath.insert(upper, lower);
    }

    /// Forgets a slot and the one beneath it, which is named.
    pub(super) fn forget(&mut self, slot: u32) -> Option<u32> {
        self.held.remove(&slot);
        let lower = self.beneath.remove(&slot)?;
        self.held.remove(&lower);
        Some(lower)
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

    /// Blocks at hand and beneath, by upper slot.
    pub(super) fn lookup(&self, keys: &[BlockKey]) -> BTreeMap<u32, (u32, u32)> {
        let run = |slot: &u32, keys: &[BlockKey]| {
            let held = self.held.get(slot);
            let has = |key: &&BlockKey| held.is_some_and(|held| held.contains_key(*key));
            keys.iter().take_while(has).count()
        };
        let lower: BTreeSet<u32> = self.beneath.values().copied().collect();
        let slots: BTreeSet<u32> = self
            .held
            .keys()
            .chain(self.beneath.keys())
            .copied()
            .collect();
        slots
            .difference(&lower)
            .map(|slot| {
                let blocks = run(slot, keys);
                let beneath = self.beneath.get(slot);
                let beneath = beneath.map_or(0, |lower| run(lower, &keys[blocks..]));
                let count = |n: usize| u32::try_from(n).unwrap();
                (*slot, (count(blocks), count(beneath)))
            })
            .filter(|&(_, found)| found != (0, 0))
            .collect()
    }
}
