//! What answers and orphans teach: credit, how reports compare, and what drops it again.

use super::super::super::event::Removed;
use super::*;
use crate::routing::router::Agreement;

fn reported(decision: &Decision, cached: u64, now: Instant) -> Compared {
    decision.reservation.reported(TokenCount::new(cached), now)
}

/// Picks, and hears of so many cached tokens.
fn answered(pool: &Pool, tokens: &[u32], cached: u64) -> Compared {
    reported(&pool.pick(tokens), cached, pool.now)
}

fn removed(prefixes: &[&[u32]]) -> KvEvent {
    KvEvent::Removed(Removed {
        hashes: prefixes.iter().map(|prefix| engine_hash(prefix)).collect(),
        medium: Medium::Gpu,
        group: None,
    })
}

fn cached(pool: &Pool, tokens: &[u32]) -> u64 {
    pool.pick(tokens).cached.get()
}

/// Tells the size of its blocks, so that prompts are cut by it.
fn sized(n: u16) -> Pool {
    let mut pool = Pool::new(n);
    for n in 0..usize::from(n) {
        pool.store(n, &tokens(77, 16), 0);
    }
    pool
}

#[test]
fn a_report_of_more_is_credited_and_foreseen_from_then_on() {
    let pool = sized(1);
    let prompt = tokens(1, 170);
    let compared = answered(&pool, &prompt, 96);
    assert_eq!(
        (compared.agreement, compared.credited),
        (Agreement::TooLow, 6)
    );
    assert_eq!(cached(&pool, &prompt), 96);
    assert_eq!(cached(&pool, &joined(&[&prompt[..64], &tokens(2, 64)])), 64);
    assert_eq!(pool.view(0).credited_blocks, 6);
    assert_eq!(answered(&pool, &prompt, 96).agreement, Agreement::Equal);
    assert_eq!(
        answered(&pool, &prompt, 101).agreement,
        Agreement::Equal,
        "less than a block"
    );
}

#[test]
fn a_contrary_report_drops_the_credit_beyond_it() {
    let pool = sized(1);
    let prompt = tokens(1, 170);
    answered(&pool, &prompt, 160);
    let compared = answered(&pool, &prompt, 32);
    assert_eq!(
        (compared.agreement, compared.dropped),
        (Agreement::TooHigh, 8)
    );
    assert_eq!(cached(&pool, &prompt), 32);
}

#[test]
fn what_events_tell_takes_up_the_room_of_the_oldest_credits() {
    let mut pool = sized(1);
    let report = Report {
        kv_capacity: Some(TokenCount::new(20 * 16)),
        ..Report::default()
    };
    pool.router
        .report(pool.ids[0], ReportOutcome::Fresh(report), pool.now);
    let (old, new) = (tokens(1, 170), tokens(2, 170));
    answered(&pool, &old, 96);
    pool.now += Duration::from_secs(1);
    answered(&pool, &new, 96);
    assert_eq!(pool.view(0).credited_blocks, 12);
    // With 13 blocks told of there is room for seven more.
    pool.store(0, &tokens(3, 192), 0);
    assert_eq!(pool.view(0).credited_blocks, 7);
    assert_eq!((cached(&pool, &old), cached(&pool, &new)), (16, 96));
}

#[test]
fn an_event_takes_the_place_of_a_credit() {
    let mut pool = sized(1);
    let prompt = tokens(1, 160);
    answered(&pool, &prompt, 96);
    pool.store(0, &prompt, 0);
    assert_eq!(pool.view(0).credited_blocks, 0);
    pool.views[0].apply(&[removed(&[&prompt[..80]])]);
    assert_eq!(
        cached(&pool, &prompt),
        64,
        "a removal is not hidden by a credit"
    );
}

