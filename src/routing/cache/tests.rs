use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::super::block::{Scope, prompt_keys};
use super::super::cost::Tiers;
use super::super::endpoint::{Endpoint, EndpointId, EndpointName};
use super::super::event::BlockExtra;
use super::super::router::{Policy, Router, Settings};
use super::*;

mod oracle;
mod tiers;

/// A view with its router; prompts are counted in blocks of four tokens.
struct Fixture {
    router: Arc<Router>,
    id: EndpointId,
    view: CacheView,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Tiers::default())
    }

    fn with(tiers: Tiers) -> Self {
        let router = Router::new(Settings {
            policy: Policy::LeastPrefill,
            kv_usage_limit: 0.95,
            report_age_limit: Duration::from_millis(500),
            idle_report_age_limit: Duration::from_secs(6),
            tiers,
        });
        let id = router.join(Endpoint {
            name: EndpointName::new("pool", "engine"),
            address: ([127, 0, 0, 1], 8000).into(),
            labels: std::collections::BTreeMap::new(),
            incarnation: String::new(),
            rank: None,
        });
        let view = router.cache_view(id, 0);
        Self { router, id, view }
    }

    fn store(&mut self, event: Stored) -> Applied {
        self.view.apply(&[KvEvent::Stored(event)])
    }

    fn remove(&mut self, hashes: &[u64]) -> Applied {
        self.remove_in(hashes, Medium::Gpu, None)
    }

    fn remove_in(&mut self, hashes: &[u64], medium: Medium, group: Option<u32>) -> Applied {
        let hashes = hashes.iter().map(|&hash| EngineHash(hash)).collect();
        self.view.apply(&[KvEvent::Removed(Removed {
            hashes,
            medium,
            group,
        })])
    }

    /// Blocks of the prompt 0, 1, 2, … that are cached from its start.
    fn matched(&self, scope: &Scope) -> u32 {
        self.found(BlockSize::new(4).unwrap(), scope).0
    }

    /// The same at hand and beneath.
    fn found(&self, size: BlockSize, scope: &Scope) -> (u32, u32) {
        let keys = prompt_keys(&prompt(0..20), size, scope);
        let found = self.view.state.index.lookup(&keys);
        found
            .first()
            .map_or((0, 0), |found| (found.blocks, found.beneath))
    }

    fn plain(&self) -> u32 {
        self.matched(&Scope::default())
    }

    fn blocks(&self) -> u64 {
        self.view.state.index.blocks(self.view.feed.source)
    }
}

fn prompt(blocks: std::ops::Range<u32>) -> Vec<u32> {
    (blocks.start * 4..blocks.end * 4).collect()
}

/// Stores blocks of the prompt under the hashes 100, 101, …
fn stored(blocks: std::ops::Range<u32>) -> Stored {
    Stored {
        hashes: blocks
            .clone()
            .map(|n| EngineHash(100 + u64::from(n)))
            .collect(),
        parent: blocks
            .start
            .checked_sub(1)
            .map(|n| EngineHash(100 + u64::from(n))),
        tokens: prompt(blocks),
        opaque_tokens: false,
        block_size: 4,
        lora_name: None,
        extras: Vec::new(),
        medium: Medium::Gpu,
        group: None,
        indexable_group: true,
    }
}

#[test]
fn stores_are_found_and_the_block_size_is_learnt_from_the_first() {
    let mut fixture = Fixture::new();
    let applied = fixture.store(stored(0..3));
    assert_eq!(applied.stored, 3);
    fixture.store(stored(3..5));
    assert_eq!(fixture.plain(), 5);
    let views = fixture.router.endpoints(std::time::Instant::now());
    assert_eq!(views[0].block_size, BlockSize::new(4));
    assert_eq!((views[0].blocks, views[0].id), (5, fixture.id));
    let other_size = Stored {
        block_size: 2,
        tokens: vec![1, 2],
        hashes: vec![EngineHash(900)],
        parent: None,
        ..stored(0..1)
    };
    assert_eq!(fixture.store(other_size).skipped, 1);
    assert_eq!(fixture.blocks(), 5);
}

