//! Claims about generated loads, and about what both loops give out.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use proptest::prelude::*;

/// All requests of an open loop.
fn open(spec: &Spec, seed: u64) -> Vec<Arrival> {
    let mut load = spec.open(seed, Loop::Open).unwrap();
    std::iter::from_fn(|| load.next()).collect()
}

/// All requests of a closed loop whose answers take `service`; conversations are followed from the last to the first
/// when `backwards`.
fn closed(spec: &Spec, seed: u64, service: Duration, backwards: bool) -> Vec<Arrival> {
    let mut load = spec.open(seed, Loop::Closed).unwrap();
    let mut begun: Vec<Arrival> = std::iter::from_fn(|| load.next()).collect();
    let mut all = begun.clone();
    if backwards {
        begun.reverse();
    }
    for first in begun {
        let mut ended = first.at + service;
        while let Some(next) = load.follow(first.session, ended) {
            assert!(next.at >= ended);
            ended = next.at + service;
            all.push(next);
        }
    }
    all.sort_by_key(|arrival| (arrival.session, arrival.at));
    all
}

fn generated(yaml: &str) -> Spec {
    crate::yaml::read(&format!("generated:\n{yaml}")).unwrap()
}

fn sessions(arrivals: &[Arrival]) -> HashMap<u64, Vec<&Arrival>> {
    let mut sessions: HashMap<u64, Vec<&Arrival>> = HashMap::new();
    for arrival in arrivals {
        sessions.entry(arrival.session).or_default().push(arrival);
    }
    sessions
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[track_caller]
fn near(found: f64, wanted: f64, tolerance: f64) {
    assert!(
        (found - wanted).abs() <= tolerance * wanted.abs(),
        "{found} is not within {tolerance} of {wanted}"
    );
}

#[test]
fn every_named_load_opens_and_the_reference_load_is_what_plan_reckons_with() {
    for name in Spec::NAMES {
        let spec = Spec::named(name).unwrap();
        let mut load = spec.open(1, Loop::Open).unwrap();
        let most = load.len_hint().unwrap();
        let count = std::iter::from_fn(|| load.next()).count() as u64;
        assert!(
            count <= most && count * 10 >= most * 7,
            "{name}: {count} of {most}"
        );
    }
    let all = open(&Spec::named("reference").unwrap(), 7);
    near(all.len() as f64, 24_000.0, 0.03);
    assert!(
        all.iter()
            .all(|one| one.prompt.tokens() == 8_000 && one.output == 300)
    );
    let prefixes = all.iter().map(|one| one.prefix.unwrap());
    assert_eq!(
        prefixes.collect::<std::collections::HashSet<_>>().len(),
        200
    );
    let hot = open(&Spec::named("reference-hot").unwrap(), 7);
    let hottest = most_asked(&hot)[0];
    near(hottest as f64 / hot.len() as f64, 0.1, 0.1);
    assert!(Spec::named("nonsense").is_none());
}

/// How often each prefix was asked for, most often first.
fn most_asked(all: &[Arrival]) -> Vec<usize> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for one in all {
        *counts.entry(one.prefix.unwrap()).or_default() += 1;
    }
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

#[test]
fn zipf_shares_fall_as_one_over_the_place() {
    let all = open(&Spec::named("reference-zipf").unwrap(), 3);
    let counts = most_asked(&all);
    let total: f64 = (1..=200).map(|n| 1.0 / f64::from(n)).sum();
    for place in [1, 2, 4, 8] {
        let share = counts[place - 1] as f64 / all.len() as f64;
        near(share, 1.0 / (place as f64 * total), 0.1);
    }
}

#[test]
fn the_ladder_asks_all_questions_once_a_round_and_keeps_its_rates() {
    let all = open(&Spec::named("b2b").unwrap(), 5);
    let round = &all[..750];
    let prompts: std::collections::HashSet<_> = round
        .iter()
        .map(|one| one.prompt.segments().to_vec())
        .collect();
    assert_eq!(prompts.len(), 750);
    assert!(
        all.iter()
            .all(|one| one.prompt.tokens() == 7_200 && one.output == 1_000)
    );
    assert_eq!(most_asked(round), vec![5; 150]);
    // The last stage: 60 a second for 25 s, before a pause.
    let last = all.last().unwrap().at.as_secs_f64();
    let end = 502.0 + 16.0 * 30.0;
    assert!(last <= end && last > end - 1.0, "{last}");
    let stage = all.iter().filter(|one| one.at.as_secs_f64() > end - 25.0);
    near(stage.count() as f64, 1_500.0, 0.1);
}

#[test]
fn a_burst_comes_at_once_with_one_prompt_beside_the_others() {
    let all = open(&Spec::named("burst").unwrap(), 5);
    let at = Duration::from_secs(60);
    let burst: Vec<_> = all.iter().filter(|one| one.at == at).collect();
    assert_eq!(burst.len(), 200);
    assert!(burst.iter().all(|one| one.prompt == burst[0].prompt));
    let numbers: std::collections::HashSet<_> = all.iter().map(|one| one.session).collect();
    assert_eq!(numbers.len(), all.len());
}

#[test]
fn a_common_head_is_all_that_its_requests_share() {
    let all = open(&Spec::named("common-head").unwrap(), 5);
    let (first, second) = (all[0].prompt.segments(), all[1].prompt.segments());
    assert_eq!((first[0], first[0].tokens), (second[0], 512));
    assert_ne!(first[1].id, second[1].id);
}

#[test]
fn arrivals_keep_their_rate_and_their_scatter() {
    for (arrivals, cv) in [
        ("poisson", 1.0),
        ("even", 0.0),
        ("gamma,cv=3", 3.0),
        ("gamma,cv=0.5", 0.5),
    ] {
        let all = open(
            &generated(&format!("  arrivals: {arrivals}\n  duration: 3000s")),
            11,
        );
        near(all.len() as f64, 120_000.0, 0.03);
        let gaps: Vec<f64> = all
            .windows(2)
            .map(|two| (two[1].at - two[0].at).as_secs_f64())
            .collect();
        let average = mean(gaps.iter().copied());
        let deviation = mean(gaps.iter().map(|gap| (gap - average).powi(2))).sqrt();
        assert!(
            (deviation / average - cv).abs() < 0.05 * cv + 1e-6,
            "{arrivals}"
        );
    }
    let all = open(
        &generated("  arrivals: on=2s,off=8s\n  duration: 1000s"),
        11,
    );
    near(all.len() as f64, 40_000.0, 0.03);
    assert!(all.iter().all(|one| one.at.as_secs_f64() % 10.0 <= 2.0));
}

#[test]
fn lengths_have_the_means_and_tails_that_were_asked_for() {
    let spec = generated(
        "  requests: 100000\n  unshared: 500..1500\n  output: 343,p99=1120\n  prefixes: {tokens: '3000,cv=0.5', count: 20000}",
    );
    let all = open(&spec, 2);
    assert_eq!(all.len(), 100_000);
    near(
        mean(all.iter().map(|one| f64::from(one.output))),
        343.0,
        0.02,
    );
    let mut outputs: Vec<u32> = all.iter().map(|one| one.output).collect();
    outputs.sort_unstable();
    near(f64::from(outputs[99_000]), 1_120.0, 0.05);
    near(
        mean(all.iter().map(|one| f64::from(one.prompt.tokens()))),
        4_000.0,
        0.02,
    );
}

#[test]
fn a_prompt_goes_on_with_its_predecessor_and_that_ones_answer_in_both_loops() {
    let spec = Spec::named("chat").unwrap();
    let service = Duration::from_secs(3);
    for all in [open(&spec, 9), closed(&spec, 9, service, false)] {
        let mut turns = 0;
        for session in sessions(&all).into_values() {
            turns += session.len() - 1;
            for two in session.windows(2) {
                let (before, after) = (two[0], two[1]);
                let mut start = before.prompt.segments().to_vec();
                start.push(before.answer_segment());
                let grown = after.prompt.segments();
                assert_eq!(grown[..start.len()], start);
                assert_eq!(grown.len(), start.len() + 1);
                assert_eq!(before.prefix, after.prefix);
                assert!(after.at > before.at);
            }
        }
        assert!(turns > 1_000);
    }
    // The prompts of both loops are the same; only their times differ.
    let key = |one: &Arrival| (one.session, one.prompt.tokens());
    let asked = |mut all: Vec<Arrival>| {
        all.sort_by_key(key);
        all.into_iter()
            .map(|one| (one.session, one.prompt, one.output))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        asked(open(&spec, 9)),
        asked(closed(&spec, 9, service, false))
    );
}

#[test]
fn requests_that_stand_alone_have_no_closed_loop() {
    let error = Spec::named("reference")
        .unwrap()
        .open(1, Loop::Closed)
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::NoClosedLoop { .. }), "{error}");
}

