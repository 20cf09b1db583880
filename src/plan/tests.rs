//! The reference case.

mod inputs;
mod properties;
mod verdicts;

use super::verdict::judge;
use super::{Choice, Given, Inputs, Sums, planned, presets, resolve};

const REFERENCE: &str = "llama-3.3-70b-h200";

fn preset(name: &str) -> Given {
    Given {
        preset: Some(name.to_owned()),
        ..Given::default()
    }
}

fn reference() -> Given {
    preset(REFERENCE)
}

fn inputs_of(given: Given) -> Inputs {
    resolve(given, None, None).unwrap().inputs
}

fn choice(given: Given) -> (Choice, String) {
    let inputs = inputs_of(given);
    let verdict = judge(&inputs, &Sums::of(&inputs).unwrap(), false);
    (
        verdict.choice,
        [verdict.reasons, verdict.notes].concat().join("; "),
    )
}

#[test]
fn the_reference_case_has_the_published_figures() {
    let inputs = Inputs::preset(REFERENCE).unwrap();
    let sums = Sums::of(&inputs).unwrap();
    let figures = [
        (
            "prefill a token, µs",
            format!("{:.1}", sums.prefill_per_token_s * 1e6),
            "71.3",
        ),
        (
            "saved, ms",
            format!("{:.0}", sums.saved_per_hit_s * 1e3),
            "428",
        ),
        ("cold, ms", format!("{:.0}", sums.ttft_cold_s * 1e3), "570"),
        ("warm, ms", format!("{:.0}", sums.ttft_warm_s * 1e3), "143"),
        ("pool", format!("{}", sums.pool_tokens), "558124"),
        ("unshared", format!("{}", sums.unshared_tokens), "137600"),
        ("room", format!("{:?}", sums.room_prefixes), "Some(70)"),
        ("set", format!("{}", sums.set_tokens), "1200000"),
        (
            "pools",
            format!("{:.1} ({:.2})", sums.set_pools, sums.set_pools),
            "2.2 (2.15)",
        ),
        (
            "step, ms",
            format!("{:.1}", sums.decode_step_s * 1e3),
            "33.5",
        ),
        ("tok/s", format!("{:.0}", sums.decode_tokens_per_s), "1908"),
        (
            "decode load",
            format!("{:.2}", sums.cold.decode_load),
            "6.29",
        ),
        (
            "cold prefill load",
            format!("{:.1}", sums.cold.prefill_load),
            "22.8",
        ),
        ("cold load", format!("{:.1}", sums.cold.load), "29.1"),
        ("cold replicas", format!("{}", sums.cold.replicas), "45"),
        ("cold GPUs", format!("{}", sums.cold.gpus), "90"),
        (
            "cold $",
            format!("{:.2}", sums.cold.dollars_per_million_output.unwrap()),
            "7.29",
        ),
        (
            "affinity prefill load",
            format!("{:.2}", sums.affinity.prefill_load),
            "7.42",
        ),
        (
            "affinity decode load",
            format!("{:.2}", sums.affinity.decode_load),
            "6.29",
        ),
        (
            "affinity load",
            format!("{:.1}", sums.affinity.load),
            "13.7",
        ),
        (
            "affinity replicas",
            format!("{}", sums.affinity.replicas),
            "22",
        ),
        ("affinity GPUs", format!("{}", sums.affinity.gpus), "44"),
        (
            "affinity $",
            format!("{:.2}", sums.affinity.dollars_per_million_output.unwrap()),
            "3.56",
        ),
        (
            "prefixes a replica",
            format!("{:.0}", sums.prefixes_per_replica),
            "9",
        ),
        (
            "warm request, replica-s",
            format!("{:.2}", sums.warm_request_s),
            "0.30",
        ),
        (
            "warm /s a replica",
            format!("{:.2}", sums.warm_requests_per_replica),
            "2.17",
        ),
        ("hot /s", format!("{:.0}", sums.hot_rate.unwrap()), "4"),
        ("owners", format!("{:.1}", sums.hot_owners.unwrap()), "1.8"),
    ];
    for (name, ours, published) in figures {
        assert_eq!(ours, published, "{name}");
    }
    assert_eq!(choice(reference()).0, Choice::Affinity);
}

#[test]
fn the_report_prints_the_published_figures() {
    let text = planned(reference(), None, None, false).unwrap();
    for figure in [
        "71.3 µs",
        "428 ms",
        "570 ms",
        "143 ms",
        "558,124 tokens",
        "137,600 tokens",
        "70 prefixes",
        "1,200,000 tokens",
        "2.2 pools (2.15)",
        "33.5 ms",
        "1,908 tok/s",
        "6.29",
        "22.8",
        "29.1",
        "45",
        "90",
        "$7.29",
        "7.42",
        "13.7",
        "22",
        "44",
        "$3.56",
        "about 9",
        "0.30 replica-s",
        "2.17 /s",
        "1.8",
        "6,000 tokens",
        "Verdict: affinity",
    ] {
        assert!(text.contains(figure), "{figure} is not in\n{text}");
    }
}

#[test]
fn json_has_the_figures_and_says_where_inputs_come_from() {
    let flags = Given {
        rate: Some(50.0),
        ..reference()
    };
    let text = planned(flags, None, None, true).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["verdict"]["choice"], "affinity");
    assert_eq!(json["inputs"]["rate"], 50.0);
    assert_eq!(json["sums"]["room_prefixes"], 70);
    let from = |field: &str| {
        let origins = json["origins"].as_array().unwrap();
        let origin = origins
            .iter()
            .find(|origin| origin["field"] == field)
            .unwrap();
        origin["from"].as_str().unwrap().to_owned()
    };
    assert_eq!(from("rate"), "flag");
    assert_eq!(from("tflops"), "GPU h200");
    assert_eq!(from("parameters"), "model llama-3.3-70b-fp8");
    assert_eq!(from("tensor_parallel"), format!("preset {REFERENCE}"));
    assert_eq!(from("mfu"), format!("preset {REFERENCE}"));
    assert_eq!(from("kv_bytes_per_token"), "worked out");
}

#[test]
fn the_flags_are_a_command_line() {
    use clap::{Args as _, FromArgMatches as _};
    let command = crate::plan::Args::augment_args(clap::Command::new("plan"));
    command.clone().debug_assert();
    let words = [
        "plan", "--model", "qwen3-8b", "--gpu", "l40s", "--rate", "-1", "--json",
    ];
    let matches = command.try_get_matches_from(words).unwrap();
    let args = crate::plan::Args::from_arg_matches(&matches).unwrap();
    let error = crate::plan::run(args).unwrap_err().to_string();
    assert_eq!(
        error,
        "rate must be between 0.000001 and 10000000 a second, not -1"
    );
}

/// The report that docs/plan.md shows is the one that is printed.
#[test]
fn the_document_shows_the_reference_report() {
    let text = planned(reference(), None, None, false).unwrap();
    // Read when it is asked for: what is taken in is part of the build, and must reach whoever builds an image.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/plan.md");
    let document = std::fs::read_to_string(path).unwrap();
    let shown = document
        .split_once("```text\n")
        .and_then(|(_, rest)| rest.split_once("\n```"))
        .map(|(report, _)| report);
    assert_eq!(shown, Some(text.as_str()), "this is printed:\n{text}");
}
