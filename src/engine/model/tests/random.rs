//! Random runs: nothing leaks, the budget holds, and the events add up to the cache.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use super::{Bench, request, settings};
use crate::routing::event::KvEvent;

#[derive(Clone, Debug)]
enum Act {
    /// Prompt family (they share prefixes), length, answer length, salted.
    Submit(u32, usize, usize, bool),
    Abort(usize),
    AbortInStep(usize),
    Step,
    Reset,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4_u32, 1..40_usize, 1..20_usize, any::<bool>())
            .prop_map(|(family, len, answer, salted)| Act::Submit(family, len, answer, salted)),
        1 => any::<usize>().prop_map(Act::Abort),
        1 => any::<usize>().prop_map(Act::AbortInStep),
        8 => Just(Act::Step),
        1 => Just(Act::Reset),
    ]
}

/// Families 0 and 1 share their first 10 tokens, 2 and 3 theirs.
fn prompt(family: u32, len: usize) -> Vec<u32> {
    (0_u32..)
        .take(len)
        .map(|at| {
            if at < 10 {
                family / 2 * 100 + at
            } else {
                family * 1000 + at
            }
        })
        .collect()
}

/// What a reader of the events believes: copies by hash.
#[derive(Default)]
struct Reader(BTreeMap<u64, usize>);

impl Reader {
    fn apply(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    assert_eq!(
                        stored.tokens.len(),
                        stored.hashes.len() * stored.block_size as usize
                    );
                    if let Some(parent) = stored.parent {
                        assert!(
                            self.0.contains_key(&parent.0),
                            "a store names a parent that is not there"
                        );
                    }
                    for hash in &stored.hashes {
                        *self.0.entry(hash.0).or_default() += 1;
                    }
                }
                KvEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        let copies = self.0.get_mut(&hash.0).expect("removed without a store");
                        *copies -= 1;
                        if *copies == 0 {
                            self.0.remove(&hash.0);
                        }
                    }
                }
                KvEvent::Cleared => self.0.clear(),
            }
        }
    }
}

fn check_accounting(model: &Model) {
    let mut users = BTreeMap::new();
    for sequence in &model.scheduler.running {
        assert_eq!(sequence.blocks.len(), sequence.computed.div_ceil(4));
        for &id in &sequence.blocks {
            *users.entry(id).or_insert(0_usize) += 1;
        }
    }
    assert_eq!(
        users.len() + model.scheduler.memory.cache.free(),
        model.settings.blocks - 1
    );
    assert!(
        users
            .keys()
            .all(|&id| !model.scheduler.memory.cache.is_free(id))
    );
    assert!(
        model
            .scheduler
            .waiting
            .iter()
            .all(|sequence| sequence.blocks.is_empty())
    );
    assert!(model.scheduler.running.len() <= model.settings.max_num_seqs);
}

proptest! {
    #[test]
    fn events_add_up_to_the_cache_and_no_block_leaks(acts in prop::collection::vec(act(), 1..120)) {
        let mut bench = Bench::new(Settings { blocks: 21, max_model_len: 60, max_num_seqs: 3, ..settings() });
        let mut reader = Reader::default();
        let mut ids = Vec::new();
        let mut cleared = false;
        for act in acts {
            match act {
                Act::Submit(family, len, answer, salted) => {
                    let mut request = request(prompt(family, len), answer);
                    request.scope.salt = salted.then(|| "salt".into());
                    ids.push(bench.submit(request));
                }
                Act::Abort(which) if !ids.is_empty() => bench.model.abort(ids[which % ids.len()]),
                Act::Reset => cleared |= bench.model.reset_prefix_cache(),
                Act::AbortInStep(_) | Act::Step => {
                    let Some(plan) = bench.model.begin_step(bench.now) else { continue };
                    prop_assert!(plan.prefill_tokens + plan.decodes <= 16);
                    prop_assert!(plan.prefill_tokens + plan.decodes > 0);
                    check_accounting(&bench.model);
                    if let Act::AbortInStep(which) = act {
                        bench.model.abort(ids[which % ids.len()]);
                    }
                    bench.now += plan.duration;
                    reader.apply(&bench.model.end_step(bench.now).events);
                    cleared = false;
                }
                Act::Abort(_) => {}
            }
            check_accounting(&bench.model);
            if !cleared {
                let dump: BTreeMap<_, _> =
                    bench.model.dump_blocks().iter().map(|block| (block.hash, block.copies)).collect();
                prop_assert_eq!(&dump, &reader.0);
            }
        }
        bench.drain();
        prop_assert_eq!(bench.model.gauges(), Gauges::default());
    }

    /// The rule as engines.md states it, on a reader that knows token sequences only.
    #[test]
    fn hits_are_whole_blocks_of_the_longest_known_prefix_below_the_last_token(
        asks in prop::collection::vec((0..4_u32, 1..40_usize), 1..12),
    ) {
        let mut bench = Bench::new(Settings { blocks: 400, ..settings() });
        let mut known: Vec<Vec<u32>> = Vec::new();
        for (family, len) in asks {
            let tokens = prompt(family, len);
            let expected = (0..=(tokens.len() - 1) / 4)
                .rev()
                .find(|blocks| known.iter().any(|k| k.len() / 4 >= *blocks && k.starts_with(&tokens[..blocks * 4])))
                .unwrap_or(0);
            bench.submit(request(tokens.clone(), 1));
            prop_assert_eq!(bench.drain().0, vec![expected * 4]);
            known.push(tokens);
        }
    }
}
