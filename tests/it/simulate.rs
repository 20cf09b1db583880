//! What the simulator must show of every policy; the policy is a parameter.
//!
//! The fleets are those of the reference case of `warmpath plan`. Runs are as short as the claim allows: they are made
//! in the test profile.

use std::time::Duration;

use warmpath::plan::Inputs;
use warmpath::routing::block::BlockSize;
use warmpath::simulate::fleet::{self, Outage, WarmUp};
use warmpath::simulate::goal::Goal;
use warmpath::simulate::outcome::Outcome;
use warmpath::simulate::parallel;
use warmpath::simulate::policy;
use warmpath::simulate::scenario::Scenario;
use warmpath::simulate::workload::{Generated, Loop, Spec};

/// Blocks of 64 tokens: the same decisions at a quarter of the work.
const BLOCK: u32 = 64;

fn reference(requests: u64, change: impl FnOnce(&mut Generated)) -> Scenario {
    let Some(Spec::Generated(mut load)) = Spec::named("reference") else {
        panic!("the reference load is a generated one");
    };
    load.requests = Some(requests);
    load.duration = None;
    change(&mut load);
    let size = BlockSize::new(BLOCK).unwrap();
    let engine = Inputs::preset("llama-3.3-70b-h200")
        .unwrap()
        .engine(size, 8_192, 256);
    let mut fleet = fleet::Settings::new(22, engine);
    fleet.warm_up = WarmUp::Time(Duration::from_secs(20));
    Scenario {
        load: Spec::Generated(load),
        kind: Loop::Open,
        fleet,
        seed: 1,
    }
}

fn run(scenario: &Scenario, policy: &str, replicas: usize) -> Outcome {
    scenario.run(policy, replicas, &mut |_| {}).unwrap()
}

fn a_second() -> Goal {
    Goal::p90_ttft(Duration::from_secs(1))
}

/// From a cold start, which is worth 22.8 replicas of work for a while.
#[test]
fn the_reference_load_needs_no_more_replicas_than_its_sums_say_and_at_most_one_more_than_the_best_policy()
 {
    let scenario = reference(2_400, |_| {});
    let smallest = |policy: &str| {
        let found = scenario.smallest(policy, a_second(), 24, &mut |_| {});
        found.unwrap().replicas.expect("24 replicas are enough")
    };
    let ours = smallest("least-prefill");
    let plain = smallest("least-prefill-plain");
    println!("least-prefill needs {ours} replicas, {plain} if work had no price");
    assert!(ours <= 22, "{ours} replicas");
    assert!(
        ours < plain,
        "{ours} replicas, {plain} if work had no price"
    );
    // Whoever needs two fewer would be better by more than one.
    let fewer = ours - 2;
    let outcomes = parallel::each(policy::ALL, parallel::cores(), |name| {
        run(&scenario, name, fewer)
    });
    println!("on {fewer}, p90 of the time to first token:");
    for outcome in &outcomes {
        println!("{:>24} {:8.2} s", outcome.policy, outcome.ttft.p90);
        assert!(
            !a_second().is_met(outcome),
            "{} needs only {fewer} replicas",
            outcome.policy
        );
    }
}

#[test]
fn under_random_routing_the_prefixes_churn_and_the_hit_rate_collapses() {
    let scenario = reference(2_400, |_| {});
    let random = run(&scenario, "random", 22);
    let ours = run(&scenario, "least-prefill", 22);
    // 75 % of every prompt is shared. A pool has room for about 70 of 200 prefixes.
    assert!(ours.cached_share > 0.68, "{}", ours.cached_share);
    assert!(random.cached_share < 0.35, "{}", random.cached_share);
}

