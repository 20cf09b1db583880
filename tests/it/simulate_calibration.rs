//! The engine model against measured runs of vLLM.

use std::time::Duration;

use serde_json::Value as Json;
use warmpath::engine::model::Request;
use warmpath::routing::block::Scope;
use warmpath::simulate::calibrate::{Errors, Profile, Recorded, replay};

use super::golden_data;

const FOLDER: &str = "data/traces/llmservingsim";

/// A measured run: requests in the order of their arrival, and the requests running each second.
struct Run {
    requests: Vec<Recorded>,
    running: Vec<(f64, f64)>,
}

fn ids(of: &Json) -> Vec<u32> {
    let ids = of.as_array().unwrap().iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

fn run(workload: &str, measured: &str) -> Option<Run> {
    let asked = golden_data::lines(&format!("{FOLDER}/sharegpt-{workload}-300-sps10.jsonl.zst"))?;
    let times = golden_data::lines(&format!("{FOLDER}/measured/{measured}/requests.jsonl"))?;
    let series = golden_data::bytes(&format!("{FOLDER}/measured/{measured}/timeseries.csv"))?;
    let start = times
        .iter()
        .map(|t| t["queued_ts"].as_f64().unwrap())
        .fold(f64::MAX, f64::min);
    let at =
        |time: &Json, name: &str| Duration::from_secs_f64(time[name].as_f64().unwrap() - start);
    let mut requests: Vec<Recorded> = asked
        .iter()
        .zip(&times)
        .map(|(asked, time)| {
            assert_eq!(asked["input_toks"], time["input_toks"]);
            let answer = ids(&asked["output_tok_ids"]);
            Recorded {
                request: Request {
                    prompt: ids(&asked["input_tok_ids"]),
                    scope: Scope::default(),
                    max_tokens: Some(
                        usize::try_from(time["output_toks"].as_u64().unwrap()).unwrap(),
                    ),
                    ignore_eos: true,
                    reads_cache: true,
                    answer,
                },
                queued: at(time, "queued_ts"),
                scheduled: at(time, "scheduled_ts"),
                first: at(time, "first_token_ts"),
                last: at(time, "last_token_ts"),
            }
        })
        .collect();
    requests.sort_by_key(|request| request.queued);
    let running = String::from_utf8(series)
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| {
            let mut fields = line.split(',').map(|field| field.parse::<f64>().unwrap());
            (fields.next().unwrap(), fields.nth(2).unwrap())
        })
        .collect();
    Some(Run { requests, running })
}

/// Bounds that docs/engine-model.md states.
struct Bounds {
    profile: &'static str,
    workload: &'static str,
    measured: &'static str,
    /// Of TTFT p50 and p90 and of the duration, over all requests.
    overall: f64,
    /// Of the median time per output token, over all requests.
    tpot: f64,
    /// Mean distance of the logarithms, over the half that was not fitted.
    unseen_loss: f64,
    /// Of the requests running, over time.
    running: f64,
}

const RUNS: &[Bounds] = &[
    Bounds {
        profile: "rtx-pro-6000-llama-3.1-8b",
        workload: "llama-3.1-8b",
        measured: "RTXPRO6000/Llama-3.1-8B",
        overall: 0.02,
        tpot: 0.02,
        unseen_loss: 0.02,
        running: 0.02,
    },
    Bounds {
        profile: "rtx-pro-6000-tp2-qwen3-32b",
        workload: "qwen3-32b",
        measured: "RTXPRO6000/Qwen3-32B",
        overall: 0.03,
        tpot: 0.03,
        unseen_loss: 0.04,
        running: 0.03,
    },
    Bounds {
        profile: "rtx-4090-llama-3.1-8b",
        workload: "llama-3.1-8b",
        measured: "RTX4090/Llama-3.1-8B",
        overall: 0.02,
        tpot: 0.02,
        unseen_loss: 0.03,
        running: 0.03,
    },
];

#[test]
fn profiles_take_as_long_as_the_engines_they_were_measured_on() {
    for bounds in RUNS {
        let Some(run) = run(bounds.workload, bounds.measured) else {
            return;
        };
        let name = bounds.profile;
        let settings = Profile::by_name(name).unwrap().settings();
        let replayed = replay(settings, &run.requests).unwrap();
        let fitted = Errors::of(&run.requests, &replayed, |at| at < 150);
        let unseen = Errors::of(&run.requests, &replayed, |at| at >= 150);
        let all = Errors::of(&run.requests, &replayed, |_| true);
        let running = replayed.running_error(&run.running);
        println!("{name}\n fitted {fitted:.4?}\n unseen {unseen:.4?}\n all {all:.4?}");
        println!(" running {running:.4}, {} preempted", replayed.preemptions);
        for error in [all.ttft_p50, all.ttft_p90, all.duration] {
            assert!(error.abs() < bounds.overall, "{name}: {all:?}");
        }
        assert!(all.tpot_p50.abs() < bounds.tpot, "{name}: {all:?}");
        assert!(unseen.loss < bounds.unseen_loss, "{name}: {unseen:?}");
        assert!(running < bounds.running, "{name}: {running}");
    }
}