#[test]
fn clears_and_restarts_leave_no_credit_and_no_block() {
    type End = fn(&mut Pool);
    let ends: [(&str, End); 4] = [
        ("cleared by the engine", |pool| {
            pool.views[0].apply(&[KvEvent::Cleared]);
        }),
        ("events lost", |pool| pool.views[0].clear()),
        ("another process", |pool| pool.views[0].restarted()),
        ("away for a while", |pool| {
            let since = pool.now + Duration::from_secs(1);
            pool.router.restarted(pool.ids[0], since, since);
            pool.views[0].clear();
        }),
    ];
    for (what, end) in ends {
        let mut pool = sized(1);
        let prompt = tokens(1, 160);
        answered(&pool, &prompt, 96);
        end(&mut pool);
        let view = pool.view(0);
        assert_eq!((view.credited_blocks, view.blocks), (0, 0), "{what}");
        assert!(pool.router.state.index.is_empty(), "{what}");
        assert_eq!(cached(&pool, &prompt), 0, "{what}");
    }
}

#[test]
fn an_answer_to_a_request_of_before_a_clear_gives_no_credit_after() {
    let mut pool = sized(1);
    let prompt = tokens(1, 160);
    let before = pool.pick(&prompt);
    pool.views[0].clear();
    let compared = reported(&before, 96, pool.now);
    assert_eq!(
        (compared.agreement, compared.credited),
        (Agreement::Overtaken, 0)
    );
    assert!(pool.router.state.index.is_empty());
}

#[test]
fn an_answer_to_a_request_of_a_former_view_neither_gives_nor_takes_credit() {
    let mut pool = sized(1);
    let prompt = tokens(1, 160);
    pool.store(0, &prompt, 0);
    let before = pool.pick(&prompt);
    let mut second = pool.router.cache_view(pool.ids[0], 0);
    second.set_feed(FeedState::Live);
    assert_eq!(reported(&before, 96, pool.now).credited, 0);
    assert_eq!(answered(&pool, &prompt, 128).credited, 8);
    assert_eq!(reported(&before, 0, pool.now).dropped, 0);
    assert_eq!(pool.view(0).credited_blocks, 8);
}

#[test]
fn credit_is_bounded_by_what_the_engine_holds_and_the_oldest_goes() {
    let pool = sized(1);
    let report = Report {
        kv_capacity: Some(TokenCount::new(20 * 16)),
        ..Report::default()
    };
    pool.router
        .report(pool.ids[0], ReportOutcome::Fresh(report), pool.now);
    let prompts: Vec<_> = (1..4).map(|prompt| tokens(prompt, 170)).collect();
    for prompt in &prompts {
        answered(&pool, prompt, 160);
    }
    // One block is told of by an event.
    let view = pool.view(0);
    assert_eq!((view.credited_blocks, view.blocks), (19, 20));
    let left = prompts.iter().map(|prompt| cached(&pool, prompt));
    assert_eq!(left.collect::<Vec<_>>(), [0, 144, 160]);
}

#[test]
fn estimates_and_requests_of_several_prompts_are_not_learnt_from() {
    let pool = sized(1);
    let several: Vec<_> = (1..3).map(|n| Sequence::Tokens(tokens(n, 160))).collect();
    let estimate = Sequence::Estimate {
        tokens: TokenCount::new(400),
        text: vec![b'x'; 1_600],
    };
    for sequences in [several, vec![estimate]] {
        let prepared = pool.router.prepare(&sequences, &Scope::default());
        let decision = pool.router.pick(&prepared, &pool.ask(1)).unwrap();
        assert_eq!(reported(&decision, 96, pool.now), Compared::UNKNOWN);
    }
    let bypass = pool.prepare(&tokens(1, 160)).bypassing_cache();
    let decision = pool.router.pick(&bypass, &pool.ask(1)).unwrap();
    assert_eq!(reported(&decision, 0, pool.now), Compared::UNKNOWN);
    assert_eq!(pool.view(0).credited_blocks, 0);
}

