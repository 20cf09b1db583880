//! What do further cache groups say? A decoration of the events: the model computes one group, of full attention.
//!
//! A hybrid model has groups of sliding windows besides, which tell of the same hashes. They hold only what a hit can
//! need: here the last block of each store, though the event lists the tokens of all, as vLLM's does. A reader that
//! takes no notice of groups has blocks twice, loses them too early and puts tokens to the wrong hashes.

use rustc_hash::FxHashMap;

use crate::routing::event::{EngineHash, KvEvent, Medium, Removed, Stored};

/// The groups besides the first.
pub(super) struct SlidingGroups {
    numbers: std::ops::Range<u32>,
    /// Copies of the blocks that each of them holds.
    held: FxHashMap<EngineHash, usize>,
}

impl SlidingGroups {
    /// As many as there are besides the first of `groups`.
    pub(super) fn new(groups: u32) -> Self {
        Self {
            numbers: 1..groups.max(1),
            held: FxHashMap::default(),
        }
    }

    /// A step's events, with what the further groups have to say after each.
    pub(super) fn join(&mut self, events: Vec<KvEvent>) -> Vec<KvEvent> {
        if self.numbers.is_empty() {
            return events;
        }
        let mut all = Vec::with_capacity(events.len() * 2);
        for event in events {
            let said = match &event {
                KvEvent::Stored(stored) => self.stored(stored),
                KvEvent::Removed(removed) => self.removed(removed),
                KvEvent::Cleared => {
                    self.held.clear();
                    Vec::new()
                }
            };
            all.push(event);
            all.extend(said);
        }
        all
    }

    fn stored(&mut self, stored: &Stored) -> Vec<KvEvent> {
        let (Medium::Gpu, Some(&last)) = (stored.medium, stored.hashes.last()) else {
            return Vec::new();
        };
        *self.held.entry(last).or_default() += 1;
        let of = |group| {
            KvEvent::Stored(Stored {
                hashes: vec![last],
                extras: stored.extras.last().cloned().into_iter().collect(),
                group: Some(group),
                indexable_group: false,
                ..stored.clone()
            })
        };
        self.numbers.clone().map(of).collect()
    }

    fn removed(&mut self, removed: &Removed) -> Vec<KvEvent> {
        if removed.medium != Medium::Gpu {
            return Vec::new();
        }
        let mut gone = removed.hashes.clone();
        gone.retain(|hash| match self.held.get_mut(hash) {
            Some(copies) if *copies > 0 => {
                *copies -= 1;
                true
            }
            _ => false,
        });
        for hash in &gone {
            if self.held.get(hash) == Some(&0) {
                self.held.remove(hash);
            }
        }
        if gone.is_empty() {
            return Vec::new();
        }
        let of = |group| {
            KvEvent::Removed(Removed {
                hashes: gone.clone(),
                medium: removed.medium,
                group: Some(group),
            })
        };
        self.numbers.clone().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(hashes: &[u64]) -> KvEvent {
        KvEvent::Stored(Stored {
            hashes: hashes.iter().copied().map(EngineHash).collect(),
            parent: None,
            tokens: (0..4).collect(),
            opaque_tokens: false,
            block_size: 2,
            lora_name: None,
            extras: Vec::new(),
            medium: Medium::Gpu,
            group: Some(0),
            indexable_group: true,
        })
    }

    fn removed(hash: u64, group: u32) -> KvEvent {
        KvEvent::Removed(Removed {
            hashes: vec![EngineHash(hash)],
            medium: Medium::Gpu,
            group: Some(group),
        })
    }

    #[test]
    fn a_window_stores_the_last_block_with_the_tokens_of_all_and_removes_that_one() {
        let mut groups = SlidingGroups::new(2);
        let said = groups.join(vec![stored(&[1, 2])]);
        let [first, KvEvent::Stored(window)] = &said[..] else {
            panic!("{said:?}");
        };
        assert_eq!(first, &stored(&[1, 2]));
        assert_eq!(window.hashes, [EngineHash(2)]);
        assert_eq!((window.tokens.len(), window.group), (4, Some(1)));
        assert!(!window.indexable_group);
        let said = groups.join(vec![removed(1, 0), removed(2, 0), removed(2, 0)]);
        let expected = [removed(1, 0), removed(2, 0), removed(2, 1), removed(2, 0)];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_single_group_says_nothing_more() {
        let events = vec![stored(&[1, 2]), removed(1, 0), KvEvent::Cleared];
        assert_eq!(SlidingGroups::new(1).join(events.clone()), events);
    }
}
