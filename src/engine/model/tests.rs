//! Claims about the engine model, by example and by random runs.

mod lower;
mod random;
mod recorded;

use std::time::Duration;

use super::*;
use crate::routing::block::{BlockSize, Scope};
use crate::routing::event::KvEvent;

pub(super) fn settings() -> Settings {
    Settings {
        block_size: BlockSize::new(4).unwrap(),
        blocks: 33,
        lower_blocks: 0,
        lower_describes: false,
        load_per_token: Duration::from_micros(10),
        max_num_seqs: 8,
        max_num_batched_tokens: 16,
        max_model_len: 100,
        step_base: Duration::from_millis(1),
        prefill_per_token: Duration::from_micros(100),
        decode_per_step: Duration::from_millis(5),
        decode_ns_per_context_token: 0.0,
        answer_tokens: 50,
        vocabulary: (1000..2000).collect(),
        seed: 7,
    }
}

pub(super) fn request(prompt: impl IntoIterator<Item = u32>, max_tokens: usize) -> Request {
    Request {
        prompt: prompt.into_iter().collect(),
        scope: Scope::default(),
        max_tokens: Some(max_tokens),
        ignore_eos: false,
        reads_cache: true,
        answer: Vec::new(),
    }
}

/// A model with a clock that moves by the steps' durations.
pub(super) struct Bench {
    pub(super) model: Model,
    pub(super) now: Instant,
}

impl Bench {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            model: Model::new(settings).unwrap(),
            now: Instant::now(),
        }
    }

    pub(super) fn submit(&mut self, request: Request) -> RequestId {
        self.model.submit(request, self.now).unwrap()
    }

    pub(super) fn step(&mut self) -> Option<(StepPlan, StepOutcome)> {
        let plan = self.model.begin_step(self.now)?;
        self.now += plan.duration;
        Some((plan, self.model.end_step(self.now)))
    }

    /// Runs until idle; the cached tokens that the first of the requests found, and all events.
    pub(super) fn drain(&mut self) -> (Vec<usize>, Vec<KvEvent>) {
        let (mut cached, mut events) = (Vec::new(), Vec::new());
        while let Some((_, outcome)) = self.step() {
            events.extend(outcome.events);
            cached.extend(
                outcome
                    .outputs
                    .iter()
                    .filter_map(|o| o.prefilled.map(|p| p.cached_tokens)),
            );
        }
        (cached, events)
    }
}

pub(super) fn stored_blocks(events: &[KvEvent]) -> Vec<usize> {
    events
        .iter()
        .filter_map(|event| match event {
            KvEvent::Stored(stored) => Some(stored.hashes.len()),
            _ => None,
        })
        .collect()
}

#[test]
fn a_long_cold_prompt_is_stored_step_by_step() {
    let mut bench = Bench::new(Settings {
        block_size: BlockSize::new(32).unwrap(),
        blocks: 400,
        max_num_batched_tokens: 2048,
        max_model_len: 12000,
        ..settings()
    });
    bench.submit(request(0..5829, 1));
    let mut seen = Vec::new();
    while let Some((plan, outcome)) = bench.step() {
        seen.push((
            plan.prefill_tokens,
            stored_blocks(&outcome.events),
            outcome.outputs.len(),
        ));
    }
    assert_eq!(
        seen,
        [
            (2048, vec![64], 0),
            (2048, vec![64], 0),
            (1733, vec![54], 1)
        ]
    );
}

#[test]
fn two_prompts_share_the_budget_of_a_step() {
    let mut bench = Bench::new(settings());
    bench.submit(request(0..20, 1));
    bench.submit(request(100..120, 1));
    let (first, outcome) = bench.step().unwrap();
    assert_eq!((first.prefill_tokens, outcome.outputs.len()), (16, 0));
    let (second, outcome) = bench.step().unwrap();
    assert_eq!(second.prefill_tokens, 16);
    // Four tokens end the first prompt (one block), twelve begin the second (three blocks).
    assert_eq!(stored_blocks(&outcome.events), [1, 3]);
    assert_eq!(outcome.outputs.len(), 1);
}

