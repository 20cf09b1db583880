//! The first block of a prompt against what its engine stores.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::super::super::event::Removed;
use super::*;

fn first(decision: &Decision) -> Option<FirstBlock> {
    decision.reservation.first_block(None)
}

/// A pool of one that has told its block size.
fn warm_pool() -> Pool {
    let mut pool = Pool::new(1);
    pool.store(0, &tokens(99, 16), 0);
    pool
}

#[test]
fn the_first_block_of_a_cold_prompt_is_stored_once_an_event_says_so_and_stays_so() {
    let mut pool = warm_pool();
    let prompt = tokens(1, 100);
    let held = pool.pick(&prompt);
    let watched = first(&held).unwrap();
    assert_eq!(watched.stored(), FirstBlockStored::Unclear);
    pool.store(0, &prompt, 0);
    assert_eq!(watched.stored(), FirstBlockStored::Yes);
    drop(held);
    let gone = Removed {
        hashes: vec![engine_hash(&prompt[..16])],
        medium: Medium::Gpu,
        group: None,
    };
    pool.views[0].apply(&[KvEvent::Removed(gone)]);
    pool.store(0, &tokens(2, 100), 0);
    assert_eq!(watched.stored(), FirstBlockStored::Yes);
}

#[test]
fn another_beginning_in_its_place_is_shown_and_a_late_event_still_counts() {
    let mut pool = warm_pool();
    let (ours, theirs) = (tokens(1, 100), tokens(2, 100));
    let watched = first(&pool.pick(&ours)).unwrap();
    pool.store(0, &theirs, 0);
    let instead = theirs[..16].to_vec();
    let no = FirstBlockStored::No {
        instead,
        same_tokens: false,
    };
    assert_eq!(watched.stored(), no);
    pool.store(0, &ours, 0);
    assert_eq!(watched.stored(), FirstBlockStored::Yes);
}

#[test]
fn a_store_that_continues_another_prompt_shows_that_events_come() {
    let mut pool = warm_pool();
    let theirs = tokens(2, 100);
    pool.store(0, &theirs, 0);
    let watched = first(&pool.pick(&tokens(1, 100))).unwrap();
    let longer = joined(&[&theirs[..96], &tokens(3, 32)]);
    pool.store(0, &longer, 6);
    let no = FirstBlockStored::No {
        instead: theirs[..16].to_vec(),
        same_tokens: false,
    };
    assert_eq!(watched.stored(), no);
}

#[test]
fn the_same_tokens_under_an_adapter_are_told_from_other_tokens() {
    let mut pool = warm_pool();
    let prompt = tokens(1, 100);
    let watched = first(&pool.pick(&prompt)).unwrap();
    let adapted = Stored {
        lora_name: Some("sql".to_owned()),
        ..stored(&prompt, 0)
    };
    pool.views[0].apply(&[KvEvent::Stored(adapted)]);
    let no = FirstBlockStored::No {
        instead: prompt[..16].to_vec(),
        same_tokens: true,
    };
    assert_eq!(watched.stored(), no);
}

#[test]
fn what_tells_nothing_is_not_watched() {
    let fresh = Pool::new(1);
    assert!(first(&fresh.pick(&tokens(1, 100))).is_none(), "block size");
    let mut pool = warm_pool();
    assert!(
        first(&pool.pick(&tokens(1, 15))).is_none(),
        "no whole block"
    );
    pool.store(0, &tokens(1, 32), 0);
    assert!(first(&pool.pick(&tokens(1, 100))).is_none(), "cached");
    let bypassing = pool.prepare(&tokens(2, 100)).bypassing_cache();
    let decision = pool.router.pick(&bypassing, &pool.ask(7)).unwrap();
    assert!(first(&decision).is_none(), "the cache is not read");
    let estimate = Sequence::Estimate {
        tokens: TokenCount::new(100),
        text: vec![b'x'; 1_000],
    };
    let estimate = pool.router.prepare(&[estimate], &Scope::default());
    let decision = pool.router.pick(&estimate, &pool.ask(7)).unwrap();
    assert!(first(&decision).is_none(), "an estimate");
    for state in [
        FeedState::Suspect,
        FeedState::Incomplete("x".to_owned()),
        FeedState::Absent("x".to_owned()),
    ] {
        pool.views[0].set_feed(state.clone());
        assert!(first(&pool.pick(&tokens(3, 100))).is_none(), "{state:?}");
    }
}

#[test]
fn a_clear_a_lost_feed_or_an_endpoint_that_left_make_it_unclear() {
    let mut pool = warm_pool();
    let watch = |pool: &Pool| first(&pool.pick(&tokens(1, 100))).unwrap();
    let before_clear = watch(&pool);
    pool.views[0].apply(&[KvEvent::Cleared]);
    pool.store(0, &tokens(2, 100), 0);
    assert_eq!(before_clear.stored(), FirstBlockStored::Unclear);
    let watched = watch(&pool);
    pool.store(0, &tokens(3, 100), 0);
    assert!(matches!(watched.stored(), FirstBlockStored::No { .. }));
    pool.views[0].set_feed(FeedState::Suspect);
    assert_eq!(watched.stored(), FirstBlockStored::Unclear);
    pool.views[0].set_feed(FeedState::Live);
    pool.router.leave(pool.ids[0]);
    assert_eq!(watched.stored(), FirstBlockStored::Unclear);
}

