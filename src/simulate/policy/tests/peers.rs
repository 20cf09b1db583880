//! Other pickers' rules that look at caches.

use super::*;

/// A prompt of 20 whole blocks.
fn twenty_blocks() -> Request {
    request(1, Some(7), 320)
}

#[test]
fn sticky_stays_with_four_fifths_of_the_blocks_up_to_the_valve_and_not_beyond() {
    let fleet = Fleet::idle(3);
    let asked = twenty_blocks();
    fleet.change(1, |seen| (seen.cached, seen.queued) = (256, 286_720));
    assert_eq!(
        fleet.picks("sticky-until-saturated", &asked),
        BTreeSet::from([1])
    );
    fleet.change(1, |seen| seen.queued += 1);
    assert_eq!(
        fleet.picks("sticky-until-saturated", &asked),
        BTreeSet::from([0, 2])
    );
    // The valve is measured from the least busy of the others.
    for other in [0, 2] {
        fleet.change(other, |seen| seen.queued = 1);
    }
    assert_eq!(
        fleet.picks("sticky-until-saturated", &asked),
        BTreeSet::from([1])
    );
}

#[test]
fn sticky_below_four_fifths_is_least_queued_and_uncached() {
    let fleet = Fleet::idle(3);
    let asked = twenty_blocks();
    fleet.change(1, |seen| (seen.cached, seen.queued) = (240, 241));
    assert_eq!(
        fleet.picks("sticky-until-saturated", &asked),
        BTreeSet::from([0, 2])
    );
    fleet.change(1, |seen| seen.queued = 239);
    assert_eq!(
        fleet.picks("sticky-until-saturated", &asked),
        BTreeSet::from([1])
    );
}

#[test]
fn sticky_takes_the_least_loaded_of_several_that_are_warm() {
    let fleet = Fleet::idle(3);
    fleet.change(0, |seen| (seen.cached, seen.queued) = (320, 1000));
    fleet.change(1, |seen| (seen.cached, seen.queued) = (256, 900));
    assert_eq!(
        fleet.picks("sticky-until-saturated", &twenty_blocks()),
        BTreeSet::from([1])
    );
    fleet.change(1, |seen| seen.ready = false);
    assert_eq!(
        fleet.picks("sticky-until-saturated", &twenty_blocks()),
        BTreeSet::from([0])
    );
}

#[test]
fn blend_gives_a_hit_three_against_two_for_the_queue_and_two_for_the_pool() {
    let fleet = Fleet::idle(2);
    let asked = twenty_blocks();
    // All cached, and the longest queue: 3 against 2.
    fleet.change(0, |seen| (seen.cached, seen.waiting) = (320, 50));
    assert_eq!(fleet.picks("weighted-blend", &asked), BTreeSet::from([0]));
    // With a pool that is 0.6 fuller: 3 against 3.2.
    fleet.change(0, |seen| seen.kv_usage = 0.6);
    assert_eq!(fleet.picks("weighted-blend", &asked), BTreeSet::from([1]));
    // One request more waiting is as good as fifty: queues are normalised.
    fleet.change(0, |seen| seen.waiting = 1);
    assert_eq!(fleet.picks("weighted-blend", &asked), BTreeSet::from([1]));
    fleet.change(0, |seen| seen.waiting = 0);
    assert_eq!(fleet.picks("weighted-blend", &asked), BTreeSet::from([0]));
}

#[test]
fn blend_sends_requests_without_a_hit_to_whoever_waited_longest_for_one() {
    let fleet = Fleet::idle(4);
    let mut policy = fleet.policy("weighted-blend");
    let asked = twenty_blocks();
    let first: Vec<usize> = (0..4)
        .map(|n| fleet.pick(&mut *policy, &asked, n))
        .collect();
    assert_eq!(
        BTreeSet::from_iter(first.iter().copied()).len(),
        4,
        "everybody once"
    );
    let second: Vec<usize> = (9..13)
        .map(|n| fleet.pick(&mut *policy, &asked, n))
        .collect();
    assert_eq!(first, second);
    // A request with a hit changes nobody's turn, and has none.
    fleet.change(first[3], |seen| seen.cached = 16);
    assert_eq!(fleet.pick(&mut *policy, &asked, 20), first[3]);
    fleet.change(first[3], |seen| seen.cached = 0);
    assert_eq!(fleet.pick(&mut *policy, &asked, 21), first[0]);
}

#[test]
fn dynamo_adds_queued_uncached_and_resident_blocks() {
    let fleet = Fleet::idle(2);
    let mut policy = fleet.policy("dynamo");
    let asked = twenty_blocks();
    let home = fleet.pick(&mut *policy, &asked, 0);
    let other = 1 - home;
    // Twenty blocks are resident there, and they are this request's own: equal but for the cache.
    fleet.change(home, |seen| seen.cached = 16);
    assert_eq!(fleet.pick(&mut *policy, &asked, 1), home);
    // Another prompt of twenty blocks finds 0 + 20 + 40 there and 0 + 20 + 20 here.
    fleet.change(home, |seen| seen.cached = 0);
    let stranger = request(2, Some(8), 320);
    fleet.change(other, |seen| seen.queued = 19 * 16);
    assert_eq!(fleet.pick(&mut *policy, &stranger, 2), other);
    policy.ended(other, &stranger.keys);
    fleet.change(other, |seen| seen.queued = 21 * 16);
    assert_eq!(fleet.pick(&mut *policy, &stranger, 3), home);
}

#[test]
fn dynamo_forgets_the_blocks_of_requests_that_ended_and_of_replicas_that_died() {
    let fleet = Fleet::idle(2);
    for dies in [false, true] {
        let mut policy = fleet.policy("dynamo");
        let asked = twenty_blocks();
        let home = fleet.pick(&mut *policy, &asked, 0);
        let stranger = request(2, Some(8), 320);
        let strangers = |policy: &mut dyn Policy| -> BTreeSet<usize> {
            (0..50)
                .map(|chance| {
                    let taken = fleet.pick(policy, &stranger, chance);
                    policy.ended(taken, &stranger.keys);
                    taken
                })
                .collect()
        };
        assert_eq!(strangers(&mut *policy), BTreeSet::from([1 - home]));
        if dies {
            policy.replica_changed(home, false);
        } else {
            policy.ended(home, &asked.keys);
        }
        assert_eq!(strangers(&mut *policy), BTreeSet::from([0, 1]));
    }
}

#[test]
fn lmetric_multiplies_uncached_tokens_by_the_batch_and_is_blind_to_the_queue() {
    let fleet = Fleet::idle(2);
    let asked = twenty_blocks();
    // 80 x 4 against 320 x 1: equal.
    fleet.change(0, |seen| {
        (seen.cached, seen.in_flight, seen.queued) = (240, 3, 1_000_000);
    });
    assert_eq!(fleet.picks("lmetric", &asked), BTreeSet::from([0, 1]));
    fleet.change(0, |seen| seen.in_flight = 2);
    assert_eq!(fleet.picks("lmetric", &asked), BTreeSet::from([0]));
    fleet.change(0, |seen| seen.in_flight = 4);
    assert_eq!(fleet.picks("lmetric", &asked), BTreeSet::from([1]));
}