#[test]
fn under_plain_hashing_the_first_token_of_a_hot_customer_runs_away() {
    let hot = |load: &mut Generated| load.prefixes.first_share = Some(0.15);
    let scenario = reference(2_400, hot);
    let hashed = run(&scenario, "consistent-hash", 22);
    let ours = run(&scenario, "least-prefill", 22);
    let of_hottest = |outcome: &Outcome| {
        outcome
            .hot_prefixes
            .first()
            .map(|hot| hot.ttft_p90)
            .unwrap()
    };
    // 6 requests a second, where a replica takes 3.3 at the utmost.
    assert!(of_hottest(&hashed) > 10.0, "{}", of_hottest(&hashed));
    assert!(of_hottest(&ours) < 1.0, "{}", of_hottest(&ours));
}

#[test]
fn owners_of_a_hot_prefix_grow_in_proportion_to_its_rate() {
    let owners = |share: f64| {
        let scenario = reference(2_400, |load| load.prefixes.first_share = Some(share));
        let outcome = run(&scenario, "least-prefill", 22);
        let hot = outcome.hot_prefixes.first().unwrap();
        let replica_takes = 3.3;
        let counts = &hot.owners[hot.owners.len() / 3..];
        let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        (hot.per_second, mean, hot.per_second / replica_takes)
    };
    let seen = [0.1, 0.2, 0.4].map(owners);
    for (rate, owners, least) in seen {
        println!("{rate:.1} requests a second: {owners:.1} owners, {least:.1} at least");
        assert!(owners >= least, "{rate}: {owners} cannot serve them");
    }
    let [(_, few, _), _, (_, many, _)] = seen;
    let growth = many / few;
    assert!(
        (2.0..=8.0).contains(&growth),
        "four times the rate, {growth:.1} times the owners"
    );
}

#[test]
fn the_death_of_a_replica_costs_no_error_and_its_customers_pay_about_one_prefill() {
    let mut scenario = reference(3_200, |_| {});
    let steady = run(&scenario, "least-prefill", 22);
    scenario.fleet.outages = vec![Outage {
        replica: 3,
        at: Duration::from_secs(40),
        lasts: Duration::from_secs(600),
    }];
    let struck = run(&scenario, "least-prefill", 22);
    assert_eq!((struck.failed, steady.failed), (0, 0));
    assert!(struck.repeated > 0, "something was in flight there");
    assert_eq!(struck.requests, steady.requests);
    // Its prefixes, about nine or a few more with second owners, are computed once more: not one request in fifty.
    let computed = |outcome: &Outcome| 1.0 - outcome.cached_share;
    let more = computed(&struck) - computed(&steady);
    assert!(more > 0.0 && more < 0.02, "{more}");
    assert!(a_second().is_met(&struck), "{}", struck.ttft.p90);
}

#[test]
fn equal_seeds_give_equal_results_and_others_do_not() {
    let mut scenario = reference(400, |_| {});
    scenario.fleet.warm_up = WarmUp::Requests(0);
    for name in policy::ALL.iter().chain(policy::VARIANTS) {
        let json = |scenario: &Scenario| serde_json::to_string(&run(scenario, name, 6)).unwrap();
        let first = json(&scenario);
        assert_eq!(first, json(&scenario), "{name}");
        let other = Scenario {
            seed: 2,
            ..scenario.clone()
        };
        assert_ne!(first, json(&other), "{name}");
    }
}

#[test]
fn a_hopeless_run_is_given_up_early_and_no_other_one() {
    let mut scenario = reference(600, |load| load.rate = 20.0);
    scenario.fleet.warm_up = WarmUp::Requests(0);
    let whole = |replicas| run(&scenario, "round-robin", replicas);
    let cut = |replicas| {
        let mut cut = scenario.clone();
        cut.fleet.give_up = a_second().out_of_reach(600);
        run(&cut, "round-robin", replicas)
    };
    let (met, missed) = (60, 4);
    assert!(a_second().is_met(&whole(met)) && !a_second().is_met(&whole(missed)));
    assert!(a_second().is_met(&cut(met)), "the same run to its end");
    let hopeless = cut(missed);
    assert!(hopeless.given_up && !a_second().is_met(&hopeless));
    assert!(
        hopeless.requests < 300,
        "{} were answered",
        hopeless.requests
    );
}