#[test]
fn a_block_evicted_after_the_pick_overtakes_the_prediction() {
    let mut pool = sized(1);
    let prompt = tokens(1, 170);
    pool.store(0, &prompt, 0);
    let held = pool.pick(&prompt);
    pool.views[0].apply(&[removed(&[&prompt[..96], &prompt[..112]])]);
    let compared = reported(&held, 80, pool.now);
    assert_eq!(compared.agreement, Agreement::Overtaken);
    assert_eq!(
        reported(&held, 32, pool.now).agreement,
        Agreement::TooHigh,
        "not that block"
    );
    drop(held);
    // Removed before the pick is no excuse.
    pool.store(0, &prompt, 0);
    let again = pool.pick(&prompt);
    assert_eq!(reported(&again, 80, pool.now).agreement, Agreement::TooHigh);
}

#[test]
fn a_sibling_that_ended_early_or_came_later_overtakes_the_prediction() {
    let mut pool = sized(1);
    let prompt = tokens(1, 170);
    let first = pool.pick(&prompt);
    let second = pool.pick(&prompt);
    assert_eq!((first.cached.get(), second.cached.get()), (0, 160));
    assert_eq!(
        reported(&second, 0, pool.now).agreement,
        Agreement::Overtaken
    );
    // It computed what the first then found.
    pool.store(0, &prompt, 0);
    let compared = reported(&first, 160, pool.now);
    assert_eq!(
        (compared.agreement, compared.credited),
        (Agreement::Overtaken, 0)
    );
}

#[test]
fn choices_that_find_what_the_first_one_computed_are_no_fault_of_the_view() {
    let mut pool = sized(1);
    let prompt = tokens(1, 170);
    let held = pool.pick(&prompt);
    pool.store(0, &prompt, 0);
    assert_eq!(
        reported(&held, 160, pool.now).agreement,
        Agreement::Overtaken
    );
}

#[test]
fn what_was_believed_and_is_not_there_loses_its_reference_too_many() {
    let mut pool = sized(1);
    let prompt = tokens(1, 170);
    pool.store(0, &prompt, 0);
    // The engine evicts blocks 6 to 10 and nobody tells; the next request has them computed again.
    let held = pool.pick(&prompt);
    pool.store(0, &prompt, 6);
    assert_eq!(reported(&held, 96, pool.now).agreement, Agreement::TooHigh);
    drop(held);
    assert_eq!(cached(&pool, &prompt), 160, "they are there again");
    pool.store(0, &tokens(9, 16), 0);
    pool.views[0].apply(&[removed(&[&prompt[..112]])]);
    assert_eq!(cached(&pool, &prompt), 96, "one removal ends them now");
}

#[test]
fn an_orphan_that_continues_a_request_in_flight_tells_what_stands_before_it() {
    let mut pool = sized(1);
    let prompt = tokens(1, 320);
    let held = pool.pick(&prompt);
    assert_eq!(pool.queued(0), 320);
    // The engine had ten blocks of before our time.
    pool.store(0, &prompt[..256], 10);
    assert_eq!(
        pool.queued(0),
        64,
        "neither those nor the new ones are to be prefilled"
    );
    assert_eq!(pool.view(0).orphans, 0);
    assert_eq!(
        pool.view(0).credited_blocks,
        9,
        "the tenth has the engine's name"
    );
    let sibling = pool.pick(&joined(&[&prompt[..208], &tokens(2, 32)]));
    assert_eq!(sibling.cached.get(), 208);
    drop((held, sibling));
    // The parent's name is known, so its removal is understood, and so are its other children.
    pool.store(0, &joined(&[&prompt[..160], &tokens(3, 32)]), 10);
    assert_eq!(
        cached(&pool, &joined(&[&prompt[..160], &tokens(3, 48)])),
        192
    );
    pool.views[0].apply(&[removed(&[&prompt[..160]])]);
    assert_eq!(cached(&pool, &prompt), 144);
}