#[test]
fn a_load_that_makes_no_sense_is_refused_by_the_name_of_the_setting() {
    for (yaml, field) in [
        ("  rate: 0", "`rate`"),
        ("  stages: [{rate: -1, duration: 5s}]", "`stages.rate`"),
        (
            "  stages: [{rate: 1, duration: 5s}]\n  arrivals: on=1s,off=1s",
            "`arrivals`",
        ),
        ("  prefixes: {zipf: -1}", "`prefixes.zipf`"),
        (
            "  prefixes: {count: 1, first-share: 0.5}",
            "`prefixes.first-share`",
        ),
        ("  rate: 1e308", "`rate`"),
        ("  duration: 5000000000h", "`duration`"),
        ("  common-head: 4294967295", "`common-head`"),
        ("  prefixes: {tokens: 1e308}", "`prefixes.tokens`"),
        ("  prefixes: {count: 4294967295}", "`prefixes.count`"),
        (
            "  prefixes: {count: 100000, questions: 100000}",
            "`prefixes.questions",
        ),
        ("  unshared: 1e308", "`unshared`"),
        ("  output: 4e9", "`output`"),
        ("  conversation: {think: 1.8e19}", "`conversation.think`"),
        ("  conversation: {turns: 1e308}", "`conversation.turns`"),
        (
            "  burst: {at: 0s, requests: 1, shared: 4294967295, unshared: 1, output: 1}",
            "`burst.shared`",
        ),
    ] {
        let error = generated(yaml)
            .open(1, Loop::Open)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(field), "{error}");
    }
    for yaml in [
        "generated: {rte: 3}",
        "generated: {unshared: '5..'}",
        "generated: {output: '100,p99=90'}",
        "made-up: {}",
    ] {
        crate::yaml::read::<Spec>(yaml).unwrap_err();
    }
}