#[test]
fn a_step_takes_base_prefill_and_decode_time() {
    let mut bench = Bench::new(settings());
    bench.submit(request(0..10, 3));
    let (prefill, _) = bench.step().unwrap();
    assert_eq!(prefill.duration, Duration::from_millis(2));
    let (decode, _) = bench.step().unwrap();
    assert_eq!(
        (decode.duration, decode.decodes),
        (Duration::from_millis(6), 1)
    );
    bench.submit(request(50..60, 3));
    let (mixed, _) = bench.step().unwrap();
    assert_eq!(mixed.duration, Duration::from_millis(7));
}

#[test]
fn a_prompt_of_whole_blocks_recomputes_its_last_block_and_stores_it_twice() {
    let mut bench = Bench::new(settings());
    let mut cached = Vec::new();
    let mut events = Vec::new();
    for length in [12, 12, 13] {
        bench.submit(request(0..length, 1));
        let (found, new) = bench.drain();
        cached.extend(found);
        events.push(stored_blocks(&new));
    }
    assert_eq!(cached, [0, 8, 12]);
    assert_eq!(events, [vec![3], vec![1], vec![]]);
    assert_eq!(
        bench
            .model
            .dump_blocks()
            .iter()
            .map(|b| b.copies)
            .sum::<usize>(),
        4
    );
}

#[test]
fn equal_prompts_of_one_step_share() {
    let mut bench = Bench::new(settings());
    bench.submit(request(0..8, 1));
    bench.submit(request(0..8, 1));
    let (plan, outcome) = bench.step().unwrap();
    assert_eq!(plan.prefill_tokens, 8 + 4);
    let cached: Vec<_> = outcome
        .outputs
        .iter()
        .map(|o| o.prefilled.unwrap().cached_tokens)
        .collect();
    assert_eq!(cached, [0, 4]);
}

#[test]
fn salts_and_adapters_have_caches_of_their_own() {
    let mut bench = Bench::new(Settings {
        max_num_batched_tokens: 64,
        ..settings()
    });
    let scopes = [
        (None, None),
        (Some("sql"), None),
        (None, Some("t")),
        (Some("sql"), Some("t")),
    ];
    for _ in 0..2 {
        for (adapter, salt) in scopes {
            let scope = Scope {
                adapter: adapter.map(Into::into),
                salt: salt.map(Into::into),
            };
            bench.submit(Request {
                scope,
                ..request(0..9, 1)
            });
        }
        let (cached, events) = bench.drain();
        let warm = events.is_empty();
        assert_eq!(cached, vec![if warm { 8 } else { 0 }; 4]);
        let salts: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                KvEvent::Stored(s) => Some((
                    s.lora_name.as_deref(),
                    s.extras.first().and_then(|e| e.salt.as_deref()),
                )),
                _ => None,
            })
            .collect();
        assert!(warm || salts == scopes);
    }
}

#[test]
fn generated_blocks_are_cached_and_announced() {
    let mut bench = Bench::new(settings());
    bench.submit(request(0..5, 8));
    // 5 prompt tokens and 7 computed answer tokens: the last token is never computed.
    let (_, events) = bench.drain();
    assert_eq!(stored_blocks(&events), [1, 1, 1]);
    assert_eq!(bench.model.dump_blocks().len(), 3);
}

#[test]
fn an_answer_depends_on_seed_and_prompt_only() {
    let answer = |seed: u64, prompt: std::ops::Range<u32>| {
        let mut bench = Bench::new(Settings { seed, ..settings() });
        bench.submit(request(50..60, 4));
        bench.drain();
        bench.submit(request(prompt, 4));
        std::iter::from_fn(|| bench.step())
            .flat_map(|(_, outcome)| outcome.outputs)
            .map(|output| output.token)
            .collect::<Vec<_>>()
    };
    assert_eq!(answer(1, 0..10), answer(1, 0..10));
    assert_ne!(answer(1, 0..10), answer(2, 0..10));
    assert_ne!(answer(1, 0..10), answer(1, 0..11));
}

#[test]
fn answers_end_at_their_length_or_by_themselves() {
    let ends = |max_tokens, ignore_eos| {
        let mut bench = Bench::new(settings());
        bench.submit(Request {
            max_tokens,
            ignore_eos,
            ..request(0..10, 1)
        });
        let outputs: Vec<_> = std::iter::from_fn(|| bench.step())
            .flat_map(|(_, outcome)| outcome.outputs)
            .collect();
        (outputs.len(), outputs.last().unwrap().finished.unwrap())
    };
    assert_eq!(ends(Some(3), false), (3, FinishReason::Length));
    assert_eq!(ends(None, false), (50, FinishReason::Stop));
    assert_eq!(ends(None, true), (90, FinishReason::Length));
}

