//! What the fleet promises, with a rule and loads of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::routing::block::BlockSize;
use crate::routing::router::{Decision, Refusal};
use crate::simulate::policy::{Asked, Knowledge};
use crate::simulate::prompt::{Prompt, Segment};
use crate::simulate::workload::Arrival;

/// What `serve` does.
struct LeastPrefill;

impl Policy for LeastPrefill {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        fleet.pick(asked)
    }
}

/// For loads of which nothing is to be sent anywhere.
struct NeverAsked;

impl Policy for NeverAsked {
    fn pick(&mut self, _: &Asked<'_>, _: &dyn Knowledge) -> Result<Decision, Refusal> {
        panic!("nobody need be asked")
    }
}

/// One after the other, dead ones passed over; looks at every figure there is.
#[derive(Default)]
struct RoundRobin {
    next: usize,
}

impl Policy for RoundRobin {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let seen = fleet.survey(asked);
        let load = fleet.survey_load(asked);
        for (with, without) in seen.iter().zip(&load) {
            assert_eq!(without.cached, 0);
            assert_eq!(
                (with.queued, with.context),
                (without.queued, without.context)
            );
            assert!(with.context == 0 || with.in_flight > 0, "{with:?}");
        }
        let ready: Vec<_> = seen.iter().filter(|seen| seen.ready).collect();
        let chosen = ready.get(self.next % ready.len().max(1));
        self.next += 1;
        fleet.book(asked, chosen.ok_or(Refusal::NothingReady)?.replica)
    }
}

/// Poisson arrivals whose prompts share one of some prefixes; conversations of some turns in a closed loop.
#[derive(Clone)]
struct Load {
    rng: fastrand::Rng,
    at: Duration,
    left: u64,
    made: u64,
    per_second: f64,
    prefixes: u64,
    shared: u32,
    own: u32,
    output: u32,
    turns: u32,
    open: BTreeMap<u64, (u32, Arrival)>,
}

impl Load {
    fn new(requests: u64, per_second: f64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(7),
            at: Duration::ZERO,
            left: requests,
            made: 0,
            per_second,
            prefixes: 8,
            shared: 320,
            own: 100,
            output: 20,
            turns: 1,
            open: BTreeMap::new(),
        }
    }
}

impl Workload for Load {
    fn next(&mut self) -> Option<Arrival> {
        self.left = self.left.checked_sub(1)?;
        self.made += 1;
        self.at += Duration::from_secs_f64(-(1.0 - self.rng.f64()).ln() / self.per_second);
        let prefix = self.rng.u64(..self.prefixes);
        let segment = |id, tokens| Segment { id, tokens };
        let arrival = Arrival {
            at: self.at,
            prompt: Prompt::new([
                segment(prefix, self.shared),
                segment(self.made << 32, self.own),
            ]),
            output: self.output,
            answer: (self.made << 32) + 1,
            session: self.made,
            prefix: Some(prefix),
        };
        self.open.insert(self.made, (self.turns, arrival.clone()));
        Some(arrival)
    }

    fn follow(&mut self, session: u64, ended: Duration) -> Option<Arrival> {
        let (turns, mut arrival) = self.open.remove(&session)?;
        if turns <= 1 {
            return None;
        }
        let mut segments = arrival.prompt.segments().to_vec();
        segments.push(arrival.answer_segment());
        segments.push(Segment {
            id: arrival.answer + 1,
            tokens: 40,
        });
        arrival.prompt = Prompt::new(segments);
        arrival.answer += 2;
        arrival.at = ended + Duration::from_millis(500);
        self.open.insert(session, (turns - 1, arrival.clone()));
        Some(arrival)
    }

    fn len_hint(&self) -> Option<u64> {
        None
    }
}

/// A small engine: 100 µs a token, steps of 10 ms.
fn engine(blocks: usize) -> model::Settings {
    model::Settings {
        block_size: BlockSize::DEFAULT,
        blocks,
        lower_blocks: 0,
        lower_describes: false,
        load_per_token: Duration::ZERO,
        max_num_seqs: 64,
        max_num_batched_tokens: 2_048,
        max_model_len: 4_000,
        step_base: Duration::from_millis(1),
        prefill_per_token: Duration::from_micros(100),
        decode_per_step: Duration::from_millis(9),
        decode_ns_per_context_token: 50.0,
        answer_tokens: 100,
        vocabulary: Arc::from([0]),
        seed: 0,
    }
}