#[test]
fn equal_blocks_in_two_places_bind_nothing() {
    let mut pool = sized(1);
    let block = tokens(5, 16);
    let first = joined(&[&tokens(1, 64), &block, &tokens(2, 64)]);
    let second = joined(&[&tokens(3, 64), &block, &tokens(2, 64)]);
    let held = (pool.pick(&first), pool.pick(&second));
    pool.store(0, &first[..80], 4);
    assert_eq!(pool.view(0).orphans, 1, "it may be of either");
    drop(held);
    let held = pool.pick(&first);
    let stranger = joined(&[&tokens(9, 64), &block, &tokens(8, 32)]);
    pool.store(0, &stranger, 4);
    assert_eq!(
        pool.view(0).orphans,
        4,
        "its later blocks are not the prompt's"
    );
    drop(held);
    assert_eq!(pool.view(0).credited_blocks, 0);
}

#[test]
fn a_report_after_the_orphan_binds_it_at_the_next_event() {
    let mut pool = sized(1);
    let prompt = tokens(1, 320);
    pool.store(0, &prompt[..288], 10);
    assert_eq!(pool.view(0).orphans, 8);
    assert_eq!(answered(&pool, &prompt, 288).agreement, Agreement::TooLow);
    pool.store(0, &tokens(2, 16), 0);
    let view = pool.view(0);
    assert_eq!((view.orphans, view.credited_blocks), (0, 9));
    pool.views[0].apply(&[removed(&[&prompt[..288]])]);
    assert_eq!(cached(&pool, &prompt), 272, "its end is understood");
}

#[test]
fn another_adapters_or_salts_prompt_gets_no_credit() {
    let pool = sized(1);
    let prompt = tokens(1, 170);
    answered(&pool, &prompt, 96);
    for (adapter, salt) in [(Some("sql"), None), (None, Some("mine"))] {
        let scope = Scope {
            adapter: adapter.map(Arc::from),
            salt: salt.map(Arc::from),
        };
        let sequences = [Sequence::Tokens(prompt.clone())];
        let prepared = pool.router.prepare(&sequences, &scope);
        let decision = pool.router.pick(&prepared, &pool.ask(1)).unwrap();
        assert_eq!(decision.cached, TokenCount::ZERO);
    }
}

#[test]
fn losing_events_leaves_what_was_sent_and_a_clear_does_not() {
    let mut pool = Pool::new(1);
    let text = |pool: &Pool| {
        let sequences = [Sequence::Estimate {
            tokens: TokenCount::new(400),
            text: vec![b'x'; 1_600],
        }];
        let prepared = pool.router.prepare(&sequences, &Scope::default());
        let mut decision = pool.router.pick(&prepared, &pool.ask(5)).unwrap();
        decision.reservation.prefilled(pool.now);
        decision.cached.get()
    };
    assert_eq!(text(&pool), 0);
    pool.views[0].clear();
    assert!(text(&pool) > 300, "the blocks are still in the engine");
    pool.views[0].apply(&[KvEvent::Cleared]);
    assert_eq!(text(&pool), 0);
    pool.views[0].restarted();
    assert_eq!(text(&pool), 0);
}

#[test]
fn what_orphans_teach_of_a_rank_is_bounded_by_what_one_rank_holds() {
    let mut pool = sized(1);
    let _second = pool.router.cache_view(pool.ids[0], 1);
    let report = Report {
        kv_capacity: Some(TokenCount::new(20 * 16)),
        ..Report::default()
    };
    pool.router
        .report(pool.ids[0], ReportOutcome::Fresh(report), pool.now);
    for n in 1..4 {
        let prompt = tokens(n, 320);
        let held = pool.pick(&prompt);
        pool.store(0, &prompt[..256], 15);
        drop(held);
    }
    let view = pool.view(0);
    assert_eq!((view.credited_blocks, view.blocks), (13, 20));
}

#[test]
fn a_view_that_another_replaced_releases_nothing() {
    let mut pool = sized(1);
    let prompt = tokens(1, 160);
    let mut second = pool.router.cache_view(pool.ids[0], 0);
    second.set_feed(FeedState::Live);
    let held = pool.pick(&prompt);
    pool.store(0, &prompt, 0);
    assert_eq!(pool.queued(0), 160);
    second.apply(&[KvEvent::Stored(stored(&prompt, 0))]);
    assert_eq!(pool.queued(0), 0);
    drop(held);
}