#[test]
fn a_client_that_leaves_during_a_step_leaves_the_blocks_of_that_step() {
    let mut bench = Bench::new(settings());
    let id = bench.submit(request(0..40, 4));
    bench.model.begin_step(bench.now).unwrap();
    bench.model.abort(id);
    let outcome = bench.model.end_step(bench.now);
    assert_eq!(stored_blocks(&outcome.events), [4]);
    assert!(bench.step().is_none());
    assert_eq!(bench.model.gauges(), Gauges::default());
    bench.submit(request(0..40, 1));
    assert_eq!(bench.drain().0, [16]);
}

#[test]
fn a_full_pool_preempts_the_newest_and_announces_nothing_for_it() {
    let mut bench = Bench::new(Settings {
        blocks: 9,
        max_model_len: 32,
        ..settings()
    });
    let first = bench.submit(request(0..12, 20));
    let second = bench.submit(request(100..112, 20));
    let mut order = Vec::new();
    let mut removed = 0;
    while let Some((_, outcome)) = bench.step() {
        removed += outcome
            .events
            .iter()
            .filter(|e| matches!(e, KvEvent::Removed(_)))
            .count();
        order.extend(
            outcome
                .outputs
                .iter()
                .filter(|o| o.finished.is_some())
                .map(|o| o.request),
        );
    }
    assert_eq!(order, [first, second]);
    assert!(bench.model.totals().preemptions > 0);
    assert!(removed > 0);
    assert_eq!(bench.model.totals().generation_tokens, 40);
    assert_eq!(bench.model.totals().prompt_tokens, 24);
}

#[test]
fn a_prompt_waits_until_the_whole_of_it_fits() {
    let mut bench = Bench::new(Settings {
        blocks: 9,
        max_model_len: 32,
        ..settings()
    });
    bench.submit(request(0..16, 3));
    bench.step().unwrap();
    bench.submit(request(100..120, 1));
    bench.step().unwrap();
    assert_eq!(
        (bench.model.gauges().running, bench.model.gauges().waiting),
        (1, 1)
    );
    assert_eq!(bench.drain().0, [0]);
}

#[test]
fn a_reset_is_announced_by_the_next_step_and_refused_while_busy() {
    let mut bench = Bench::new(settings());
    bench.submit(request(0..8, 2));
    bench.step().unwrap();
    assert!(!bench.model.reset_prefix_cache());
    bench.drain();
    assert!(bench.model.reset_prefix_cache());
    assert!(bench.model.dump_blocks().is_empty());
    bench.submit(request(0..8, 1));
    let (cached, events) = bench.drain();
    assert_eq!((cached, events.first()), (vec![0], Some(&KvEvent::Cleared)));
}

#[test]
fn requests_that_can_never_run_are_refused() {
    let mut bench = Bench::new(settings());
    let mut refusal = |request| bench.model.submit(request, bench.now).unwrap_err();
    assert_eq!(refusal(request([], 1)), SubmitError::EmptyPrompt);
    assert_eq!(refusal(request(0..5, 0)), SubmitError::NoTokens);
    assert_eq!(
        refusal(request(0..95, 6)),
        SubmitError::TooLong {
            prompt: 95,
            output: 6,
            limit: 100
        }
    );
    assert_eq!(
        Model::new(Settings {
            max_model_len: 129,
            ..settings()
        })
        .err(),
        Some(SettingsError::ContextTooLong {
            max_model_len: 129,
            capacity: 128
        })
    );
    assert_eq!(
        Model::new(Settings {
            max_num_seqs: 0,
            ..settings()
        })
        .err(),
        Some(SettingsError::Zero("max_num_seqs"))
    );
    let prefill = |prefill_per_token| Settings {
        prefill_per_token,
        ..settings()
    };
    let context = |decode_ns_per_context_token| Settings {
        decode_ns_per_context_token,
        ..settings()
    };
    for endless in [
        prefill(Duration::MAX),
        context(f64::INFINITY),
        context(f64::NAN),
        context(-1.0),
    ] {
        assert_eq!(Model::new(endless).err(), Some(SettingsError::Endless));
    }
}
