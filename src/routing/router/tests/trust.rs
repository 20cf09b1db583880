//! Endpoints whose events are wrong again and again, and their way back.

use super::*;
use crate::routing::router::{DoubtCause, TrustChange};

/// A pool whose first endpoint has told its block size.
fn pool() -> Pool {
    let mut pool = Pool::new(2);
    pool.store(0, &tokens(77, 16), 0);
    pool.store(1, &tokens(77, 16), 0);
    pool
}

/// One request to the first endpoint: what of it was foreseen, and what came of so many cached tokens.
fn ask(
    pool: &mut Pool,
    tokens: &[u32],
    cached: u64,
    is_stored: bool,
) -> (u64, Option<TrustChange>) {
    pool.now += Duration::from_secs(2);
    let mut decision = pool.pick_on(0, tokens);
    decision.reservation.prefilled(pool.now);
    if is_stored {
        let from = usize::try_from(cached / 16).unwrap();
        pool.store(0, tokens, from);
    }
    let compared = decision
        .reservation
        .reported(TokenCount::new(cached), pool.now);
    (decision.cached.get(), compared.trust)
}

#[test]
fn a_silent_publisher_is_doubted_for_blocks_that_nobody_announces_and_gets_its_traffic_back() {
    let mut pool = pool();
    let mut changes = Vec::new();
    for n in 0..10 {
        changes.extend(ask(&mut pool, &tokens(n, 320), 0, false).1);
    }
    let [TrustChange::Doubted { cause, reason }] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    assert_eq!(*cause, DoubtCause::Unannounced);
    let view = pool.view(0);
    assert_eq!(view.doubt.as_ref(), Some(reason));
    assert!(view.approximate);
    // It is served by what was sent to it from here on.
    let (foreseen, _) = ask(&mut pool, &tokens(50, 320), 0, false);
    assert_eq!(foreseen, 0);
    assert_eq!(pool.pick(&tokens(50, 320)).id, pool.ids[0]);
}

#[test]
fn an_endpoint_that_reports_more_than_its_events_tell_is_doubted_and_returns_when_they_are_right() {
    let mut pool = pool();
    let mut changes = Vec::new();
    for n in 0..8 {
        changes.extend(ask(&mut pool, &tokens(n, 330), 160, true).1);
    }
    assert!(
        matches!(
            &changes[..],
            [TrustChange::Doubted {
                cause: DoubtCause::TooLow,
                ..
            }]
        ),
        "{changes:?}"
    );
    changes.clear();
    for n in 0..16 {
        assert!(pool.view(0).approximate, "{n}");
        // Credited or announced by now.
        changes.extend(ask(&mut pool, &tokens(n % 8, 330), 320, true).1);
    }
    assert_eq!(changes, [TrustChange::Trusted]);
    let view = pool.view(0);
    assert_eq!((view.doubt, view.approximate), (None, false));
}

#[test]
fn phantoms_again_and_again_are_doubted_as_such() {
    let mut pool = pool();
    let mut changes = Vec::new();
    for n in 0..8 {
        let prompt = tokens(n, 330);
        pool.store(0, &prompt, 0);
        changes.extend(ask(&mut pool, &prompt, 0, true).1);
    }
    assert!(
        matches!(
            &changes[..],
            [TrustChange::Doubted {
                cause: DoubtCause::TooHigh,
                ..
            }]
        ),
        "{changes:?}"
    );
}

#[test]
fn an_engine_without_a_prefix_cache_is_not_believed_to_cache_what_was_sent() {
    let mut pool = pool();
    let mut changes = Vec::new();
    for n in 0..60 {
        changes.extend(ask(&mut pool, &tokens(n % 4, 330), 0, false).1);
    }
    let [TrustChange::Doubted { .. }, TrustChange::Trusted] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    assert_eq!(ask(&mut pool, &tokens(1, 330), 0, false).0, 0);
}

#[test]
fn a_view_that_says_it_is_incomplete_is_not_doubted_for_what_it_lacks() {
    let mut pool = pool();
    pool.views[0].set_feed(FeedState::Incomplete("the replay begins late".to_owned()));
    for n in 0..20 {
        let (_, change) = ask(&mut pool, &tokens(n, 330), 320, true);
        assert_eq!(change, None);
    }
    pool.views[0].set_feed(FeedState::Suspect);
    for n in 0..20 {
        let (_, change) = ask(&mut pool, &tokens(n, 330), 0, false);
        assert_eq!(change, None);
    }
}

#[test]
fn nothing_foreseen_and_nothing_there_is_no_proof() {
    let mut pool = pool();
    // As many cold requests as there are wrong ones do not dilute them.
    let mut doubted = false;
    for n in 0..8 {
        ask(&mut pool, &tokens(100 + n, 330), 0, true);
        ask(&mut pool, &tokens(200 + n, 330), 0, true);
        doubted |= ask(&mut pool, &tokens(n, 330), 320, true).1.is_some();
    }
    assert!(doubted);
}

#[test]
fn an_engine_that_keeps_the_last_block_of_each_hit_back_is_not_doubted() {
    // Speculative decoding that hashes no lookahead: one block less than is there, of every hit.
    let mut pool = pool();
    for n in 0..40 {
        let prompt = tokens(n, 330);
        pool.store(0, &prompt[..160], 0);
        let (foreseen, change) = ask(&mut pool, &prompt, 144, true);
        assert_eq!((foreseen, change), (160, None), "{n}");
    }
}

#[test]
fn an_endpoint_whose_ranks_share_it_is_not_doubted_for_what_only_one_of_them_has() {
    let mut pool = pool();
    let mut second = pool.router.cache_view(pool.ids[0], 1);
    second.set_feed(FeedState::Live);
    for n in 0..20 {
        let prompt = tokens(n, 330);
        pool.store(0, &prompt, 0);
        // Its own balancer gave it to the rank that has nothing of it.
        pool.now += Duration::from_secs(2);
        let decision = pool.pick_on(0, &prompt);
        second.apply(&[KvEvent::Stored(stored(&prompt, 0))]);
        let compared = decision.reservation.reported(TokenCount::ZERO, pool.now);
        assert_eq!(compared.trust, None, "{n}");
    }
}
