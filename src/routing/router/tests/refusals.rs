//! Endpoints that refuse: left out for a moment, longer while it goes on, and nothing of it is taken to be cached.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const REFUSING: Option<Exclusion> = Some(Exclusion::Refusing);

fn refuse(pool: &Pool, prompt: u32, retry_after: Option<Duration>) {
    let mut decision = pool.pick_on(0, &tokens(prompt, 100));
    decision.reservation.refused(retry_after, pool.now);
    decision.reservation.answered(503);
}

/// Seconds until it may be picked again.
fn pause(pool: &mut Pool) -> u64 {
    let from = pool.now;
    while pool.view(0).excluded == REFUSING {
        pool.now += SECOND / 10;
    }
    pool.now.duration_since(from).as_secs()
}

#[test]
fn a_refusal_leaves_out_for_a_second_and_for_longer_while_it_goes_on() {
    let mut pool = Pool::new(2);
    let pauses: Vec<u64> = (0..7)
        .map(|n| {
            refuse(&pool, n, None);
            pause(&mut pool)
        })
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 8, 8, 8]);
    let mut answered = pool.pick_on(0, &tokens(50, 100));
    answered.reservation.answered(400);
    refuse(&pool, 51, None);
    assert_eq!(pause(&mut pool), 1, "any other answer ends it");
    pool.now += 120 * SECOND;
    refuse(&pool, 52, None);
    assert_eq!(pause(&mut pool), 1, "it did not go on");
}

#[test]
fn it_is_left_out_for_as_long_as_it_asks_for_but_no_longer_than_half_a_minute() {
    let mut pool = Pool::new(2);
    refuse(&pool, 1, Some(5 * SECOND));
    assert_eq!(pause(&mut pool), 5);
    refuse(&pool, 2, Some(SECOND));
    assert_eq!(
        pause(&mut pool),
        8,
        "asking for less than before is no sign of ease"
    );
    refuse(&pool, 3, Some(86_400 * SECOND));
    assert_eq!(pause(&mut pool), 30);
}

#[test]
fn the_guard_yields_where_it_leaves_nobody() {
    let mut pool = Pool::new(2);
    refuse(&pool, 1, None);
    let decision = pool.pick(&tokens(2, 100));
    assert_eq!(decision.id, pool.ids[1]);
    assert_eq!(decision.considered[0].excluded, REFUSING);
    pool.router.set_ready(pool.ids[1], false);
    let decision = pool.pick(&tokens(3, 100));
    assert!(decision.guards_overruled);
    pool.now += SECOND;
    assert!(!pool.pick(&tokens(4, 100)).guards_overruled);
}

#[test]
fn refusals_and_answers_to_what_was_sent_before_it_was_known_say_nothing_new() {
    let mut pool = Pool::new(2);
    let mut sent: Vec<Decision> = (0..20).map(|n| pool.pick_on(0, &tokens(n, 100))).collect();
    pool.now += SECOND / 10;
    for decision in &mut sent[..10] {
        decision.reservation.refused(None, pool.now);
        pool.now += SECOND / 100;
    }
    assert_eq!(pool.view(0).excluded, REFUSING);
    for decision in &mut sent[10..] {
        decision.reservation.answered(200);
    }
    assert_eq!(pool.view(0).excluded, REFUSING, "they were taken before");
    pool.now += SECOND * 8 / 10;
    assert_eq!(pool.view(0).excluded, REFUSING);
    pool.now += SECOND / 10;
    assert_eq!(
        pool.view(0).excluded,
        None,
        "twenty at once are one refusal"
    );
}

#[test]
fn what_was_refused_is_given_back_at_once_and_not_taken_to_be_cached() {
    let mut pool = Pool::new(2);
    for view in &mut pool.views {
        view.set_feed(FeedState::Absent("none".to_owned()));
    }
    let (warm, prompt) = (tokens(1, 800), joined(&[&tokens(1, 800), &tokens(2, 800)]));
    let mut first = pool.pick_on(0, &warm);
    first.reservation.prefilled(pool.now);
    first.reservation.end(pool.now);
    let mut refused = pool.pick_on(0, &prompt);
    assert_eq!(refused.cached.get(), 800);
    let sibling = pool.pick_on(0, &prompt);
    assert_eq!(
        sibling.cached.get(),
        1_584,
        "it will be, as far as is known"
    );
    drop(sibling);
    refused.reservation.refused(None, pool.now);
    refused.reservation.answered(503);
    assert_eq!((pool.queued(0), pool.view(0).in_flight), (0, 0));
    // Whatever else its stream may bring.
    refused.reservation.prefilled(pool.now);
    refused.reservation.detach(pool.now);
    assert_eq!(pool.pick_on(0, &prompt).cached.get(), 800);
    // An error of any kind is no prefill, nor is a client that left before it.
    for status in [400, 500] {
        let mut failed = pool.pick_on(0, &prompt);
        failed.reservation.answered(status);
        assert_eq!(pool.queued(0), 0);
        failed.reservation.end(pool.now);
    }
    drop(pool.pick_on(0, &prompt));
    assert_eq!(pool.pick_on(0, &prompt).cached.get(), 800);
    // One that is left to itself is taken to be computed, nobody telling.
    pool.pick_on(0, &prompt).reservation.detach(pool.now);
    pool.pass(60 * SECOND);
    assert_eq!(pool.pick_on(0, &prompt).cached.get(), 1_584);
    pool.assert_empty();
}

#[test]
fn whoever_served_is_whoever_refused() {
    let mut pool = Pool::new(2);
    let mut decision = pool.pick_on(0, &tokens(1, 100));
    pool.now += SECOND;
    decision.reservation.served_by(address(1), pool.now);
    pool.now += SECOND;
    decision.reservation.refused(None, pool.now);
    assert_eq!(
        (pool.view(0).excluded, pool.view(1).excluded),
        (None, REFUSING)
    );
    // The next life at the same place has refused nobody, and the old one's answers are not its own.
    let mut old = pool.pick_on(1, &tokens(2, 100));
    pool.router.leave(pool.ids.remove(1));
    pool.join(1);
    assert_eq!(pool.view(1).excluded, None);
    old.reservation.refused(None, pool.now);
    assert_eq!(pool.view(1).excluded, None);
}

#[test]
fn where_all_refuse_for_a_while_nobody_is_left_out_long_after_it() {
    let mut pool = Pool::new(2);
    for n in 0..100 {
        pool.now += SECOND / 5;
        let mut decision = pool.pick(&tokens(n, 100));
        decision.reservation.refused(None, pool.now);
    }
    let excluded = |pool: &Pool| [0, 1].map(|n| pool.view(n).excluded);
    assert_eq!(excluded(&pool), [REFUSING; 2]);
    pool.now += SECOND * 8;
    assert_eq!(excluded(&pool), [None; 2]);
}
