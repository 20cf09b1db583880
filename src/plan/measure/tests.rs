use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::simulate::prompt::{Prompt, Segment};

/// Requests from a list.
pub(in crate::plan) struct Listed(pub(in crate::plan) VecDeque<Arrival>);

impl Workload for Listed {
    fn next(&mut self) -> Option<Arrival> {
        self.0.pop_front()
    }

    fn follow(&mut self, _: u64, _: Duration) -> Option<Arrival> {
        None
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
}

/// Request n of a list: its segments, answered with 100 tokens.
pub(in crate::plan) fn arrival(n: u64, segments: &[(u64, u32)]) -> Arrival {
    let segments = segments.iter().map(|&(id, tokens)| Segment { id, tokens });
    Arrival {
        at: Duration::from_millis(n * 100),
        prompt: Prompt::new(segments),
        output: 100,
        answer: 1_000_000 + n,
        session: n,
        prefix: None,
    }
}

fn measured(arrivals: impl IntoIterator<Item = Arrival>) -> Measured {
    measure(&mut Listed(arrivals.into_iter().collect())).measured
}

/// Prefixes by Zipf's law, each request with 2,000 tokens of its own.
fn customers(prefixes: u64, skew: f64, requests: u64) -> Measured {
    let mut random = fastrand::Rng::with_seed(11);
    let weights: Vec<f64> = (1..=prefixes)
        .map(|rank| (rank as f64).powf(-skew))
        .collect();
    let total: f64 = weights.iter().sum();
    measured((0..requests).map(|n| {
        let mut left = random.f64() * total;
        let prefix = weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        });
        arrival(
            n,
            &[(prefix.unwrap_or(0) as u64, 6000), (500_000 + n, 2000)],
        )
    }))
}

#[test]
fn shared_prefixes_are_counted_with_their_length() {
    let found = customers(200, 0.0, 20_000);
    assert_eq!(found.distinct_prefixes, 200);
    assert_eq!(found.prefix_tokens, 6000.0);
    assert_eq!(found.set_tokens, 1_200_000.0);
    assert_eq!(found.shared_tokens, 6000.0);
    assert_eq!(found.warm_share, 19_800.0 / 20_000.0);
    assert!((found.shared_share - 0.75 * 0.99).abs() < 1e-9);
    assert!((found.rate.unwrap() - 10.0).abs() < 1e-9);
    assert_eq!((found.prompt_tokens, found.output_tokens), (8000.0, 100.0));
    assert_eq!(found.given().prefixes, Some(200));
}

#[test]
fn the_skew_is_found() {
    for skew in [0.0, 0.6, 1.0, 1.4] {
        let found = customers(200, skew, 40_000).skew;
        assert!((found - skew).abs() < 0.08, "{skew} was taken for {found}");
    }
}

#[test]
fn a_conversation_shares_its_prompts_and_its_answers() {
    let first = arrival(0, &[(1, 320), (2, 160)]);
    let mut second = arrival(1, &[(1, 320), (2, 160), (first.answer, 100), (3, 160)]);
    second.answer = 77;
    let found = measured([first, second]);
    // 580 tokens were there, 36 whole blocks of 16.
    assert_eq!(found.shared_tokens, 576.0);
    assert_eq!(found.warm_share, 0.5);
    assert_eq!(found.distinct_prefixes, 1);
    assert_eq!(found.set_tokens, 580.0);
}

#[test]
fn equal_prompts_still_compute_their_last_token() {
    let found = measured([arrival(0, &[(1, 320)]), arrival(1, &[(1, 320)])]);
    assert_eq!(found.shared_tokens, 304.0);
}

#[test]
fn a_shorter_segment_of_the_same_name_is_found_within_the_longer() {
    let found = measured([arrival(0, &[(1, 320)]), arrival(1, &[(1, 160), (2, 160)])]);
    assert_eq!(found.shared_tokens, 160.0);
}

#[test]
fn a_start_below_a_block_is_not_shared() {
    let found = measured((0..10).map(|n| arrival(n, &[(1, 8), (100 + n, 400)])));
    assert_eq!((found.warm_share, found.shared_tokens), (0.0, 0.0));
    assert_eq!(found.distinct_prefixes, 0);
}

#[test]
fn where_only_long_prompts_are_warm_what_they_save_is_spread_over_all() {
    let long = (0..4).map(|n| arrival(n, &[(1, 16_000), (100 + n, 160)]));
    let short = (4..40).map(|n| arrival(n, &[(100 + n, 160)]));
    let found = measured(long.chain(short));
    assert!(found.shared_tokens > found.prompt_tokens);
    let given = found.given();
    let [shared, prompt, warm] = [given.shared_tokens, given.prompt_tokens, given.warm_share];
    let (shared, prompt, warm) = (shared.unwrap(), prompt.unwrap(), warm.unwrap());
    assert!(shared < prompt, "{shared} of {prompt}");
    assert!((warm * shared / prompt - found.shared_share).abs() < 1e-12);
    let held = given.prefixes.unwrap() as f64 * shared;
    assert!((held / found.set_tokens - 1.0).abs() < 0.1, "{held}");
}

#[test]
fn nothing_is_made_of_an_empty_workload() {
    let found = measured([]);
    assert_eq!(found, Measured::default());
    assert_eq!(found.given(), Given::default());
    let at_once = measured([arrival(0, &[(1, 32)])]);
    assert_eq!(at_once.rate, None);
}
