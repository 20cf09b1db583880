//! Slower tiers, bounds, and blocks that are not what they seem.

use super::*;

/// Blocks of the prompt by hash alone, as an offload connector tells of them.
fn moved(blocks: std::ops::Range<u32>, medium: Medium) -> Stored {
    Stored {
        tokens: Vec::new(),
        block_size: 0,
        parent: None,
        medium,
        ..stored(blocks)
    }
}

impl Fixture {
    fn tiers(&self) -> (u32, u32) {
        self.found(BlockSize::new(4).unwrap(), &Scope::default())
    }

    fn factor(&self) -> f64 {
        let ledger = self.view.state.ledger.lock();
        ledger.tier_factor(self.view.feed)
    }
}

#[test]
fn blocks_in_host_memory_carry_on_where_the_accelerators_end() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..6));
    fixture.store(moved(1..5, Medium::Cpu));
    assert_eq!(fixture.tiers(), (6, 0));
    fixture.remove(&[102, 103, 104]);
    assert_eq!(
        fixture.tiers(),
        (2, 3),
        "block 5 lies behind a hole of the tier"
    );
    fixture.remove(&[100, 101]);
    assert_eq!(fixture.tiers(), (0, 0), "the tier does not have block 0");
    fixture.store(moved(0..1, Medium::Cpu));
    assert_eq!(
        fixture.tiers(),
        (0, 0),
        "nor is it known any more what that is"
    );
    fixture.store(stored(0..1));
    assert_eq!(fixture.tiers(), (1, 4));
    fixture.remove_in(&[103], Medium::Cpu, None);
    assert_eq!(fixture.tiers(), (1, 2));
    fixture.remove(&[100]);
    assert_eq!(fixture.tiers(), (0, 3), "its content was learnt meanwhile");
}

#[test]
fn a_tier_counts_by_the_settings_and_at_the_dearer_factor_of_two() {
    let tiers = Tiers {
        cpu: 0.2,
        storage: 0.7,
    };
    let mut fixture = Fixture::with(tiers);
    fixture.store(stored(0..4));
    fixture.store(moved(0..2, Medium::Cpu));
    assert_eq!(fixture.factor(), 0.2);
    fixture.store(moved(2..4, Medium::Storage));
    fixture.remove(&[100, 101, 102, 103]);
    assert_eq!(fixture.tiers(), (0, 4), "one run over both");
    assert_eq!(fixture.factor(), 0.7);
    let mut fixture = Fixture::new();
    fixture.store(stored(0..4));
    fixture.store(moved(0..4, Medium::Storage));
    fixture.remove(&[101]);
    assert_eq!(
        fixture.tiers(),
        (1, 0),
        "storage is not counted unless asked for"
    );
}

#[test]
fn a_block_on_two_tiers_is_beneath_until_it_left_both() {
    let mut fixture = Fixture::with(Tiers {
        cpu: 0.2,
        storage: 0.7,
    });
    fixture.store(stored(0..1));
    fixture.store(moved(0..1, Medium::Cpu));
    fixture.store(moved(0..1, Medium::Storage));
    fixture.remove(&[100]);
    fixture.remove_in(&[100], Medium::Cpu, None);
    assert_eq!(fixture.tiers(), (0, 1));
    fixture.remove_in(&[100], Medium::Storage, None);
    assert_eq!(fixture.tiers(), (0, 0));
}

#[test]
fn a_block_told_of_by_hash_before_its_content_gets_its_key_with_the_content() {
    let mut fixture = Fixture::new();
    fixture.store(moved(0..2, Medium::Cpu));
    assert_eq!(fixture.tiers(), (0, 0));
    fixture.store(stored(0..2));
    fixture.remove(&[100, 101]);
    assert_eq!(fixture.tiers(), (0, 2));
    // The same for one that waits for its parent.
    let mut fixture = Fixture::new();
    fixture.store(stored(1..2));
    fixture.store(moved(1..2, Medium::Cpu));
    fixture.store(stored(0..1));
    fixture.remove(&[101]);
    assert_eq!(fixture.tiers(), (1, 1));
}

#[test]
fn a_self_describing_store_in_host_memory_needs_no_copy_on_the_accelerator() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..1));
    fixture.store(Stored {
        medium: Medium::Cpu,
        ..stored(1..3)
    });
    assert_eq!(fixture.tiers(), (1, 2));
    // A chunk of several blocks has a size that nobody asks for.
    let chunk = Stored {
        medium: Medium::Cpu,
        hashes: vec![EngineHash(104)],
        block_size: 8,
        ..stored(3..5)
    };
    assert_eq!(fixture.store(chunk).skipped, 1);
    assert_eq!(fixture.tiers(), (1, 2));
    fixture.store(stored(1..5));
    assert_eq!(fixture.tiers(), (5, 0), "and does not spoil its last block");
}

#[test]
fn a_clear_empties_every_tier() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..4));
    fixture.store(moved(0..4, Medium::Cpu));
    fixture.view.apply(&[KvEvent::Cleared]);
    assert_eq!(fixture.tiers(), (0, 0));
    assert!(fixture.view.state.index.is_empty());
    fixture.store(stored(0..1));
    assert_eq!(fixture.tiers(), (1, 0));
}

