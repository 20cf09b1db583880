//! Claims about the tier beneath the pool.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::routing::event::{Medium, Stored};

fn with_tier(lower_blocks: usize, lower_describes: bool) -> Bench {
    Bench::new(Settings {
        max_num_batched_tokens: 200,
        lower_blocks,
        lower_describes,
        ..settings()
    })
}

/// A prompt of 81 tokens, 20 full blocks of a pool of 32.
fn long(family: u32) -> Request {
    request((0..81).map(|at| family * 1000 + at), 1)
}

/// Copies by hash and whether they are beneath, as a reader of the events has them.
fn believed(events: &[KvEvent], held: &mut BTreeMap<(u64, bool), usize>) {
    let beneath = |medium| medium != Medium::Gpu;
    for event in events {
        match event {
            KvEvent::Stored(stored) => {
                for hash in &stored.hashes {
                    *held.entry((hash.0, beneath(stored.medium))).or_default() += 1;
                }
            }
            KvEvent::Removed(removed) => {
                for hash in &removed.hashes {
                    *held.get_mut(&(hash.0, beneath(removed.medium))).unwrap() -= 1;
                }
            }
            KvEvent::Cleared => held.retain(|(_, beneath), _| *beneath),
        }
    }
    held.retain(|_, copies| *copies > 0);
}

fn dumped(model: &Model) -> BTreeMap<(u64, bool), usize> {
    let all = model.dump_blocks().into_iter();
    all.map(|block| ((block.hash, block.medium != Medium::Gpu), block.copies))
        .collect()
}

#[test]
fn what_the_pool_evicts_is_loaded_again_and_counts_as_cached_at_a_price() {
    let mut bench = with_tier(100, false);
    for family in [0, 1] {
        bench.submit(long(family));
        assert_eq!(bench.drain().0, [0]);
    }
    // The second prompt evicted the tail of the first: 11 of its blocks are left in the pool, 9 are beneath.
    let beneath = |bench: &Bench| {
        dumped(&bench.model)
            .keys()
            .filter(|(_, beneath)| *beneath)
            .count()
    };
    assert_eq!(beneath(&bench), 9);
    bench.submit(long(0));
    let (plan, outcome) = bench.step().unwrap();
    let cached = outcome.outputs[0].prefilled.unwrap().cached_tokens;
    assert_eq!((cached, plan.prefill_tokens), (80, 1));
    let settings = settings();
    let loading = settings.load_per_token * 9 * 4;
    assert_eq!(
        plan.duration,
        settings.step_base + settings.prefill_per_token + loading
    );
    assert_eq!(stored_blocks(&outcome.events).last(), Some(&9));
    let totals = bench.model.totals();
    assert_eq!(
        (totals.prompt_tokens_cached, totals.prompt_tokens_loaded),
        (80, 36)
    );
}

#[test]
fn a_block_goes_beneath_before_it_leaves_the_pool_and_tells_as_much_as_it_is_told_to() {
    for describes in [false, true] {
        let mut bench = with_tier(100, describes);
        bench.submit(long(0));
        bench.drain();
        bench.submit(long(1));
        let (_, events) = bench.drain();
        let [KvEvent::Stored(offloaded), KvEvent::Removed(evicted), ..] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(offloaded.hashes, evicted.hashes);
        let told = |stored: &Stored| {
            (
                stored.tokens.len(),
                stored.block_size,
                stored.parent.is_some(),
            )
        };
        assert_eq!(offloaded.medium, Medium::Cpu);
        assert_eq!(
            told(offloaded),
            if describes {
                (4, 4, true)
            } else {
                (0, 0, false)
            }
        );
    }
}

#[test]
fn a_reset_leaves_what_is_beneath_and_a_sleep_forgets_it_without_a_word() {
    let mut bench = with_tier(100, false);
    for family in [0, 1] {
        bench.submit(long(family));
        bench.drain();
    }
    assert!(bench.model.reset_prefix_cache());
    assert!(dumped(&bench.model).keys().all(|(_, beneath)| *beneath));
    assert_eq!(dumped(&bench.model).len(), 9);
    assert!(bench.model.sleep(1).is_empty());
    assert!(bench.model.dump_blocks().is_empty());
    bench.model.wake_up();
    bench.submit(long(0));
    let (cached, events) = bench.drain();
    assert_eq!(cached, [0]);
    let removed = events
        .iter()
        .any(|event| matches!(event, KvEvent::Removed(_)));
    assert!(!removed);
}

proptest! {
    #[test]
    fn the_events_of_both_tiers_add_up_to_what_they_hold(
        capacity in 1..40_usize,
        prompts in prop::collection::vec((0..5_u32, 1..25_usize), 1..40),
    ) {
        let mut bench = with_tier(capacity, false);
        let mut held = BTreeMap::new();
        for (family, blocks) in prompts {
            let tokens = (0_u32..).take(blocks * 4).map(|at| family * 1000 + at);
            bench.submit(request(tokens, 2));
            let (_, events) = bench.drain();
            believed(&events, &mut held);
            prop_assert_eq!(&held, &dumped(&bench.model));
            let beneath = held.keys().filter(|(_, beneath)| *beneath).count();
            prop_assert!(beneath <= capacity);
        }
    }
}