#[test]
fn a_block_stored_twice_is_gone_after_two_removals() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..3));
    fixture.store(stored(2..3));
    assert_eq!(fixture.remove(&[102]).removed, 0);
    assert_eq!(fixture.plain(), 3);
    assert_eq!(fixture.remove(&[102]).removed, 1);
    assert_eq!(fixture.plain(), 2);
    assert_eq!(
        fixture.remove(&[102, 777]),
        Applied::default(),
        "unknown hashes are nothing"
    );
}

#[test]
fn a_key_with_two_engine_hashes_leaves_with_the_second() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..2));
    let again = Stored {
        hashes: vec![EngineHash(500), EngineHash(501)],
        ..stored(0..2)
    };
    fixture.store(again);
    assert_eq!(fixture.blocks(), 2);
    fixture.remove(&[101]);
    assert_eq!(fixture.plain(), 2);
    fixture.remove(&[501]);
    assert_eq!(fixture.plain(), 1);
    fixture.remove(&[500, 100]);
    assert_eq!(fixture.blocks(), 0);
}

#[test]
fn orphans_are_placed_when_their_parent_comes_and_theirs_with_them() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.store(stored(4..6)).orphaned, 2);
    assert_eq!(fixture.store(stored(6..7)).orphaned, 1);
    assert_eq!(fixture.store(stored(2..4)).orphaned, 2);
    assert_eq!(
        fixture.router.endpoints(std::time::Instant::now())[0].orphans,
        5
    );
    assert_eq!(fixture.plain(), 0);
    let applied = fixture.store(stored(0..2));
    assert_eq!(applied.stored, 7);
    assert_eq!(fixture.plain(), 7);
    assert_eq!(
        fixture.router.endpoints(std::time::Instant::now())[0].orphans,
        0
    );
}

#[test]
fn an_orphan_removed_before_its_parent_comes_stays_away_and_its_child_does_not() {
    let mut fixture = Fixture::new();
    fixture.store(stored(1..2));
    fixture.store(stored(2..3));
    assert_eq!(fixture.remove(&[101]).removed, 1);
    fixture.store(stored(0..1));
    assert_eq!((fixture.plain(), fixture.blocks()), (1, 2));
    fixture.store(stored(1..2));
    assert_eq!(fixture.plain(), 3);
}

#[test]
fn the_oldest_orphans_are_dropped_and_counted() {
    let mut fixture = Fixture::new();
    fixture.view.limit_orphans(4);
    fixture.store(stored(3..5));
    assert_eq!(fixture.store(stored(10..12)).orphans_dropped, 0);
    assert_eq!(fixture.store(stored(15..17)).orphans_dropped, 2);
    fixture.store(stored(0..3));
    assert_eq!(fixture.plain(), 3, "blocks 3 and 4 were given up");
    assert_eq!(
        fixture.remove(&[103, 104]).removed,
        2,
        "but their residency was not"
    );
}

#[test]
fn blocks_that_cannot_be_keyed_are_remembered_so_that_their_children_do_not_wait() {
    let unkeyable = [
        Stored {
            opaque_tokens: true,
            ..stored(0..2)
        },
        Stored {
            tokens: prompt(0..3),
            ..stored(0..2)
        },
        Stored {
            extras: vec![BlockExtra::default()],
            ..stored(0..2)
        },
        Stored {
            extras: vec![
                BlockExtra {
                    unknown: true,
                    ..BlockExtra::default()
                };
                2
            ],
            ..stored(0..2)
        },
    ];
    for event in unkeyable {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.store(event).skipped, 2);
        let child = fixture.store(stored(2..3));
        assert_eq!((child.skipped, child.orphaned), (1, 0));
        assert_eq!(fixture.blocks(), 0);
        assert_eq!(fixture.remove(&[100, 101, 102]).removed, 3);
    }
}

#[test]
fn groups_that_serve_no_prefix_hit_are_counted_and_skipped() {
    let mut fixture = Fixture::new();
    fixture.store(Stored {
        group: Some(0),
        ..stored(0..2)
    });
    let sliding = Stored {
        group: Some(1),
        indexable_group: false,
        ..stored(0..2)
    };
    assert_eq!(fixture.store(sliding).skipped, 2);
    fixture.remove_in(&[100, 101], Medium::Gpu, Some(1));
    fixture.remove(&[100, 101]);
    assert_eq!(fixture.plain(), 2, "no group is not group 0");
    fixture.remove_in(&[101], Medium::Gpu, Some(0));
    assert_eq!(fixture.plain(), 1);
}

