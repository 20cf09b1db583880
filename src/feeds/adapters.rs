//! An adapter was replaced under its name: which cached blocks can no longer serve its requests?
//!
//! Events name an adapter and never its weights, and nothing on the wire tells of a replacement
//! (seen on vLLM 0.31, whose own hash covers the path, so that its cache is cold for the new adapter;
//! 0.20 finds the old one's blocks). Only `/v1/models` gives each adapter's
//! path, once a minute. So it is remembered which blocks are whose, and when the path changes, those go from
//! the view as if they had been removed. Blocks that the new adapter stored within that minute
//! go with them: a hit less, instead of hits that are none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::routing::event::{EngineHash, KvEvent, Medium, Removed};
use crate::tokens::ServedModel;

/// How often each adapter was replaced so far, by its name.
pub(super) type Replaced = BTreeMap<String, u32>;

/// Adapters remembered although they are no longer served, to know them again with another path.
const MAX_REMEMBERED: usize = 1024;

/// The path of each adapter when it was last served.
#[derive(Debug, Default)]
pub(super) struct Roots(BTreeMap<String, String>);

impl Roots {
    /// Takes what an engine serves now, and counts each adapter that has another path than before.
    /// Whether there was one.
    pub(super) fn observe(&mut self, models: &[ServedModel], replaced: &mut Replaced) -> bool {
        let adapters = models.iter().filter(|model| model.parent.is_some());
        let mut any = false;
        for model in adapters {
            let Some(root) = &model.root else { continue };
            let before = self.0.insert(model.id.clone(), root.clone());
            if before.is_some_and(|before| before != *root) {
                let times = replaced.entry(model.id.clone()).or_default();
                *times = times.wrapping_add(1);
                any = true;
            }
        }
        if self.0.len() > MAX_REMEMBERED {
            self.0
                .retain(|id, _| models.iter().any(|model| model.id == *id));
        }
        any
    }
}

type Name = (Medium, Option<u32>, EngineHash);

/// The blocks of adapters in one view; those of the base model are not kept.
#[derive(Debug, Default)]
pub(super) struct AdapterBlocks {
    /// Whose, and how many physical ones.
    held: HashMap<Name, (Arc<str>, u32)>,
    names: BTreeSet<Arc<str>>,
}

impl AdapterBlocks {
    /// Follows what enters and leaves.
    pub(super) fn note(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    let Some(adapter) = &stored.lora_name else {
                        continue;
                    };
                    let adapter = self.named(adapter);
                    for &hash in &stored.hashes {
                        let name = (stored.medium, stored.group, hash);
                        let held = self
                            .held
                            .entry(name)
                            .or_insert_with(|| (Arc::clone(&adapter), 0));
                        held.1 = held.1.saturating_add(1);
                    }
                }
                KvEvent::Removed(removed) if !self.held.is_empty() => self.removed(removed),
                KvEvent::Removed(_) => {}
                KvEvent::Cleared => self.clear(),
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The events by which all blocks of an adapter leave; they are no longer held then.
    pub(super) fn take(&mut self, adapter: &str) -> Vec<KvEvent> {
        let mut events = Vec::new();
        self.held.retain(|&(medium, group, hash), (owner, copies)| {
            if &**owner != adapter {
                return true;
            }
            let hashes = vec![hash; *copies as usize];
            events.push(KvEvent::Removed(Removed {
                hashes,
                medium,
                group,
            }));
            false
        });
        self.names.remove(adapter);
        events
    }

    fn removed(&mut self, removed: &Removed) {
        for &hash in &removed.hashes {
            let name = (removed.medium, removed.group, hash);
            let Some(held) = self.held.get_mut(&name) else {
                continue;
            };
            held.1 = held.1.saturating_sub(1);
            if held.1 == 0 {
                self.held.remove(&name);
            }
        }
    }

    /// One string for all blocks of an adapter.
    fn named(&mut self, adapter: &str) -> Arc<str> {
        if let Some(name) = self.names.get(adapter) {
            return Arc::clone(name);
        }
        let name: Arc<str> = adapter.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::event::Stored;

    fn model(id: &str, root: &str, parent: Option<&str>) -> ServedModel {
        ServedModel {
            id: id.to_owned(),
            root: Some(root.to_owned()),
            parent: parent.map(str::to_owned),
            max_model_len: None,
        }
    }

    fn stored(adapter: Option<&str>, hashes: &[u64]) -> KvEvent {
        KvEvent::Stored(Stored {
            hashes: hashes.iter().copied().map(EngineHash).collect(),
            parent: None,
            tokens: vec![7; hashes.len()],
            opaque_tokens: false,
            block_size: 1,
            lora_name: adapter.map(str::to_owned),
            extras: Vec::new(),
            medium: Medium::Gpu,
            group: None,
            indexable_group: true,
        })
    }

    fn removed(hashes: &[u64]) -> KvEvent {
        KvEvent::Removed(Removed {
            hashes: hashes.iter().copied().map(EngineHash).collect(),
            medium: Medium::Gpu,
            group: None,
        })
    }

    #[test]
    fn an_adapter_with_another_path_is_replaced_also_if_it_was_gone_in_between() {
        let mut roots = Roots::default();
        let mut replaced = Replaced::new();
        let base = model("qwen", "/m", None);
        let mut serve = |models: &[ServedModel]| {
            let any = roots.observe(models, &mut replaced);
            (any, replaced.get("sql").copied().unwrap_or_default())
        };
        let first = [base.clone(), model("sql", "/v1", Some("qwen"))];
        assert_eq!(serve(&first), (false, 0));
        assert_eq!(serve(&first), (false, 0));
        assert_eq!(serve(&[base.clone()]), (false, 0));
        let second = [base, model("sql", "/v2", Some("qwen"))];
        assert_eq!(serve(&second), (true, 1));
        assert_eq!(serve(&[model("qwen", "/other", None)]), (false, 1));
        assert_eq!(serve(&first), (true, 2));
    }

    #[test]
    fn what_is_remembered_of_adapters_long_gone_is_bounded() {
        let mut roots = Roots::default();
        let mut replaced = Replaced::new();
        for n in 0..5000 {
            roots.observe(&[model(&n.to_string(), "/x", Some("b"))], &mut replaced);
        }
        assert!(roots.0.len() <= MAX_REMEMBERED);
    }

    #[test]
    fn the_blocks_of_one_adapter_leave_as_often_as_they_entered_and_no_others() {
        let mut blocks = AdapterBlocks::default();
        blocks.note(&[
            stored(Some("sql"), &[1, 2]),
            stored(Some("sql"), &[2, 3]),
            stored(Some("legal"), &[4]),
            stored(None, &[5]),
            removed(&[3, 5]),
        ]);
        let mut leaving: Vec<u64> = Vec::new();
        for event in blocks.take("sql") {
            let KvEvent::Removed(removed) = event else {
                panic!("{event:?}");
            };
            leaving.extend(removed.hashes.iter().map(|hash| hash.0));
        }
        leaving.sort_unstable();
        assert_eq!(leaving, [1, 2, 2]);
        assert!(blocks.take("sql").is_empty());
        assert_eq!(blocks.held.len(), 1);
        blocks.note(&[KvEvent::Cleared]);
        assert!(blocks.take("legal").is_empty());
    }
}