fn fleet(replicas: usize) -> Settings {
    Settings::new(replicas, engine(2_000))
}

fn play(settings: &Settings, mut load: Load, policy: &mut dyn Policy) -> Outcome {
    run(settings, &mut load, policy, 1, &mut |_| {}).unwrap()
}

fn json(outcome: &Outcome) -> String {
    serde_json::to_string(outcome).unwrap()
}

#[test]
fn equal_seeds_give_equal_outcomes_and_another_seed_another_one() {
    let settings = Settings {
        event_delay: Duration::from_millis(50),
        report_delay: Duration::from_secs(2),
        ..fleet(4)
    };
    let of = |seed| {
        let mut load = Load::new(300, 40.0);
        run(&settings, &mut load, &mut LeastPrefill, seed, &mut |_| {}).unwrap()
    };
    // Not `assert_eq!`: nobody reads a difference of 20 KB.
    assert!(json(&of(1)) == json(&of(1)));
    assert!(json(&of(1)) != json(&of(2)));
}

#[test]
fn names_in_place_of_token_ids_and_events_change_nothing() {
    for (blocks, delay) in [(20_000, 0), (300, 0), (300, 700)] {
        let settings = Settings {
            event_delay: Duration::from_millis(delay),
            ..Settings::new(3, engine(blocks))
        };
        let of = |told| {
            let mut load = Load::new(300, 40.0);
            (load.turns, load.output) = (3, 37);
            let mut policy = LeastPrefill;
            let mut run = run::Run::new(&settings, &mut load, &mut policy, 1, told).unwrap();
            run.play(&mut |_| {}).unwrap();
            run.outcome()
        };
        let (names, tokens) = (of(run::Told::Keys), of(run::Told::Events));
        assert!(blocks > 300 || names.preemptions > 0);
        assert!(json(&names) == json(&tokens), "{blocks} blocks, {delay} ms");
    }
}

#[test]
fn every_request_is_answered_or_counted_as_failed_and_nothing_stays_booked() {
    let mut load = Load::new(400, 60.0);
    load.turns = 3;
    let settings = fleet(4);
    let mut policy = LeastPrefill;
    let mut run = run::Run::new(&settings, &mut load, &mut policy, 1, run::Told::Keys).unwrap();
    let mut last = Progress::default();
    run.play(&mut |progress| last = progress).unwrap();
    assert_eq!(run.booked(), (0, 0));
    assert_eq!(run.contexts(), 0);
    let outcome = run.outcome();
    assert_eq!(outcome.requests, 1_200, "every turn of every conversation");
    assert_eq!(outcome.failed, 0);
    assert_eq!((last.arrived, last.ended), (1_200, 1_200));
    assert_eq!(outcome.ttft_curve.last().map(|point| point.1), Some(1.0));
}

#[test]
fn a_prompt_that_no_engine_can_hold_is_counted_as_failed_and_the_others_go_on() {
    let mut load = Load::new(50, 20.0);
    load.own = 3_700;
    let outcome = play(&fleet(2), load.clone(), &mut LeastPrefill);
    assert_eq!((outcome.failed, outcome.requests), (50, 0));
    assert_eq!(outcome.too_long, 50);
    // By its length alone: cutting 4,000 million tokens into blocks would take gigabytes.
    load.own = 4_000_000_000;
    let outcome = play(&fleet(2), load, &mut NeverAsked);
    assert_eq!((outcome.failed, outcome.requests), (50, 0));
}

#[test]
fn without_delays_and_evictions_every_cached_token_is_foreseen() {
    // The pools hold all there is to hold, so nothing is evicted between the pick and the engine's look. What can
    // differ is a block that a request in flight was bringing when this one was picked, and engines count those of a
    // prefill under way only once they are scheduled: they always are before this one's turn comes.
    let settings = Settings::new(4, engine(20_000));
    let outcome = play(&settings, Load::new(400, 30.0), &mut LeastPrefill);
    assert!(
        (outcome.foreseen_share - 1.0).abs() < 1e-12,
        "{}",
        outcome.foreseen_share
    );
    assert!(outcome.cached_share > 0.6, "{}", outcome.cached_share);
}