#[test]
fn other_media_are_kept_apart_and_do_not_count_as_cached() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..2));
    let offloaded = Stored {
        tokens: Vec::new(),
        block_size: 0,
        parent: None,
        medium: Medium::Cpu,
        ..stored(0..2)
    };
    fixture.store(offloaded);
    fixture.remove(&[101]);
    assert_eq!(fixture.plain(), 1);
    fixture.store(stored(2..3));
    assert_eq!(
        fixture.blocks(),
        2,
        "the offloaded parent still tells the child's key"
    );
    fixture.remove_in(&[100], Medium::Cpu, None);
    assert_eq!(fixture.plain(), 1);
    let back = Stored {
        tokens: Vec::new(),
        block_size: 0,
        hashes: vec![EngineHash(101)],
        ..stored(1..2)
    };
    fixture.store(back);
    assert_eq!(fixture.plain(), 3);
}

#[test]
fn adapter_salt_and_items_separate_blocks() {
    let mut fixture = Fixture::new();
    let salted = BlockExtra {
        salt: Some("t1".to_owned()),
        ..BlockExtra::default()
    };
    fixture.store(Stored {
        lora_name: Some("sql".to_owned()),
        extras: vec![salted, BlockExtra::default()],
        ..stored(0..2)
    });
    let scope = |adapter: Option<&str>, salt: Option<&str>| Scope {
        adapter: adapter.map(Into::into),
        salt: salt.map(Into::into),
    };
    assert_eq!(fixture.matched(&scope(Some("sql"), Some("t1"))), 2);
    assert_eq!(fixture.matched(&scope(Some("sql"), None)), 0);
    assert_eq!(fixture.matched(&scope(Some("t1"), Some("sql"))), 0);
    assert_eq!(fixture.plain(), 0);
}

#[test]
fn a_clear_forgets_everything_and_what_follows_counts_again() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..3));
    fixture.store(stored(7..8));
    let batch = [
        KvEvent::Stored(stored(3..4)),
        KvEvent::Cleared,
        KvEvent::Stored(stored(0..1)),
    ];
    fixture.view.apply(&batch);
    assert_eq!((fixture.plain(), fixture.blocks()), (1, 1));
    fixture.view.clear();
    assert_eq!(fixture.blocks(), 0);
    fixture.store(stored(6..7));
    assert_eq!(
        fixture.blocks(),
        0,
        "the old orphan's parent does not bring it back"
    );
}

#[test]
fn a_store_that_names_itself_as_parent_is_skipped() {
    let mut fixture = Fixture::new();
    let event = Stored {
        parent: Some(EngineHash(100)),
        ..stored(0..2)
    };
    assert_eq!(fixture.store(event).skipped, 2);
}

proptest! {
    /// Chains stored in any order, with removals between: what is keyed in the end is
    /// what a plain count of references says.
    #[test]
    fn any_order_of_stores_ends_in_the_same_index(
        order in Just((0_u32..12).collect::<Vec<_>>()).prop_shuffle(),
        twice in prop::collection::vec(0_u32..12, 0..6),
        removals in prop::collection::vec((0_usize..18, 0_u32..12), 0..12),
    ) {
        let mut fixture = Fixture::new();
        let mut references = [0_u32; 12];
        for (time, &n) in order.iter().chain(&twice).enumerate() {
            fixture.store(stored(n..n + 1));
            references[n as usize] += 1;
            for &(_, gone) in removals.iter().filter(|(when, _)| *when == time) {
                fixture.remove(&[100 + u64::from(gone)]);
                references[gone as usize] = references[gone as usize].saturating_sub(1);
            }
        }
        let resident = references.iter().filter(|&&n| n > 0).count() as u64;
        let prefix: u32 = references.iter().map_while(|&n| (n > 0).then_some(1)).sum();
        // A block removed before its child came is forgotten, and the child waits for it.
        let waiting = fixture.view.orphans.blocks();
        if waiting == 0 {
            prop_assert_eq!(fixture.blocks(), resident);
            prop_assert_eq!(fixture.plain(), prefix);
        } else {
            prop_assert!(fixture.blocks() < resident + 1);
            prop_assert!(fixture.plain() <= prefix);
        }
    }
}