#[test]
fn a_request_served_elsewhere_is_watched_there() {
    let mut pool = Pool::new(2);
    pool.store(0, &tokens(98, 16), 0);
    pool.store(1, &tokens(99, 16), 0);
    let prompt = tokens(1, 100);
    let mut decision = pool.pick_on(0, &prompt);
    decision.reservation.served_by(address(1), pool.now);
    let watched = first(&decision).unwrap();
    pool.store(0, &prompt, 0);
    assert_eq!(watched.stored(), FirstBlockStored::Unclear);
    pool.store(1, &prompt, 0);
    assert_eq!(watched.stored(), FirstBlockStored::Yes);
}

#[test]
fn watches_are_bounded_and_those_that_nobody_holds_give_way() {
    let pool = warm_pool();
    let held: Vec<_> = (0..2_000).map(|n| pool.pick(&tokens(n, 32))).collect();
    let watched = held.iter().filter(|held| first(held).is_some()).count();
    assert_eq!(watched, 1_024);
    drop(held);
    assert!(first(&pool.pick(&tokens(5_000, 32))).is_some());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pick(u32),
    /// The engine prefills the oldest request.
    Prefill,
    Evict(u32),
    /// So many of the engine's events arrive.
    Arrive(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = 0..4_u32;
    prop_oneof![
        prompt.clone().prop_map(Step::Pick),
        Just(Step::Prefill),
        prompt.prop_map(Step::Evict),
        (1..4_usize).prop_map(Step::Arrive),
    ]
}

proptest! {
    /// An engine that has our tokens is never said to have others, however late its events are.
    #[test]
    fn an_engine_with_the_same_tokens_is_never_blamed(steps in prop::collection::vec(step(), 0..60)) {
        let mut pool = warm_pool();
        // What the engine has; a block of several prompts in one life has one name.
        let mut cached: BTreeMap<u32, ()> = BTreeMap::new();
        let mut waiting: VecDeque<(u32, Decision)> = VecDeque::new();
        let mut events: VecDeque<KvEvent> = VecDeque::new();
        let mut ended = Vec::new();
        for step in steps {
            match step {
                Step::Pick(n) => waiting.push_back((n, pool.pick(&tokens(n, 40)))),
                Step::Prefill => {
                    let Some((n, decision)) = waiting.pop_front() else { continue };
                    if cached.insert(n, ()).is_none() {
                        events.push_back(KvEvent::Stored(stored(&tokens(n, 40), 0)));
                    }
                    ended.extend(first(&decision));
                }
                Step::Evict(n) => {
                    if cached.remove(&n).is_some() {
                        let hashes = stored(&tokens(n, 40), 0).hashes;
                        events.push_back(KvEvent::Removed(Removed { hashes, medium: Medium::Gpu, group: None }));
                    }
                }
                Step::Arrive(most) => {
                    let arrived: Vec<_> = (0..most).filter_map(|_| events.pop_front()).collect();
                    pool.views[0].apply(&arrived);
                }
            }
        }
        pool.views[0].apply(&events.into_iter().collect::<Vec<_>>());
        for watched in ended {
            prop_assert_eq!(watched.stored(), FirstBlockStored::Yes);
        }
    }
}

/// Ends a cold request of which the engine says that it had `cached` tokens, and tells what became of its blocks.
fn ended(pool: &mut Pool, decision: &Decision, cached: u64) -> FirstBlockStored {
    let cached = TokenCount::new(cached);
    decision.reservation.reported(cached, pool.now);
    let watched = decision.reservation.first_block(Some(cached)).unwrap();
    watched.stored()
}

#[test]
fn an_engine_that_puts_a_cached_beginning_before_our_prompt_is_noticed_all_the_same() {
    let mut pool = warm_pool();
    let (ours, theirs) = (tokens(1, 100), tokens(2, 132));
    pool.store(0, &theirs[..32], 0);
    let held = pool.pick(&ours);
    // What it computes stands behind a beginning that it has from others, so the prompt's first blocks are credited.
    pool.store(0, &theirs, 2);
    assert!(matches!(
        ended(&mut pool, &held, 32),
        FirstBlockStored::No { .. }
    ));
}

#[test]
fn a_prompt_whose_beginning_was_cached_before_we_listened_is_stored_where_it_goes_on() {
    let mut pool = warm_pool();
    let ours = tokens(1, 100);
    let held = pool.pick(&ours);
    pool.store(0, &ours, 2);
    assert_eq!(ended(&mut pool, &held, 32), FirstBlockStored::Yes);
}