#[test]
fn the_next_turn_finds_the_answer_before_it_in_the_cache() {
    let mut load = Load::new(20, 1.0);
    load.turns = 2;
    let settings = Settings::new(1, engine(20_000));
    let outcome = play(&settings, load, &mut LeastPrefill);
    // First turns: 8 prefixes cold, the rest with 320 of 420 tokens cached. Second turns: 480 tokens, of which the last
    // 40 are new and the last token of the answer was never computed: 432 of 440.
    let cached = f64::from(12 * 320 + 20 * 432);
    let prompts = f64::from(20 * 420 + 20 * 480);
    let cold: f64 = cached / prompts;
    assert!(
        (outcome.cached_share - cold).abs() < 0.02,
        "{} {cold}",
        outcome.cached_share
    );
}

#[test]
fn a_death_costs_no_error_its_requests_are_repeated_and_its_prefixes_are_cold() {
    let outage = |at, lasts| Outage {
        replica: 1,
        at: Duration::from_secs(at),
        lasts: Duration::from_secs(lasts),
    };
    let calm = play(&fleet(3), Load::new(600, 30.0), &mut RoundRobin::default());
    let settings = Settings {
        outages: vec![outage(5, 4), outage(14, 1)],
        ..fleet(3)
    };
    for policy in [
        &mut LeastPrefill as &mut dyn Policy,
        &mut RoundRobin::default(),
    ] {
        let outcome = play(&settings, Load::new(600, 30.0), policy);
        assert_eq!((outcome.requests, outcome.failed), (600, 0));
        assert!(outcome.repeated > 0);
        assert!(outcome.cached_share > 0.5);
    }
    let outcome = play(&settings, Load::new(600, 30.0), &mut RoundRobin::default());
    assert_eq!(calm.repeated, 0);
    assert!(outcome.cached_share < calm.cached_share);
    let away = |(at, _): &(usize, &f64)| (5.5..8.5).contains(&outcome.course.seconds[*at]);
    let there = outcome.course.in_flight[1]
        .iter()
        .zip(&outcome.course.seconds);
    assert!(
        there
            .clone()
            .all(|(&n, end)| !(5.5..8.5).contains(end) || n == 0.0)
    );
    assert!(
        outcome
            .course
            .seconds
            .iter()
            .enumerate()
            .any(|it| away(&it))
    );
    assert!(there.clone().any(|(&n, &end)| end > 9.0 && n > 0.0));
}

#[test]
fn a_replica_is_away_for_as_long_as_any_of_its_outages_lasts() {
    let with = |outages: &[&str]| {
        let settings = Settings {
            outages: outages.iter().map(|it| it.parse().unwrap()).collect(),
            ..fleet(2)
        };
        json(&play(&settings, Load::new(400, 30.0), &mut LeastPrefill))
    };
    let whole = with(&["1@3s+9s"]);
    for parts in [
        ["1@3s+9s", "1@5s+2s"],
        ["1@5s+7s", "1@3s+4s"],
        ["1@3s+4s", "1@7s+5s"],
        ["1@7s+5s", "1@3s+4s"],
    ] {
        assert!(with(&parts) == whole, "{parts:?}");
    }
    assert!(with(&["1@3s+4s"]) != whole);
}

#[test]
fn with_nobody_up_requests_wait_and_fail_when_their_patience_ends() {
    let outage = Outage {
        replica: 0,
        at: Duration::from_secs(2),
        lasts: Duration::from_secs(30),
    };
    let patient = Settings {
        outages: vec![outage],
        ..fleet(1)
    };
    let outcome = play(&patient, Load::new(100, 10.0), &mut LeastPrefill);
    assert_eq!((outcome.requests, outcome.failed), (100, 0));
    assert!(outcome.ttft.max > 25.0);
    let hasty = Settings {
        patience: Duration::from_secs(5),
        ..patient
    };
    let outcome = play(&hasty, Load::new(100, 10.0), &mut LeastPrefill);
    assert_eq!(outcome.requests + outcome.failed, 100);
    assert!(outcome.failed > 30, "{}", outcome.failed);
    assert_eq!(outcome.too_long, 0, "they failed for want of a replica");
}

#[test]
fn late_events_make_the_picker_foresee_less_and_late_reports_leave_nobody_out() {
    let settings = Settings {
        event_delay: Duration::from_secs(2),
        ..fleet(4)
    };
    let prompt = play(&fleet(4), Load::new(600, 40.0), &mut LeastPrefill);
    let late = play(&settings, Load::new(600, 40.0), &mut LeastPrefill);
    assert!(
        late.foreseen_share < prompt.foreseen_share - 0.01,
        "{late:?}"
    );
    // What the rule does not look at but through the guards changes nothing where those are far away.
    let settings = Settings {
        report_delay: Duration::from_secs(2),
        ..fleet(4)
    };
    let reports = play(&settings, Load::new(600, 40.0), &mut LeastPrefill);
    assert!(json(&reports) == json(&prompt));
}

