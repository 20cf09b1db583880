//! Requests that last: nothing but their own end, or computed blocks, takes what is booked for them.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_request_of_hours_stays_booked_to_its_end() {
    let mut pool = Pool::new(1);
    let mut held = pool.pick(&tokens(1, 1_000));
    for _ in 0..180 {
        pool.now += MINUTE;
        pool.router.report(
            pool.ids[0],
            ReportOutcome::Fresh(Report::default()),
            pool.now,
        );
        drop(pool.pick(&tokens(2, 10)));
        assert_eq!((pool.queued(0), pool.view(0).in_flight), (1_000, 1));
    }
    held.reservation.prefilled(pool.now);
    for _ in 0..180 {
        pool.now += MINUTE;
        assert_eq!((pool.queued(0), pool.view(0).in_flight), (0, 1));
        assert!(pool.router.is_busy(pool.ids[0]));
    }
    drop(held);
    pool.router.report(
        pool.ids[0],
        ReportOutcome::Fresh(Report::default()),
        pool.now,
    );
    pool.assert_empty();
}

#[test]
fn one_batch_of_events_releases_each_request_as_far_as_it_is_computed() {
    let mut pool = Pool::new(1);
    let shared = tokens(1, 320);
    let prompts: Vec<Vec<u32>> = (0..3)
        .map(|n| joined(&[&shared, &tokens(10 + n, 328)]))
        .collect();
    let held: Vec<Decision> = prompts.iter().map(|prompt| pool.pick(prompt)).collect();
    assert_eq!(pool.queued(0), 320 + 3 * 328);
    // A step computes the first to its end, half of the second, and nothing of the third.
    pool.views[0].apply(&[
        KvEvent::Stored(stored(&prompts[0][..160], 0)),
        KvEvent::Stored(stored(&prompts[0], 10)),
        KvEvent::Stored(stored(&tokens(99, 64), 0)),
        KvEvent::Stored(stored(&prompts[1][..480], 20)),
    ]);
    assert_eq!(pool.queued(0), 168 + 328);
    pool.store(0, &prompts[1], 30);
    pool.store(0, &prompts[2], 20);
    assert_eq!(pool.queued(0), 0, "the tails go with the last blocks");
    assert_eq!(pool.view(0).in_flight, 3, "they decode");
    drop(held);
    pool.assert_empty();
}

#[test]
fn twins_are_two_bookings_and_the_end_of_one_leaves_the_other() {
    let pool = Pool::new(1);
    let prompt = tokens(1, 168);
    let mut twins: Vec<Decision> = (0..2).map(|_| pool.pick(&prompt)).collect();
    assert_eq!(
        (pool.queued(0), pool.view(0).in_flight),
        (168 + 8, 2),
        "the second computes what fits no block"
    );
    drop(twins.remove(0));
    assert_eq!((pool.queued(0), pool.view(0).in_flight), (168, 1));
    twins[0].reservation.prefilled(pool.now);
    twins[0].reservation.prefilled(pool.now);
    assert_eq!(pool.queued(0), 0);
    drop(twins);
    pool.assert_empty();
}

#[test]
fn late_ends_of_an_endpoint_that_vanished_never_touch_the_next_of_its_name_and_address() {
    type End = fn(Reservation, Instant);
    let ends: [End; 7] = [
        |reservation, _| drop(reservation),
        Reservation::end,
        Reservation::detach,
        |mut reservation, now| reservation.prefilled(now),
        |mut reservation, _| reservation.answered(500),
        |mut reservation, now| reservation.refused(None, now),
        |mut reservation, now| {
            reservation.more_data();
            reservation.answered(200);
            reservation.prefilled(now);
            reservation.detach(now);
        },
    ];
    for end in ends {
        let mut pool = Pool::new(1);
        let old = pool.pick(&tokens(1, 1_000)).reservation;
        pool.router.leave(pool.ids.remove(0));
        pool.views.clear();
        pool.join(0);
        let new = pool.pick(&tokens(1, 1_000));
        assert_eq!(new.cached, TokenCount::ZERO);
        end(old, pool.now);
        assert_eq!((pool.queued(0), pool.view(0).in_flight), (1_000, 1));
        assert_eq!(pool.view(0).excluded, None);
        assert_eq!(pool.view(0).prefill_us_per_token, None);
        pool.router.state.ledger.lock().check();
        drop(new);
        pool.assert_empty();
    }
}

#[test]
fn a_request_told_to_be_served_by_the_next_life_is_booked_there() {
    let mut pool = Pool::new(1);
    let mut old = pool.pick(&tokens(1, 1_000));
    pool.router.leave(pool.ids.remove(0));
    pool.join(0);
    let served = old.reservation.served_by(address(0), pool.now);
    assert_eq!(served, Served::Moved(pool.ids[0]));
    assert_eq!((pool.queued(0), pool.view(0).in_flight), (1_000, 1));
    drop(old);
    pool.assert_empty();
}

#[test]
fn a_detached_booking_lasts_an_hour_at_most_whatever_was_learnt() {
    let mut pool = Pool::new(1);
    let mut slow = pool.pick(&tokens(1, 1_000));
    pool.now += Duration::from_secs(9);
    slow.reservation.prefilled(pool.now);
    drop(slow);
    pool.pick(&tokens(2, 1_000_000))
        .reservation
        .detach(pool.now);
    pool.now += 59 * MINUTE;
    assert_eq!(pool.queued(0), 1_000_000);
    pool.now += 2 * MINUTE;
    pool.assert_empty();
}
