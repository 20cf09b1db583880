//! What engines answered lately: two generations, so that what is used stays, at one lookup each.

use std::mem;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Remembers between half of its bound and all of it; an entry is forgotten when it was not used while half the
/// bound's worth of others came in. Keys are 128-bit hashes of whole payloads: two payloads never meet in practice.
pub(super) struct Memory {
    young: FxHashMap<u128, Arc<[u32]>>,
    old: FxHashMap<u128, Arc<[u32]>>,
    young_tokens: usize,
    half_tokens: usize,
}

impl Memory {
    /// Holds at most about `tokens` token ids.
    pub(super) fn new(tokens: usize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            young_tokens: 0,
            half_tokens: tokens / 2,
        }
    }

    /// What was answered to the payload of this hash.
    pub(super) fn get(&mut self, key: u128) -> Option<Arc<[u32]>> {
        if let Some(tokens) = self.young.get(&key) {
            return Some(Arc::clone(tokens));
        }
        let tokens = self.old.remove(&key)?;
        self.insert(key, Arc::clone(&tokens));
        Some(tokens)
    }

    /// Remembers an answer; one greater than half the bound is not worth all the others.
    pub(super) fn insert(&mut self, key: u128, tokens: Arc<[u32]>) {
        // An entry costs more than its tokens: count the map's own bytes as some.
        let weight = tokens.len() + 16;
        if weight > self.half_tokens {
            return;
        }
        if self.young_tokens + weight > self.half_tokens {
            self.old = mem::take(&mut self.young);
            self.young_tokens = 0;
        }
        if self.young.insert(key, tokens).is_none() {
            self.young_tokens += weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(length: usize) -> Arc<[u32]> {
        vec![7; length].into()
    }

    #[test]
    fn an_entry_in_use_outlives_many_others() {
        let mut memory = Memory::new(1_000);
        memory.insert(0, answer(10));
        for key in 1..1_000 {
            memory.insert(key, answer(10));
            assert!(memory.get(0).is_some(), "forgotten after {key} others");
        }
        assert!(memory.get(1).is_none(), "an unused entry stays for ever");
    }

    #[test]
    fn the_bound_holds_and_a_giant_does_not_push_out_the_others() {
        let mut memory = Memory::new(1_000);
        memory.insert(1, answer(100));
        memory.insert(2, answer(5_000));
        assert!(memory.get(2).is_none());
        assert!(memory.get(1).is_some());
        for key in 3..200 {
            memory.insert(key, answer(50));
            let held: usize = [&memory.young, &memory.old]
                .into_iter()
                .flat_map(FxHashMap::values)
                .map(|tokens| tokens.len())
                .sum();
            assert!(held <= 1_000, "{held} tokens held");
        }
    }
}
