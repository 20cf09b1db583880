use std::time::Duration;

use super::*;

fn keys(range: std::ops::Range<u64>) -> Vec<BlockKey> {
    range
        .map(|n| BlockKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect()
}

fn matched(index: &PrefixIndex, keys: &[BlockKey]) -> u32 {
    index.lookup(keys).first().map_or(0, |found| found.blocks)
}

#[test]
fn what_was_sent_is_found_and_the_least_recent_goes_first() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let (a, b, c) = (keys(1..11), keys(101..111), keys(201..211));
    let (capacity, now) = (TokenCount::new(25 * 16), Instant::now());
    recent.touch(&index, &a, 16, capacity, now);
    recent.touch(&index, &b, 16, capacity, now);
    recent.touch(&index, &a, 16, capacity, now);
    recent.touch(&index, &c, 16, capacity, now);
    assert_eq!(matched(&index, &a), 10);
    assert_eq!(matched(&index, &b), 5, "the tail of the older prompt went");
    assert_eq!(matched(&index, &c), 10);
}

#[test]
fn never_more_than_the_capacity_is_remembered() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    for start in 0..200 {
        recent.touch(
            &index,
            &keys(start * 7 + 1..start * 7 + 40),
            64,
            TokenCount::new(5000),
            Instant::now(),
        );
        assert!(index.blocks(recent.source()) * 64 <= 5000);
    }
    assert_eq!(recent.sent.lock().blocks.keys().count(), 78);
    recent.clear(&index);
    assert!(index.is_empty());
}

#[test]
fn what_was_sent_before_a_moment_is_forgotten_and_what_was_sent_again_is_not() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let (a, b, c) = (keys(1..11), keys(101..111), keys(201..211));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    for (sent, seconds) in [(&a, 0), (&b, 1), (&a, 5), (&c, 6)] {
        recent.touch(&index, sent, 16, DEFAULT_CAPACITY, at(seconds));
    }
    recent.forget_before(&index, at(5));
    let held = [&a, &b, &c].map(|keys| matched(&index, keys));
    assert_eq!(held, [10, 0, 10]);
    recent.forget_before(&index, at(7));
    assert!(index.is_empty());
}

#[test]
fn picks_noted_out_of_order_are_forgotten_all_the_same() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let start = Instant::now();
    let late = start + Duration::from_secs(1);
    recent.touch(&index, &keys(1..3), 16, DEFAULT_CAPACITY, late);
    recent.touch(&index, &keys(101..103), 16, DEFAULT_CAPACITY, start);
    recent.forget_before(&index, late + Duration::from_secs(1));
    assert!(index.is_empty());
}

#[test]
fn a_pick_noted_after_its_engine_was_found_to_be_another_is_not_kept() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    recent.touch(&index, &keys(1..3), 16, DEFAULT_CAPACITY, at(0));
    recent.forget_before(&index, at(2));
    recent.touch(&index, &keys(1..3), 16, DEFAULT_CAPACITY, at(1));
    assert!(index.is_empty());
    recent.touch(&index, &keys(1..3), 16, DEFAULT_CAPACITY, at(2));
    assert_eq!(matched(&index, &keys(1..3)), 2);
}

/// Sends `prompts` prompts of 100 blocks in turn, each 40 times, to a pool of 1,000 blocks.
fn in_turn(prompts: u64, own_tails: bool) -> Recent {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let (capacity, now) = (TokenCount::new(16_000), Instant::now());
    for round in 0..40 {
        for prompt in 0..prompts {
            let mut sent = keys(prompt * 1_000 + 1..prompt * 1_000 + 101);
            if own_tails {
                let own = 1_000_000 + (round * prompts + prompt) * 100;
                sent.extend(keys(own..own + 50));
            }
            recent.touch(&index, &sent, 16, capacity, now);
        }
    }
    recent
}

#[test]
fn prompts_that_do_not_fit_and_are_asked_for_in_turn_overflow() {
    let recent = in_turn(12, false);
    assert!(recent.is_overflowing());
    assert_eq!(recent.overflow_change(), Some(true));
    assert_eq!(recent.overflow_change(), None, "told once");
}

#[test]
fn evictions_of_what_nobody_asks_for_again_are_no_overflow() {
    let recent = in_turn(5, true);
    assert!(recent.sent.lock().blocks.len() >= 900, "the pool is full");
    assert!(!recent.is_overflowing());
    assert_eq!(recent.overflow_change(), None);
}

#[test]
fn an_overflow_ends_when_what_is_asked_for_fits_again() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let (capacity, now) = (TokenCount::new(16_000), Instant::now());
    for (prompts, overflows) in [(12, true), (4, false)] {
        for _ in 0..60 {
            for prompt in 0..prompts {
                let sent = keys(prompt * 1_000 + 1..prompt * 1_000 + 101);
                recent.touch(&index, &sent, 16, capacity, now);
            }
        }
        assert_eq!(recent.is_overflowing(), overflows, "{prompts} prompts");
    }
}
