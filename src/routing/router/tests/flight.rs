//! Blocks in flight: who pays for them, who counts on them, who releases them.

use super::*;

#[test]
fn a_sibling_sees_blocks_in_flight_as_cached_from_where_the_index_ends() {
    let mut pool = Pool::new(2);
    let shared = tokens(1, 1_600);
    pool.store(0, &shared[..800], 0);
    let first = pool.pick(&joined(&[&shared, &tokens(2, 160)]));
    assert_eq!((first.id, first.cached.get()), (pool.ids[0], 800));
    let second = pool.pick(&joined(&[&shared, &tokens(3, 160)]));
    assert_eq!(second.considered[0].cached.get(), 1_600);
    assert_eq!(second.considered[0].queued.get(), 960);
    assert_eq!(second.considered[1].cached.get(), 0);
}

#[test]
fn only_the_blocks_booked_are_released_by_stores_and_the_tail_with_the_last() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 170);
    pool.store(0, &prompt[..32], 0);
    let held = pool.pick(&prompt);
    assert_eq!(pool.queued(0), 138);
    pool.store(0, &tokens(9, 160), 0);
    assert_eq!(pool.queued(0), 138, "somebody else's blocks");
    pool.store(0, &prompt[..96], 2);
    assert_eq!(pool.queued(0), 74);
    pool.store(0, &prompt[..96], 2);
    assert_eq!(pool.queued(0), 74, "a second copy releases nothing");
    pool.store(0, &prompt, 6);
    assert_eq!(pool.queued(0), 0);
    assert_eq!(pool.view(0).in_flight, 1);
    drop(held);
    pool.assert_empty();
}

#[test]
fn a_fully_cached_prompt_is_cleared_by_first_data_or_the_end() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 160);
    pool.store(0, &prompt, 0);
    let mut held = pool.pick(&prompt);
    assert_eq!((held.cached.get(), pool.queued(0)), (144, 16));
    pool.store(0, &prompt, 9);
    assert_eq!(pool.queued(0), 16);
    held.reservation.prefilled(pool.now);
    assert_eq!(pool.queued(0), 0);
    let again = pool.pick(&prompt);
    assert_eq!(pool.queued(0), 16);
    drop((held, again));
    pool.assert_empty();
}

#[test]
fn blocks_behind_a_hole_are_booked_and_released_though_the_index_has_them() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 160);
    pool.store(0, &prompt, 0);
    let hole = Removed {
        hashes: vec![engine_hash(&prompt[..48])],
        medium: Medium::Gpu,
        group: None,
    };
    pool.views[0].apply(&[KvEvent::Removed(hole)]);
    let held = pool.pick(&prompt);
    assert_eq!((held.cached.get(), pool.queued(0)), (32, 128));
    pool.store(0, &prompt, 2);
    assert_eq!(pool.queued(0), 0);
}

#[test]
fn a_sibling_pays_for_what_it_counted_on_when_the_owner_ends_early() {
    let pool = Pool::new(1);
    let shared = tokens(1, 1_600);
    let first = pool.pick(&joined(&[&shared, &tokens(2, 160)]));
    let second = pool.pick(&joined(&[&shared, &tokens(3, 320)]));
    assert_eq!(pool.queued(0), 1_600 + 160 + 320);
    drop(first);
    assert_eq!(pool.queued(0), 1_600 + 320);
    let third = pool.pick(&joined(&[&shared, &tokens(4, 16)]));
    assert_eq!(third.cached.get(), 1_600);
    drop((second, third));
    pool.assert_empty();
}

#[test]
fn first_data_releases_what_siblings_share_and_leaves_it_as_good_as_cached() {
    let pool = Pool::new(1);
    let shared = tokens(1, 1_600);
    let first = pool.pick(&joined(&[&shared, &tokens(2, 160)]));
    let mut second = pool.pick(&joined(&[&shared, &tokens(3, 320)]));
    second.reservation.prefilled(pool.now);
    assert_eq!(pool.queued(0), 160, "only the first one's own part is left");
    let third = pool.pick(&joined(&[&shared, &tokens(4, 16)]));
    assert_eq!(third.cached.get(), 1_600);
    drop((first, second, third));
    pool.assert_empty();
}

#[test]
fn a_moved_booking_costs_what_the_new_endpoint_lacks() {
    let mut pool = Pool::new(2);
    let prompt = tokens(1, 1_600);
    pool.store(1, &prompt[..800], 0);
    let mut held = pool.pick_on(0, &prompt);
    assert_eq!(pool.queued(0), 1_600);
    held.reservation.served_by(address(1), pool.now);
    assert_eq!((pool.queued(0), pool.queued(1)), (0, 800));
    pool.store(1, &prompt, 50);
    assert_eq!(pool.queued(1), 0);
    drop(held);
    pool.assert_empty();
}

#[test]
fn a_booking_that_was_prefilled_moves_without_tokens() {
    let pool = Pool::new(2);
    let mut held = pool.pick_on(0, &tokens(1, 1_600));
    held.reservation.prefilled(pool.now);
    held.reservation.served_by(address(1), pool.now);
    assert_eq!((pool.queued(1), pool.view(1).in_flight), (0, 1));
    drop(held);
    pool.assert_empty();
}
