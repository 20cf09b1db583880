//! Rules that look at load alone.

use super::*;

#[test]
fn least_prefill_is_the_code_that_serves() {
    let fleet = Fleet::idle(3);
    // The table says otherwise, and nobody asks it.
    fleet.change(1, |seen| seen.queued = 1_000_000);
    let asked = request(1, None, 320);
    assert_eq!(
        fleet.picks("least-prefill", &asked),
        BTreeSet::from([0, 1, 2])
    );
    fleet.change(0, |seen| seen.ready = false);
    fleet.change(2, |seen| seen.ready = false);
    assert_eq!(fleet.picks("least-prefill", &asked), BTreeSet::from([1]));
}

#[test]
fn round_robin_goes_round_and_passes_over_whoever_is_not_ready() {
    let fleet = Fleet::idle(4);
    fleet.change(2, |seen| seen.ready = false);
    let mut policy = fleet.policy("round-robin");
    let mut turn = || fleet.pick(&mut *policy, &request(1, None, 320), 5);
    assert_eq!([turn(), turn(), turn(), turn()], [0, 1, 3, 0]);
    fleet.change(2, |seen| seen.ready = true);
    assert_eq!([turn(), turn(), turn()], [1, 2, 3]);
}

#[test]
fn random_takes_each_ready_one_equally_often() {
    let fleet = Fleet::idle(4);
    fleet.change(1, |seen| seen.ready = false);
    fleet.change(2, |seen| seen.in_flight = 100);
    let mut policy = fleet.policy("random");
    let mut taken = [0_u32; 4];
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..3000 {
        taken[fleet.pick(&mut *policy, &request(1, None, 320), rng.u64(..))] += 1;
    }
    assert_eq!(taken[1], 0);
    assert!(
        [0, 2, 3].iter().all(|&at| (900..1100).contains(&taken[at])),
        "{taken:?}"
    );
}

#[test]
fn least_requests_takes_the_fewest_in_flight_and_draws_among_equals() {
    let fleet = Fleet::idle(4);
    for (replica, in_flight) in [(0, 3), (1, 2), (2, 2), (3, 0)] {
        fleet.change(replica, |seen| seen.in_flight = in_flight);
    }
    fleet.change(3, |seen| seen.ready = false);
    let asked = request(1, None, 320);
    assert_eq!(
        fleet.picks("least-requests", &asked),
        BTreeSet::from([1, 2])
    );
}

#[test]
fn least_queued_takes_the_shortest_queue_and_within_a_block_the_fewest_in_flight() {
    let fleet = Fleet::idle(4);
    for (replica, queued, in_flight) in [(0, 1000, 0), (1, 100, 9), (2, 115, 2), (3, 116, 0)] {
        fleet.change(replica, |seen| {
            (seen.queued, seen.in_flight) = (queued, in_flight);
        });
    }
    let asked = request(1, None, 320);
    assert_eq!(fleet.picks("least-queued", &asked), BTreeSet::from([2]));
    fleet.change(2, |seen| seen.ready = false);
    assert_eq!(fleet.picks("least-queued", &asked), BTreeSet::from([1]));
}

#[test]
fn power_of_two_never_takes_the_busiest_and_takes_every_other() {
    let fleet = Fleet::idle(5);
    for replica in 0..5 {
        fleet.change(replica, |seen| {
            seen.in_flight = 10 + u32::try_from(replica).unwrap();
        });
    }
    let asked = request(1, None, 320);
    assert_eq!(
        fleet.picks("power-of-two", &asked),
        BTreeSet::from([0, 1, 2, 3])
    );
}

#[test]
fn power_of_two_draws_among_equals() {
    let fleet = Fleet::idle(2);
    let asked = request(1, None, 320);
    assert_eq!(fleet.picks("power-of-two", &asked), BTreeSet::from([0, 1]));
}