#[test]
fn a_conversation_ends_where_no_prompt_could_hold_more() {
    let spec = generated(
        "  requests: 100\n  rate: 1\n  conversation: {turns: 50, user: 4e6, think: '1e6,cv=100', service: {per-token: 5000000000h}}",
    );
    let all = open(&spec, 1);
    let most = all.iter().map(|one| one.prompt.tokens()).max();
    assert!(
        most > Some(12_000_000) && most <= Some(MOST_TOKENS),
        "{most:?}"
    );
}

#[test]
fn a_description_survives_being_written_and_read() {
    for name in Spec::NAMES {
        let spec = Spec::named(name).unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(crate::yaml::read::<Spec>(&text), Ok(spec), "{text}");
    }
}

#[test]
fn flags_change_a_ready_made_load_and_name_a_trace() {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        load: Args,
    }
    let read = |line: &str| {
        let words = std::iter::once("it").chain(line.split(' '));
        <Flags as clap::Parser>::try_parse_from(words).map(|flags| flags.load)
    };
    let Spec::Generated(load) = read("--workload b2b --rate 12 --output-tokens 50..70 --turns 3")
        .unwrap()
        .spec()
        .unwrap()
    else {
        panic!("generated")
    };
    assert_eq!(
        (load.rate, load.stages.len(), load.prefixes.count),
        (12.0, 0, 150)
    );
    assert_eq!(load.output, Distribution::Uniform(50.0, 70.0));
    assert_eq!(load.conversation.unwrap().turns, Distribution::Fixed(3.0));
    let Spec::Trace(trace) = read("--trace a.jsonl --speed 2 --limit 5")
        .unwrap()
        .spec()
        .unwrap()
    else {
        panic!("a trace")
    };
    assert_eq!((trace.speed, trace.limit), (2.0, Some(5)));
    assert!(read("--trace a.jsonl --rate 5").is_err());
    // The bounds are said, not that there is no flag `-1`.
    let negative = read("--rate -1").unwrap().spec().unwrap();
    let error = negative.open(1, Loop::Open).err().unwrap();
    assert!(error.to_string().contains("`rate`: -1"), "{error}");
    assert!(read("--workload nonsense").unwrap().spec().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn equal_seeds_give_equal_requests_in_order_of_time(seed: u64, turns in 1u32..6, zipf in 0.0f64..2.0, requests in 1u64..300) {
        let spec = generated(&format!(
            "  requests: {requests}\n  prefixes: {{zipf: {zipf}, count: 20}}\n  conversation: {{turns: 1..{turns}, think: '5,cv=1'}}"
        ));
        let all = open(&spec, seed);
        prop_assert_eq!(all.len() as u64, requests);
        prop_assert!(all.windows(2).all(|two| two[0].at <= two[1].at));
        prop_assert_eq!(&all, &open(&spec, seed));
        if requests > 5 {
            prop_assert_ne!(&all, &open(&spec, seed ^ 1));
        }
        // The order in which conversations go on changes nothing.
        let service = Duration::from_secs(2);
        let forwards = closed(&spec, seed, service, false);
        prop_assert_eq!(forwards.len() as u64, requests);
        prop_assert_eq!(forwards, closed(&spec, seed, service, true));
    }
}
