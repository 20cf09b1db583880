//! Replays of runs whose outcome is known.

use super::*;
use crate::routing::block::Scope;

/// Prompts of which no two share anything, 200 ms apart.
fn run(prompts: &[usize], output: usize) -> Vec<Recorded> {
    let request = |(at, &tokens): (usize, &usize)| {
        let at = u32::try_from(at).unwrap();
        Recorded {
            request: Request {
                prompt: (0..u32::try_from(tokens).unwrap())
                    .map(|n| at * 100_000 + n)
                    .collect(),
                scope: Scope::default(),
                max_tokens: Some(output),
                ignore_eos: true,
                reads_cache: true,
                answer: Vec::new(),
            },
            queued: Duration::from_millis(200) * at,
            scheduled: Duration::ZERO,
            first: Duration::ZERO,
            last: Duration::ZERO,
        }
    };
    prompts.iter().enumerate().map(request).collect()
}

fn settings(constants: Constants) -> Settings {
    let profile = Profile::by_name("rtx-4090-llama-3.1-8b").unwrap();
    constants.apply(profile.settings())
}

const KNOWN: Constants = Constants {
    step_base_us: 1000.0,
    prefill_us_per_token: 50.0,
    decode_us_per_step: 9000.0,
    decode_ns_per_context_token: 100.0,
};

/// The same run, as the model itself with `KNOWN` took it.
fn recorded(prompts: &[usize], output: usize) -> Vec<Recorded> {
    let mut run = run(prompts, output);
    let known = replay(settings(KNOWN), &run).unwrap();
    for (recorded, timing) in run.iter_mut().zip(known.timings) {
        (recorded.scheduled, recorded.first, recorded.last) =
            (timing.scheduled, timing.first, timing.last);
    }
    run
}

#[test]
fn a_lone_request_takes_its_steps() {
    let replayed = replay(settings(KNOWN), &run(&[3000], 3)).unwrap();
    // 2048 and 952 tokens, each with a step's base; then two decodes with 3001 and 3002 tokens of context.
    let first = Duration::from_millis(2) + Duration::from_micros(50) * 3000;
    let decodes = 2 * Duration::from_millis(10) + Duration::from_nanos(100) * 6003;
    let timing = replayed.timings[0];
    assert_eq!((timing.scheduled, timing.first), (Duration::ZERO, first));
    assert_eq!(timing.last, first + decodes);
    assert_eq!(replayed.running.len(), 4);
}

#[test]
fn a_replay_of_itself_has_no_error_and_a_slower_engine_is_seen_to_be() {
    let run = recorded(&[900, 300, 2500, 100, 700, 1800], 40);
    let same = replay(settings(KNOWN), &run).unwrap();
    assert_eq!(Errors::of(&run, &same, |_| true), Errors::default());
    let slower = Constants {
        decode_us_per_step: 14_500.0,
        ..KNOWN
    };
    let errors = Errors::of(&run, &replay(settings(slower), &run).unwrap(), |_| true);
    assert!(errors.tpot_p50 > 0.3 && errors.loss > 0.1, "{errors:?}");
    let none = Errors::of(&run, &same, |_| false);
    assert_eq!(none, Errors::default(), "of no request there is no error");
}

#[test]
fn the_fit_finds_what_made_a_run() {
    let run = recorded(&[900, 300, 2500, 100, 700, 1800, 1200, 60], 20);
    let start = Constants {
        step_base_us: 1000.0,
        prefill_us_per_token: 80.0,
        decode_us_per_step: 6000.0,
        decode_ns_per_context_token: 100.0,
    };
    let (found, loss) = fit(&settings(KNOWN), start, &run, |_| true).unwrap();
    assert!(loss < 0.03, "{loss} with {found:?}");
    assert!(
        (found.prefill_us_per_token / 50.0 - 1.0).abs() < 0.1,
        "{found:?}"
    );
    let a_decode = found.step_base_us + found.decode_us_per_step;
    assert!((a_decode / 10_000.0 - 1.0).abs() < 0.05, "{found:?}");
}

#[test]
fn a_request_that_can_never_be_computed_is_named() {
    let mut run = run(&[100, 100], 5);
    run[1].request.prompt.clear();
    let refused = replay(settings(KNOWN), &run).unwrap_err();
    assert_eq!(refused.to_string(), "request 1 of the run is refused");
}

#[test]
fn every_profile_is_an_engine_that_works() {
    for profile in PROFILES {
        assert!(Model::new(profile.settings()).is_ok(), "{}", profile.name);
        assert_eq!(Profile::by_name(profile.name), Some(profile));
    }
    assert_eq!(Profile::by_name("h900"), None);
}
