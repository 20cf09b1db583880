//! What holds for every rule, over random tables.

use fastrand::Rng;

use super::*;

fn random_table(rng: &mut Rng, prompt: u32) -> Vec<Seen> {
    let replicas = rng.usize(1..9);
    (0..replicas)
        .map(|replica| Seen {
            replica,
            ready: rng.u8(..) < 170,
            cached: u64::from(rng.u32(0..=prompt / BLOCK) * BLOCK),
            queued: rng.u64(0..1_000_000),
            in_flight: rng.u32(0..300),
            context: rng.u64(0..1_000_000),
            kv_usage: rng.f64(),
            running: rng.u64(0..300),
            waiting: rng.u64(0..50),
        })
        .collect()
}

/// Twenty picks of one rule over random tables: what was taken, in order.
fn course(name: &str, seed: u64) -> Vec<Result<usize, Refusal>> {
    let mut rng = Rng::with_seed(seed);
    let fleet = Fleet::new(random_table(&mut rng, 320));
    let replicas = fleet.seen.borrow().len();
    let mut policy = by_name(name, &fleet.context(seed)).unwrap();
    let mut course = Vec::new();
    for _ in 0..20 {
        // Among them prompts without a whole block.
        let tokens = [1, 15, 16, 17, 320][rng.usize(0..5)];
        let prefix = rng.bool().then(|| rng.u64(0..5));
        let asked = request(rng.u64(0..10), prefix, tokens);
        let mut table = random_table(&mut rng, tokens);
        table.resize(replicas, Seen::default());
        for (replica, seen) in table.iter_mut().enumerate() {
            seen.replica = replica;
        }
        *fleet.seen.borrow_mut() = table;
        let taken = fleet.try_pick(&mut *policy, &asked, rng.u64(..));
        match taken {
            Ok(replica) => {
                assert!(fleet.seen.borrow()[replica].ready, "{name} took {replica}");
                if rng.bool() {
                    policy.ended(replica, &asked.keys);
                }
            }
            Err(_) => assert!(
                fleet.seen.borrow().iter().all(|seen| !seen.ready),
                "{name} refused though somebody is ready"
            ),
        }
        if rng.u8(..) < 30 {
            policy.replica_changed(rng.usize(0..replicas), rng.bool());
        }
        course.push(taken);
    }
    course
}

#[test]
fn every_rule_books_a_ready_replica_whenever_there_is_one_and_the_same_for_the_same_seed() {
    for name in ALL.iter().chain(VARIANTS) {
        for seed in 0..60 {
            assert_eq!(
                course(name, seed),
                course(name, seed),
                "{name}, seed {seed}"
            );
        }
    }
}

#[test]
fn every_rule_refuses_when_nothing_is_ready_and_takes_the_only_one_that_is() {
    for name in ALL.iter().chain(VARIANTS) {
        let fleet = Fleet::idle(3);
        for replica in 0..3 {
            fleet.change(replica, |seen| seen.ready = false);
        }
        let mut policy = fleet.policy(name);
        let asked = request(1, None, 0);
        assert_eq!(
            fleet.try_pick(&mut *policy, &asked, 1),
            Err(Refusal::NothingReady),
            "{name}"
        );
        fleet.change(2, |seen| (seen.ready, seen.queued) = (true, 5_000_000));
        assert_eq!(fleet.pick(&mut *policy, &asked, 1), 2, "{name}");
    }
}

#[test]
fn no_rule_but_those_with_a_key_or_a_turn_prefers_one_of_several_equal_replicas() {
    for name in ALL.iter().chain(VARIANTS) {
        if name.starts_with("consistent") || *name == "round-robin" {
            continue;
        }
        let fleet = Fleet::idle(5);
        let taken = fleet.picks(name, &request(1, Some(1), 320));
        assert_eq!(taken, BTreeSet::from([0, 1, 2, 3, 4]), "{name}");
    }
}

#[test]
fn an_unknown_name_is_told_with_those_there_are() {
    let fleet = Fleet::idle(1);
    let error = by_name("fastest", &fleet.context(0)).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("\"fastest\"") && text.contains("sticky-until-saturated"),
        "{text}"
    );
    let mut names = ALL.iter().chain(VARIANTS);
    assert!(names.all(|name| by_name(name, &fleet.context(0)).is_ok()));
}
