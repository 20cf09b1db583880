//! The engine model against measured runs of vLLM.

use std::time::Duration;

use serde_json::Value as Json;
use warmpath::engine::model::Request;
use warmpath::routing::block::Scope;
use warmpath::simulate::calibrate::{Errors, Profile, Recorded, fit, replay};

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

const RUNS: &[(&str, &str, &str)] = &[
    (
        "rtx-pro-6000-llama-3.1-8b",
        "llama-3.1-8b",
        "RTXPRO6000/Llama-3.1-8B",
    ),
    (
        "rtx-4090-llama-3.1-8b",
        "llama-3.1-8b",
        "RTX4090/Llama-3.1-8B",
    ),
    (
        "rtx-pro-6000-tp2-qwen3-32b",
        "qwen3-32b",
        "RTXPRO6000/Qwen3-32B",
    ),
];

#[test]
fn explore() {
    for (name, workload, measured) in RUNS {
        let Some(run) = run(workload, measured) else {
            return;
        };
        let profile = Profile::by_name(name).unwrap();
        let settings = profile.settings();
        let began = std::time::Instant::now();
        let replayed = replay(settings.clone(), &run.requests).unwrap();
        println!(
            "{name} {:?} steps {}",
            began.elapsed(),
            replayed.running.len()
        );
        println!(
            "start {:.4?}",
            Errors::of(&run.requests, &replayed, |_| true)
        );
        let (constants, loss) =
            fit(&settings, profile.constants, &run.requests, |at| at < 150).unwrap();
        println!("{constants:?} {loss} {:?}", began.elapsed());
        let replayed = replay(constants.apply(settings), &run.requests).unwrap();
        println!(
            "fit   {:.4?}",
            Errors::of(&run.requests, &replayed, |at| at < 150)
        );
        println!(
            "check {:.4?}",
            Errors::of(&run.requests, &replayed, |at| at >= 150)
        );
        println!(
            "all   {:.4?}",
            Errors::of(&run.requests, &replayed, |_| true)
        );
        println!(
            "running {:.4} preemptions {}",
            replayed.running_error(&run.running),
            replayed.preemptions
        );
    }
}
