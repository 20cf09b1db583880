use proptest::prelude::*;

use super::super::measure::tests::{Listed, arrival};
use super::super::measure::{Recorded, measure};
use crate::simulate::prompt::Segment;
use crate::simulate::workload::Arrival;

fn recorded(arrivals: &[Arrival]) -> Recorded {
    measure(&mut Listed(arrivals.iter().cloned().collect()))
}

/// Caches that are played: for each the names of its blocks, the oldest first. Each request goes to one of them by the
/// draw; returns the share of prompt tokens found.
fn played(arrivals: &[Arrival], draw: &[usize], capacity: usize) -> f64 {
    let most = capacity / 16;
    let mut caches: Vec<Vec<Vec<u32>>> = vec![Vec::new(); 64];
    let (mut found, mut all) = (0, 0);
    for (arrival, replica) in arrivals.iter().zip(draw) {
        let cache = &mut caches[*replica];
        let mut text = arrival.prompt.token_ids();
        let prompt = text.len();
        arrival.answer_segment().write(&mut text);
        // A block's name is all text up to its end.
        let names: Vec<Vec<u32>> = (1..=text.len() / 16)
            .map(|n| text[..n * 16].to_vec())
            .collect();
        let askable = (prompt - 1) / 16;
        found += names[..askable]
            .iter()
            .take_while(|name| cache.contains(name))
            .count()
            * 16;
        all += prompt;
        cache.retain(|held| !names.contains(held));
        cache.extend(names.into_iter().rev());
        cache.drain(..cache.len().saturating_sub(most));
    }
    found as f64 / all as f64
}

/// Conversations that begin alike, branch, and come back after different numbers of others.
fn chats() -> impl Strategy<Value = Vec<Arrival>> {
    let turn = (0_usize..6, 0_u64..3, 1_u32..4, 0_u64..4);
    proptest::collection::vec(turn, 1..40).prop_map(|turns| {
        let mut said: Vec<Vec<(u64, u32)>> = vec![Vec::new(); 6];
        (0_u64..)
            .zip(turns)
            .map(|(n, (chat, head, blocks, again))| {
                let history = &mut said[chat];
                if history.is_empty() || again == 0 {
                    *history = vec![(head, 48)];
                }
                history.push((100 + n % 7, blocks * 16));
                let mut arrival = arrival(n, history);
                arrival.output = 32;
                history.push((arrival.answer, 32));
                arrival
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Blocks that are used least recently leave first: the distances say what a cache that is played out finds, at
    /// every size, alone and as one of several.
    #[test]
    fn distances_say_what_caches_find_that_are_played(chats in chats(), replicas in 1_u64..5) {
        let reuse = recorded(&chats).reuse;
        let mut draw = vec![0; chats.len()];
        for (replica, request) in reuse.by_replica(replicas) {
            draw[request as usize] = usize::try_from(replica).unwrap();
        }
        let one = vec![0; chats.len()];
        for capacity in [16, 48, 64, 128, 320, 1024, 1 << 20] {
            let together = reuse.together(capacity as f64);
            prop_assert!((together - played(&chats, &one, capacity)).abs() < 1e-12);
            let chance = reuse.by_chance(replicas, capacity as f64);
            prop_assert!((chance - played(&chats, &draw, capacity)).abs() < 1e-12);
        }
    }
}

/// 400 conversations of five turns, whose turns come in turn with those of 40 others.
fn many() -> Vec<Arrival> {
    let mut all = Vec::new();
    let mut n = 0;
    for group in 0..10 {
        for turn in 1..=5 {
            for chat in 0..40 {
                let name = (group * 40 + chat) * 10;
                let history: Vec<(u64, u32)> = (0..turn).map(|part| (name + part, 160)).collect();
                let mut arrival = arrival(n, &history);
                arrival.output = 16;
                all.push(arrival);
                n += 1;
            }
        }
    }
    all
}

/// Whoever goes anywhere finds a conversation's last turn at one replica of n; another draw finds as much.
#[test]
fn one_draw_finds_what_another_does() {
    let arrivals = many();
    let reuse = recorded(&arrivals).reuse;
    let mut random = fastrand::Rng::with_seed(99);
    for (replicas, capacity) in [(2, 4_096), (4, 4_096), (8, 2_048), (8, 1 << 20)] {
        let ours = reuse.by_chance(replicas as u64, capacity as f64);
        let draw: Vec<usize> = arrivals.iter().map(|_| random.usize(0..replicas)).collect();
        let other = played(&arrivals, &draw, capacity);
        assert!(
            (ours - other).abs() < 0.03,
            "{replicas} replicas of {capacity}: {ours} and {other}"
        );
    }
}

#[test]
fn what_is_found_ever_is_what_was_counted() {
    let found = recorded(&many());
    assert!((found.reuse.ever() - found.measured.shared_share).abs() < 1e-12);
    let endless = found.reuse.capacity_for(1.0);
    assert!((found.reuse.together(endless) - found.reuse.ever()).abs() < 1e-12);
    assert!(found.reuse.together(endless - 1.0) < found.reuse.ever());
    // A turn comes after those of 39 others, all different.
    let half = found.reuse.capacity_for(0.5);
    assert!((39.0 * 480.0..41.0 * 976.0).contains(&half), "{half}");
}

#[test]
fn nothing_is_found_in_nothing() {
    let reuse = recorded(&[]).reuse;
    let all = [reuse.ever(), reuse.together(1e9), reuse.by_chance(3, 1e9)];
    assert_eq!(all, [0.0; 3]);
    assert_eq!(reuse.capacity_for(0.5), 0.0);
}

/// A beginning below a block, and the last token of a prompt, are computed in any case.
#[test]
fn a_segment_may_end_anywhere() {
    let text = |parts: &[(u64, u32)]| {
        let parts = parts.iter().map(|&(id, tokens)| Segment { id, tokens });
        parts.map(|part| part.tokens).sum::<u32>()
    };
    let prompts: [&[(u64, u32)]; 3] = [
        &[(1, 100), (2, 60)],
        &[(1, 100), (2, 60)],
        &[(1, 50), (3, 60)],
    ];
    let arrivals: Vec<Arrival> = (0..).zip(prompts).map(|(n, p)| arrival(n, p)).collect();
    let all: u32 = prompts.iter().map(|prompt| text(prompt)).sum();
    // 159 tokens in whole blocks, then 50.
    let found = recorded(&arrivals).reuse.ever() * f64::from(all);
    assert!((found - (144.0 + 48.0)).abs() < 1e-9, "{found}");
}