/// What comes after a pause.
struct Paused {
    load: Load,
    /// Requests before it.
    before: u64,
    pause: Duration,
}

impl Workload for Paused {
    fn next(&mut self) -> Option<Arrival> {
        let mut arrival = self.load.next()?;
        if arrival.session > self.before {
            arrival.at += self.pause;
        }
        Some(arrival)
    }

    fn follow(&mut self, session: u64, ended: Duration) -> Option<Arrival> {
        self.load.follow(session, ended)
    }

    fn len_hint(&self) -> Option<u64> {
        None
    }
}

/// Reports of the pause are left out but for the last ones: a picker that believes none older than the delay and some
/// ticks leaves nobody out, and all goes on as after a pause too short to leave any out.
#[test]
fn a_pause_of_years_takes_no_time_and_reports_are_as_young_after_it() {
    let mut settings = Settings {
        report_delay: Duration::from_secs(2),
        ..fleet(4)
    };
    settings.router.report_age_limit = Duration::from_millis(300);
    settings.router.idle_report_age_limit = Duration::from_millis(300);
    let of = |pause| {
        let mut load = Paused {
            load: Load::new(400, 40.0),
            before: 200,
            pause,
        };
        run(&settings, &mut load, &mut LeastPrefill, 1, &mut |_| {}).unwrap()
    };
    // Both are whole numbers of ticks.
    let (short, long) = (of(Duration::from_secs(2)), of(Duration::from_secs(1 << 30)));
    assert_eq!((long.failed, long.requests), (0, 400));
    let figures = |outcome: &Outcome| {
        let Outcome {
            ttft,
            tpot,
            latency,
            ..
        } = outcome;
        serde_json::to_string(&(
            ttft,
            tpot,
            latency,
            outcome.cached_share,
            outcome.foreseen_share,
        ))
        .unwrap()
    };
    assert_eq!(figures(&long), figures(&short));
}

#[test]
fn the_warm_up_is_not_counted_and_the_course_shows_it() {
    let settings = Settings {
        warm_up: WarmUp::Requests(100),
        ..fleet(2)
    };
    let outcome = play(&settings, Load::new(300, 30.0), &mut LeastPrefill);
    assert_eq!(outcome.requests, 200);
    let all = play(&fleet(2), Load::new(300, 30.0), &mut LeastPrefill);
    assert_eq!(outcome.course.seconds, all.course.seconds);
    assert!(outcome.cached_share > all.cached_share);
    let asked: f64 = all
        .hot_prefixes
        .iter()
        .map(|hot| hot.per_second * all.seconds)
        .sum();
    assert!(asked > 150.0 && asked <= 300.0, "{asked}");
    let owners = all.hot_prefixes.iter().flat_map(|hot| &hot.owners);
    assert_eq!(owners.clone().count(), 5 * all.course.seconds.len());
    assert_eq!(owners.max(), Some(&2));
}

#[test]
fn a_first_token_at_the_very_end_of_an_interval_is_in_the_course() {
    // One step, and intervals of 100 ms: that of 200 ms is noted before the end of its interval, that of 100 ms after it.
    for (own, ttft) in [(1_670, 0.2), (670, 0.1)] {
        let mut load = Load::new(1, 1.0);
        (load.own, load.output) = (own, 1);
        let course = play(&fleet(1), load, &mut LeastPrefill).course;
        assert_eq!(course.ttft.last(), Some(&ttft), "{course:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let mut load = Load::new(1, 1.0);
    let refuse = |settings: &Settings, load: &mut Load| {
        run(settings, load, &mut LeastPrefill, 1, &mut |_| {}).unwrap_err()
    };
    assert_eq!(refuse(&fleet(0), &mut load), RunError::NoReplicas);
    assert_eq!(
        refuse(&fleet(1), &mut Load::new(0, 1.0)),
        RunError::NoRequests
    );
    let lost = Settings {
        outages: vec!["2@1s+1s".parse().unwrap()],
        ..fleet(2)
    };
    assert_eq!(
        refuse(&lost, &mut load).to_string(),
        "an outage names replica 2, but the 2 replicas are numbered from 0"
    );
    let small = Settings::new(1, engine(10));
    assert!(matches!(refuse(&small, &mut load), RunError::Engine(_)));
}