#[test]
fn blocks_that_are_never_removed_are_bounded_and_the_oldest_go_first() {
    let mut fixture = Fixture::new();
    fixture.view.residents.set_limit(4);
    fixture.store(stored(0..6));
    let applied = fixture.store(moved(0..6, Medium::Cpu));
    assert_eq!(applied.forgotten, 2);
    fixture.remove(&[100, 101, 102, 103, 104, 105]);
    assert_eq!(fixture.tiers(), (0, 0), "blocks 0 and 1 were the oldest");
    fixture.store(stored(0..2));
    assert_eq!(fixture.tiers(), (2, 4));
    let unkeyed = |n: u64| Stored {
        hashes: vec![EngineHash(n)],
        opaque_tokens: true,
        ..stored(0..1)
    };
    for n in 1_000..9_000 {
        fixture.store(unkeyed(n));
        fixture.store(Stored {
            hashes: vec![EngineHash(n)],
            ..moved(0..1, Medium::Cpu)
        });
    }
    let (blocks, ages) = fixture.view.residents.sizes();
    assert_eq!(
        blocks,
        2 + 4 + 4,
        "two keyed, four unkeyed, four on the tier"
    );
    assert!(ages <= 2 * (1024 + 2 * 4 + 1), "{ages} entries of age");
}

#[test]
fn blocks_that_come_and_go_leave_nothing_in_the_order_of_age() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..1));
    for _ in 0..5_000 {
        fixture.store(moved(0..1, Medium::Cpu));
        fixture.remove_in(&[100], Medium::Cpu, None);
    }
    let (blocks, ages) = fixture.view.residents.sizes();
    assert_eq!(blocks, 1);
    assert!(ages <= 1024 + 1, "{ages} entries of age");
}

#[test]
fn groups_that_cannot_be_indexed_and_groups_without_end_cost_no_memory() {
    let mut fixture = Fixture::new();
    for n in 0..1_000 {
        fixture.store(Stored {
            group: Some(1),
            indexable_group: false,
            ..stored(n..n + 1)
        });
    }
    assert_eq!(fixture.view.residents.sizes(), (0, 0));
    for group in 0..1_000 {
        let applied = fixture.store(Stored {
            group: Some(group),
            ..stored(0..1)
        });
        assert_eq!(applied.stored + applied.skipped, 1);
    }
    assert_eq!(fixture.view.residents.sizes().0, 16);
}

#[test]
fn a_hash_with_two_contents_is_believed_in_for_neither() {
    let mut fixture = Fixture::new();
    fixture.store(stored(0..2));
    // SGLang 0.5.4 names a page by its own tokens alone: here the same page at another place.
    let elsewhere = Stored {
        hashes: vec![EngineHash(100)],
        tokens: prompt(0..1),
        ..stored(2..3)
    };
    assert_eq!(fixture.store(elsewhere).skipped, 1);
    assert_eq!((fixture.plain(), fixture.blocks()), (0, 1));
    let child = Stored {
        parent: Some(EngineHash(100)),
        ..stored(5..6)
    };
    let applied = fixture.store(child);
    assert_eq!((applied.skipped, applied.orphaned), (1, 0));
    fixture.store(stored(0..1));
    assert_eq!(fixture.plain(), 0, "not even when told again");
    assert_eq!(fixture.remove(&[100, 100, 100, 101, 105]).removed, 3);
    assert_eq!(fixture.blocks(), 0);
    fixture.store(stored(0..1));
    assert_eq!(fixture.plain(), 1, "once all are gone the name is free");
}

#[test]
fn a_partial_tail_that_came_first_does_not_fix_the_block_size() {
    let mut fixture = Fixture::new();
    let tail = Stored {
        hashes: vec![EngineHash(900)],
        block_size: 2,
        tokens: vec![0, 1],
        ..stored(0..1)
    };
    fixture.store(tail.clone());
    assert_eq!(fixture.store(stored(0..3)).stored, 3);
    assert_eq!((fixture.plain(), fixture.blocks()), (3, 3));
    assert_eq!(fixture.store(tail).skipped, 1);
    let views = fixture.router.endpoints(std::time::Instant::now());
    assert_eq!(views[0].block_size, BlockSize::new(4));
}

#[test]
fn blocks_whose_hash_looks_ahead_serve_prompts_that_go_on_alike() {
    let ahead = |token: u32| BlockExtra {
        lookahead: vec![token],
        ..BlockExtra::default()
    };
    let mut fixture = Fixture::new();
    fixture.store(Stored {
        extras: vec![ahead(4), ahead(8), ahead(999)],
        ..stored(0..3)
    });
    let size = BlockSize::new(4).unwrap().with_lookahead(1);
    assert_eq!(fixture.found(size, &Scope::default()), (2, 0));
    assert_eq!(fixture.plain(), 0, "another way to cut, another key space");
    let views = fixture.router.endpoints(std::time::Instant::now());
    assert_eq!(views[0].block_size, Some(size));
    let differing = Stored {
        extras: vec![ahead(4), BlockExtra::default()],
        hashes: vec![EngineHash(900), EngineHash(901)],
        ..stored(0..2)
    };
    assert_eq!(fixture.store(differing).skipped, 2);
    // The last block of a prompt has nothing behind it to look ahead to.
    let keys = |n| prompt_keys(&(0..n).collect::<Vec<u32>>(), size, &Scope::default()).len();
    assert_eq!(
        [keys(3), keys(4), keys(5), keys(8), keys(9)],
        [0, 0, 1, 1, 2]
    );
}
