//! Rules that go by a key: a prefix or a session.

use super::*;

fn homes(fleet: &Fleet, name: &str) -> Vec<usize> {
    let mut policy = fleet.policy(name);
    (0..400)
        .map(|prefix| fleet.pick(&mut *policy, &request(9, Some(prefix), 320), prefix))
        .collect()
}

#[test]
fn consistent_hash_keeps_a_prefix_where_it_is_whatever_the_load_and_the_chance() {
    let fleet = Fleet::idle(5);
    let mut policy = fleet.policy("consistent-hash");
    let home = fleet.pick(&mut *policy, &request(1, Some(7), 320), 0);
    fleet.change(home, |seen| {
        (seen.in_flight, seen.queued) = (1000, 1_000_000);
    });
    for session in 0..50 {
        let asked = request(session, Some(7), 320 + 16 * u32::try_from(session).unwrap());
        assert_eq!(fleet.pick(&mut *policy, &asked, session), home);
    }
}

#[test]
fn consistent_hash_spreads_prefixes_and_moves_only_those_of_a_replica_that_left() {
    let fleet = Fleet::idle(5);
    let before = homes(&fleet, "consistent-hash");
    for replica in 0..5 {
        let its = before.iter().filter(|&&home| home == replica).count();
        assert!(
            (50..=120).contains(&its),
            "replica {replica} has {its} of 400"
        );
    }
    fleet.change(3, |seen| seen.ready = false);
    let after = homes(&fleet, "consistent-hash");
    for (before, after) in before.iter().zip(&after) {
        assert_ne!(*after, 3);
        assert!(*before == 3 || before == after);
    }
    let heirs: BTreeSet<usize> = before
        .iter()
        .zip(&after)
        .filter(|(before, _)| **before == 3)
        .map(|(_, after)| *after)
        .collect();
    assert_eq!(heirs, BTreeSet::from([0, 1, 2, 4]));
}

#[test]
fn consistent_hash_without_a_named_prefix_goes_by_the_first_block_then_by_the_session() {
    let fleet = Fleet::idle(16);
    let mut policy = fleet.policy("consistent-hash");
    let mut home = |asked: &Request| fleet.pick(&mut *policy, asked, 0);
    let mut other_session = request(1, None, 400);
    other_session.arrival.session = 2;
    assert_eq!(home(&request(1, None, 320)), home(&other_session));
    // No whole block: only the session is left.
    assert_eq!(home(&request(5, None, 3)), home(&request(5, None, 9)));
    let homes: BTreeSet<usize> = (0..60)
        .map(|session| home(&request(session, None, 3)))
        .collect();
    assert!(homes.len() > 8, "{homes:?}");
}

#[test]
fn bounded_hashing_leaves_a_replica_that_would_be_a_quarter_over_the_mean() {
    let fleet = Fleet::idle(4);
    let mut plain = fleet.policy("consistent-hash");
    let mut bounded = fleet.policy("consistent-hash-bounded");
    let asked = request(1, Some(7), 320);
    let home = fleet.pick(&mut *plain, &asked, 0);
    for replica in 0..4 {
        fleet.change(replica, |seen| seen.in_flight = 10);
    }
    // 1.25 x (40 + 1) / 4 = 12.8, so at most 13, this one included.
    assert_eq!(fleet.pick(&mut *bounded, &asked, 0), home);
    fleet.change(home, |seen| seen.in_flight = 12);
    // 1.25 x 43 / 4 = 13.4, so at most 14.
    assert_eq!(fleet.pick(&mut *bounded, &asked, 0), home);
    fleet.change(home, |seen| seen.in_flight = 15);
    // 1.25 x 46 / 4 = 14.4, so at most 15.
    let away = fleet.pick(&mut *bounded, &asked, 0);
    assert_ne!(away, home);
    assert_eq!(
        fleet.pick(&mut *bounded, &asked, 1),
        away,
        "the same second choice"
    );
    assert_eq!(fleet.pick(&mut *plain, &asked, 0), home);
}

#[test]
fn bounded_hashing_always_finds_somebody_even_alone() {
    let fleet = Fleet::idle(1);
    fleet.change(0, |seen| seen.in_flight = 1_000_000);
    let asked = request(1, Some(7), 320);
    assert_eq!(
        fleet.picks("consistent-hash-bounded", &asked),
        BTreeSet::from([0])
    );
}

#[test]
fn a_session_stays_where_it_began_until_that_is_not_ready() {
    let fleet = Fleet::idle(3);
    fleet.change(0, |seen| seen.in_flight = 5);
    fleet.change(2, |seen| seen.in_flight = 5);
    let mut policy = fleet.policy("session-affinity");
    assert_eq!(fleet.pick(&mut *policy, &request(1, None, 320), 0), 1);
    fleet.change(1, |seen| seen.in_flight = 50);
    assert_eq!(fleet.pick(&mut *policy, &request(1, None, 640), 1), 1);
    fleet.change(0, |seen| seen.in_flight = 4);
    assert_eq!(
        fleet.pick(&mut *policy, &request(2, None, 320), 2),
        0,
        "another session"
    );

    fleet.change(1, |seen| seen.ready = false);
    assert_eq!(
        fleet.pick(&mut *policy, &request(1, None, 960), 3),
        0,
        "a new home"
    );
    fleet.change(1, |seen| (seen.ready, seen.in_flight) = (true, 0));
    assert_eq!(
        fleet.pick(&mut *policy, &request(1, None, 960), 4),
        0,
        "and it stays"
    );
}
