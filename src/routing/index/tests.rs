use std::collections::BTreeMap;

use proptest::prelude::*;

use super::naive::NaiveIndex;
use super::*;

/// Few keys, some of which fall into one segment and one run, and the odd key zero.
fn key(n: u8) -> BlockKey {
    match n % 4 {
        0 => BlockKey(u64::from(n / 4)),
        1 => BlockKey(15 + (u64::from(n / 4) << 32)),
        2 => BlockKey(u64::MAX - u64::from(n / 4)),
        _ => BlockKey(u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    OpenBeneath(usize),
    Close(usize),
    Store(usize, Vec<u8>),
    Remove(usize, Vec<u8>),
    Late(usize),
    Lookup(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || prop::collection::vec(any::<u8>(), 1..24);
    prop_oneof![
        2 => Just(Step::Open),
        2 => any::<usize>().prop_map(Step::OpenBeneath),
        1 => any::<usize>().prop_map(Step::Close),
        6 => (any::<usize>(), keys()).prop_map(|(s, k)| Step::Store(s, k)),
        3 => (any::<usize>(), keys()).prop_map(|(s, k)| Step::Remove(s, k)),
        1 => any::<usize>().prop_map(Step::Late),
        4 => keys().prop_map(Step::Lookup),
    ]
}

fn found(index: &PrefixIndex, keys: &[BlockKey]) -> BTreeMap<u32, (u32, u32)> {
    let found = index.lookup(keys);
    let by_slot: BTreeMap<u32, (u32, u32)> = found
        .iter()
        .map(|found| (found.source.slot, (found.blocks, found.beneath)))
        .collect();
    assert_eq!(by_slot.len(), found.len(), "a source is named once");
    by_slot
}

/// Runs steps on both and compares after each; `sources` are opened before. Stores and removals
/// go to lower columns as well.
fn agrees(sources: usize, steps: &[Step]) {
    let index = PrefixIndex::new();
    let mut naive = NaiveIndex::default();
    let mut open: Vec<SourceId> = (0..sources).map(|_| index.open()).collect();
    let mut lower: Vec<SourceId> = Vec::new();
    let mut closed: Vec<SourceId> = Vec::new();
    for step in steps {
        match step {
            Step::Open => {
                let id = index.open();
                assert!(!open.contains(&id) && !closed.contains(&id));
                assert_eq!(index.blocks(id), 0);
                open.push(id);
            }
            Step::OpenBeneath(n) if !open.is_empty() => {
                let upper = open[n % open.len()];
                let id = index.open_beneath(upper).unwrap();
                assert_eq!(index.open_beneath(upper), Some(id));
                assert_eq!(index.open_beneath(id), None, "one level only");
                if !lower.contains(&id) {
                    assert!(!open.contains(&id) && !closed.contains(&id));
                    assert_eq!(index.blocks(id), 0);
                    naive.put_beneath(upper.slot, id.slot);
                    lower.push(id);
                }
            }
            Step::Close(n) if !open.is_empty() => {
                let some = (n % 3 + 1).min(open.len());
                let gone: Vec<SourceId> = (0..some)
                    .map(|_| open.swap_remove(n % open.len()))
                    .collect();
                index.close_all(&gone);
                for id in gone {
                    if let Some(slot) = naive.forget(id.slot) {
                        let place = lower.iter().position(|id| id.slot == slot).unwrap();
                        closed.push(lower.swap_remove(place));
                    }
                    closed.push(id);
                }
            }
            Step::Store(n, keys) if !open.is_empty() => {
                let id = one_of(&open, &lower, *n);
                let mut writer = index.write(id).unwrap();
                for &n in keys {
                    // Zero and one share a place, and so one name here.
                    let key = BlockKey(key(n).0.max(1));
                    assert_eq!(writer.store(key), naive.store(id.slot, key));
                }
            }
            Step::Remove(n, keys) if !open.is_empty() => {
                let id = one_of(&open, &lower, *n);
                let mut writer = index.write(id).unwrap();
                for &n in keys {
                    let key = BlockKey(key(n).0.max(1));
                    assert_eq!(writer.remove(key), naive.remove(id.slot, key));
                }
            }
            Step::Late(n) if !closed.is_empty() => {
                let id = closed[n % closed.len()];
                assert!(index.write(id).is_none());
                assert_eq!(index.blocks(id), 0);
                assert!(index.keys(id).is_empty());
                index.close(id);
            }
            Step::Lookup(keys) => {
                let keys: Vec<BlockKey> = keys.iter().map(|&n| BlockKey(key(n).0.max(1))).collect();
                assert_eq!(found(&index, &keys), naive.lookup(&keys));
            }
            _ => {}
        }
        assert_eq!(index.len(), naive.distinct());
        for id in open.iter().chain(&lower) {
            assert_eq!(index.blocks(*id), naive.blocks(id.slot));
        }
    }
    for id in &open {
        let mut keys = index.keys(*id);
        keys.sort_unstable();
        assert_eq!(keys, naive.keys(id.slot));
    }
}

fn one_of(open: &[SourceId], lower: &[SourceId], n: usize) -> SourceId {
    let place = n % (open.len() + lower.len());
    *open
        .get(place)
        .unwrap_or_else(|| &lower[place - open.len()])
}

proptest! {
    #[test]
    fn agrees_with_the_naive_twin(steps in prop::collection::vec(step(), 0..80)) {
        agrees(1, &steps);
    }

    #[test]
    fn agrees_with_the_naive_twin_over_several_words(steps in prop::collection::vec(step(), 0..60)) {
        agrees(130, &steps);
    }
}

#[test]
fn a_hole_ends_a_match_until_it_is_healed() {
    let index = PrefixIndex::new();
    let id = index.open();
    let keys: Vec<BlockKey> = (1..=10).map(|n| BlockKey(n << 40)).collect();
    for &key in &keys {
        index.write(id).unwrap().store(key);
    }
    index.write(id).unwrap().remove(keys[4]);
    assert_eq!(
        index.lookup(&keys),
        [Match {
            source: id,
            blocks: 4,
            beneath: 0,
        }]
    );
    index.write(id).unwrap().store(keys[4]);
    assert_eq!(
        index.lookup(&keys),
        [Match {
            source: id,
            blocks: 10,
            beneath: 0,
        }]
    );
}

#[test]
fn a_reused_slot_starts_cold_and_is_another_source() {
    let index = PrefixIndex::new();
    let first = index.open();
    index.write(first).unwrap().store(BlockKey(7));
    index.close(first);
    let second = index.open();
    assert_eq!(second.slot, first.slot);
    assert_ne!(second.generation, first.generation);
    assert!(index.lookup(&[BlockKey(7)]).is_empty());
    assert!(index.is_empty());
    assert!(index.write(first).is_none());
}

#[test]
fn a_lower_column_carries_a_source_on_from_where_its_own_run_ends() {
    let index = PrefixIndex::new();
    let keys: Vec<BlockKey> = (1..=10).map(|n| BlockKey(n << 40)).collect();
    let (both, lower_only, upper_only) = (index.open(), index.open(), index.open());
    let beneath = index.open_beneath(both).unwrap();
    let beneath_alone = index.open_beneath(lower_only).unwrap();
    let hold = |id, range: std::ops::Range<usize>| {
        let mut writer = index.write(id).unwrap();
        for &key in &keys[range] {
            writer.store(key);
        }
    };
    hold(both, 0..3);
    hold(beneath, 2..6);
    // Behind the hole at block 6 it is of no use.
    hold(both, 7..9);
    hold(beneath_alone, 0..2);
    hold(upper_only, 0..4);
    let of = |source, blocks, beneath| Match {
        source,
        blocks,
        beneath,
    };
    let mut found = index.lookup(&keys);
    found.sort_by_key(|found| found.source.slot);
    let expected = [of(both, 3, 3), of(lower_only, 0, 2), of(upper_only, 4, 0)];
    assert_eq!(found, expected);
    index.close(both);
    assert!(index.write(beneath).is_none(), "it ends with its source");
    assert_eq!(index.open_beneath(both), None);
    assert_eq!(index.lookup(&keys).len(), 2);
}

#[test]
fn an_empty_prompt_matches_nobody() {
    let index = PrefixIndex::new();
    let id = index.open();
    index.write(id).unwrap().store(BlockKey(7));
    assert!(index.lookup(&[]).is_empty());
}

#[test]
fn many_blocks_come_and_go_without_a_trace() {
    let index = PrefixIndex::new();
    let ids = [index.open(), index.open()];
    let keys: Vec<BlockKey> = (1..=200_000_u64)
        .map(|n| BlockKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    for id in ids {
        let mut writer = index.write(id).unwrap();
        for &key in &keys {
            assert!(writer.store(key));
        }
    }
    assert_eq!(index.len(), keys.len());
    let mut writer = index.write(ids[0]).unwrap();
    for &key in &keys {
        assert!(writer.remove(key));
    }
    drop(writer);
    assert_eq!(index.blocks(ids[1]), 200_000);
    index.close(ids[1]);
    assert!(index.is_empty());
}
