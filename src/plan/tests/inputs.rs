//! What is taken from where, and what is refused.

use super::*;
use crate::plan::inputs::InputsError;
use crate::plan::sums::{self, SumsError};
use crate::routing::block::BlockSize;

#[test]
fn every_preset_and_every_model_on_every_large_gpu_is_worked_out() {
    for name in presets::names() {
        let text = planned(preset(name), None, None, false).unwrap();
        assert!(text.contains("Verdict"), "{name}");
    }
    let (models, gpus) = presets::parts();
    for model in models {
        for gpu in gpus.clone() {
            let named = Given {
                model: Some(model.to_owned()),
                gpu: Some(gpu.to_owned()),
                ..Given::default()
            };
            match resolve(named, None, None) {
                Ok(resolved) => assert!(Sums::of(&resolved.inputs).is_ok(), "{model} on {gpu}"),
                Err(error) => assert!(
                    matches!(error, InputsError::NoFit(_)) && model == "deepseek-v3",
                    "{model} on {gpu}: {error}"
                ),
            }
        }
    }
}

#[test]
fn a_latent_cache_is_held_by_every_gpu_of_a_replica() {
    let deepseek = inputs_of(preset("deepseek-v3-h200"));
    assert_eq!(deepseek.tensor_parallel, 8);
    assert_eq!(sums::kv_bytes_held(&deepseek), 8.0 * 70_272.0);
    // Eight KV heads on two GPUs are split, on sixteen held twice.
    let llama = |gpus| {
        inputs_of(Given {
            tensor_parallel: Some(gpus),
            ..reference()
        })
    };
    assert_eq!(sums::kv_bytes_held(&llama(2)), 327_680.0);
    assert_eq!(sums::kv_bytes_held(&llama(16)), 655_360.0);
}

#[test]
fn flags_override_the_file_and_the_file_the_preset() {
    let file: Given =
        crate::yaml::read("preset: llama-3.3-70b-h200\nrate: 10\nprefixes: 300\n").unwrap();
    let flags = Given {
        rate: Some(20.0),
        ..Given::default()
    };
    let resolved = resolve(flags, None, Some(file)).unwrap();
    assert_eq!(resolved.inputs.rate, 20.0);
    assert_eq!(resolved.inputs.prefixes, 300);
    assert_eq!(resolved.inputs.tensor_parallel, 2);
    let fp8_kv = Given {
        kv_value_bytes: Some(1.0),
        ..reference()
    };
    assert_eq!(inputs_of(fp8_kv).kv_bytes_per_token, 163_840.0);
    let other_gpu = Given {
        gpu: Some("b200".to_owned()),
        ..reference()
    };
    let resolved = resolve(other_gpu, None, None).unwrap().inputs;
    assert_eq!(
        resolved.price_per_gpu_hour, None,
        "the price was that of an H200"
    );
}

#[test]
fn bad_inputs_are_refused_with_field_and_bound() {
    let refused = |given: Given| resolve(given, None, None).unwrap_err().to_string();
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1.5] {
        let error = refused(Given {
            mfu: Some(value),
            ..reference()
        });
        assert!(error.contains("mfu must be between 0.001 and 1"), "{error}");
    }
    for given in [
        Given {
            rate: Some(0.0),
            ..reference()
        },
        Given {
            prompt_tokens: Some(f64::NAN),
            ..reference()
        },
        Given {
            prefixes: Some(0),
            ..reference()
        },
        Given {
            tensor_parallel: Some(0),
            ..reference()
        },
        Given {
            decode_batch: Some(0),
            ..reference()
        },
        Given {
            weight_bytes: Some(0),
            ..reference()
        },
        Given {
            price_per_gpu_hour: Some(-3.5),
            ..reference()
        },
        Given {
            skew: Some(f64::NEG_INFINITY),
            ..reference()
        },
    ] {
        let error = refused(given);
        assert!(error.contains("must be between"), "{error}");
    }
    let error = refused(Given {
        shared_tokens: Some(8000.0),
        ..reference()
    });
    assert!(error.contains("must be below prompt_tokens"), "{error}");
    let error = refused(preset("llama-5"));
    assert!(
        error.contains("no preset is called `llama-5`; there are llama-3.3-70b-h200"),
        "{error}"
    );
    let error = refused(Given::default());
    assert!(
        error.contains("parameters is missing: give it, or name a model"),
        "{error}"
    );
    let error = refused(Given {
        active_parameters: Some(80_000_000_000),
        ..reference()
    });
    assert!(error.contains("must not be above parameters"), "{error}");
}

#[test]
fn a_hottest_prefix_below_the_mean_is_refused() {
    let with = |prefixes, hot_share| {
        let given = Given {
            prefixes,
            hot_share,
            ..reference()
        };
        resolve(given, None, None)
    };
    for (prefixes, hot) in [(Some(200), 0.0001), (Some(1), 0.5), (None, 0.0001)] {
        let error = with(prefixes, Some(hot)).unwrap_err().to_string();
        assert!(
            error.contains("must be at least 1 / prefixes"),
            "{prefixes:?}, {hot}: {error}"
        );
    }
    for (prefixes, hot) in [(200, 0.005), (3, 0.33), (1, 1.0), (200, 0.1)] {
        let resolved = with(Some(prefixes), Some(hot)).unwrap();
        assert_eq!(resolved.inputs.hot_share, Some(hot));
    }
    // The preset's tenth is that of its own 200 prefixes.
    assert_eq!(with(Some(4), None).unwrap().inputs.hot_share, Some(0.25));
    assert_eq!(with(None, None).unwrap().inputs.hot_share, Some(0.1));
}

#[test]
fn a_model_too_large_to_be_one_is_refused_where_its_precision_would_be_told() {
    let given = Given {
        gpu: Some("h200".to_owned()),
        parameters: Some(u64::MAX),
        weight_bytes: Some(1_000_000),
        ..Given::default()
    };
    let error = resolve(given.clone(), None, None).unwrap_err();
    let is_field =
        |error| matches!(error, InputsError::OutOfBounds { field, .. } if field == "parameters");
    assert!(is_field(error));
    assert!(is_field(
        resolve(Given::default(), None, Some(given)).unwrap_err()
    ));
}

#[test]
fn a_file_with_an_unknown_key_or_a_bad_value_says_where() {
    let error = crate::yaml::read::<Given>("rate: 4\nreplicas: 3\n").unwrap_err();
    assert!(error.problem.contains("replicas"), "{error:?}");
    assert_eq!(error.line, 2);
    let error = crate::yaml::read::<Inputs>("rate: .nan\n").unwrap_err();
    assert!(error.problem.contains("rate must be between"), "{error:?}");
    let missing = crate::plan::given::read_file(std::path::Path::new("no/such.yaml")).unwrap_err();
    assert!(missing.to_string().contains("no/such.yaml"));
}

#[test]
fn a_replica_that_cannot_hold_the_batch_says_what_would_fit() {
    let sums = |given: Given| Sums::of(&inputs_of(given));
    let one = Given {
        tensor_parallel: Some(1),
        ..reference()
    };
    // 126.72 GB less the weights are 171,407 tokens: 76 requests of 2,150 beside 6,000.
    assert!(sums(one.clone()).is_ok());
    let error = sums(Given {
        decode_batch: Some(100),
        ..one.clone()
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("lower it to at most 76"),
        "{error}"
    );
    let small = Given {
        gpu_memory_gb: Some(60.0),
        ..one
    };
    assert!(matches!(sums(small), Err(SumsError::Weights { .. })));
}

#[test]
fn the_engine_has_the_plans_constants() {
    let inputs = Inputs::preset(REFERENCE).unwrap();
    let sums = Sums::of(&inputs).unwrap();
    let engine = inputs.engine(BlockSize::DEFAULT, 8192, 256);
    assert_eq!(engine.blocks, 558_124 / 16 + 1);
    assert_eq!(engine.max_model_len, 558_124 / 16 * 16);
    let prefill = engine.prefill_per_token.as_secs_f64();
    // A duration has whole nanoseconds.
    assert!((prefill - sums.prefill_per_token_s).abs() <= 1e-9);
    let context_ns = 64.0 * 8150.0 * engine.decode_ns_per_context_token;
    let step = engine.decode_per_step.as_secs_f64() + context_ns / 1e9;
    assert!((step - sums.decode_step_s).abs() < 1e-8, "{step}");
    assert!(crate::engine::model::Model::new(engine).is_ok());
}

fn recorded_with(trace: &std::path::Path, flags: &[&str]) -> Option<crate::plan::Recorded> {
    use clap::{Args as _, FromArgMatches as _};
    let command = crate::plan::Args::augment_args(clap::Command::new("plan"));
    let words = ["plan", "--trace", trace.to_str().unwrap()];
    let matches = command.get_matches_from(words.iter().chain(flags));
    let args = crate::plan::Args::from_arg_matches(&matches).unwrap();
    crate::plan::recorded(&args.trace, args.seed).unwrap()
}

fn recorded_from(trace: &std::path::Path) -> Option<crate::plan::Recorded> {
    recorded_with(trace, &[])
}

fn planned_from(trace: &std::path::Path) -> String {
    planned(reference(), None, recorded_from(trace).as_ref(), false).unwrap()
}

#[test]
fn a_trace_takes_the_place_of_assumptions_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    // Two prefixes of 4 blocks, each request with one block of its own.
    let rows: String = (0..100)
        .map(|n| {
            let prefix = (n % 2) * 10;
            format!(
                "{{\"timestamp\": {}, \"input_length\": 2560, \"output_length\": 50, \"hash_ids\": [{}, {}, {}, {}, {}]}}\n",
                n * 250, prefix, prefix + 1, prefix + 2, prefix + 3, 100 + n
            )
        })
        .collect();
    std::fs::write(&path, rows).unwrap();
    let text = planned_from(&path);
    let line = |what: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(what));
        line.unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("rate "), "rate 4 a second trace");
    assert_eq!(line("shared_tokens"), "shared_tokens 2,048 tokens trace");
    assert_eq!(line("prefixes "), "prefixes 2 trace");
    assert_eq!(line("warm_share"), "warm_share 0.98 trace");
    assert_eq!(
        line("utilisation"),
        format!("utilisation 0.65 preset {REFERENCE}")
    );
    assert!(text.contains("Measured in the trace"), "{text}");
    assert!(text.contains("of 100 requests"), "{text}");
}

/// Conversations of ten turns of which few are held at the same time: as a set they are many pools.
fn conversations() -> String {
    let mut rows = String::new();
    for group in 0..100_u64 {
        for turn in 1..=10_u64 {
            for chat in 0..10_u64 {
                let name = (group * 10 + chat) * 100;
                let hash_ids: Vec<u64> = (0..turn * 4).map(|block| name + block).collect();
                let at = ((group * 10 + turn) * 10 + chat) * 50;
                let row = serde_json::json!({
                    "timestamp": at, "input_length": hash_ids.len() * 512, "output_length": 40, "hash_ids": hash_ids,
                });
                rows.push_str(&format!("{row}\n"));
            }
        }
    }
    rows
}

#[test]
fn conversations_are_judged_by_how_soon_their_turns_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, conversations()).unwrap();
    let recorded = recorded_from(&path).unwrap();
    let json = |flags: Given| -> serde_json::Value {
        let text = planned(flags, None, Some(&recorded), true).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let share = |plan: &serde_json::Value, fleet: &str| {
        let figure = |of: &str, name: &str| plan[of][name].as_f64().unwrap();
        let of_prompt = figure("inputs", "shared_tokens") / figure("inputs", "prompt_tokens");
        plan["sums"][fleet]["warm_share"].as_f64().unwrap() * of_prompt
    };
    let measured = json(reference());
    let ever = measured["measured"]["shared_share"].as_f64().unwrap();
    assert!(
        (share(&measured, "affinity") - ever).abs() < 1e-9,
        "all is kept"
    );
    let replicas = measured["sums"]["chance"]["replicas"].as_f64().unwrap();
    let chance = share(&measured, "chance");
    assert!(chance < 0.5 * ever, "{chance} of {ever} on {replicas}");
    assert_eq!(measured["verdict"]["choice"], "affinity");
    let fleets = measured["found"]["fleets"].as_array().unwrap();
    assert!((fleets[0]["together"].as_f64().unwrap() - ever).abs() < 1e-9);

    // Another rate is the same order; other prefixes are a load that nobody recorded.
    let faster = json(Given {
        rate: Some(100.0),
        ..reference()
    });
    assert_eq!(faster["found"]["fleets"][0], measured["found"]["fleets"][0]);
    let other = Given {
        prefixes: Some(20_000),
        ..reference()
    };
    let assumed = json(other.clone());
    assert!(assumed["found"].is_null());
    assert!(
        share(&assumed, "affinity") < 0.5 * ever,
        "independent requests come back late"
    );
    let text = planned(other, None, Some(&recorded), false).unwrap();
    assert!(text.contains("as if requests came independently"), "{text}");
}

#[test]
fn a_trace_in_which_nothing_is_shared_has_no_hottest_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let row = r#"{"timestamp": 0, "input_length": 1024, "output_length": 40, "hash_ids": [1, 2]}"#;
    std::fs::write(&path, format!("{row}\n")).unwrap();
    let text = planned_from(&path);
    for absent in [
        "hottest ",
        "their length",
        "owners",
        "hot prefix",
        "hot_share",
    ] {
        assert!(!text.contains(absent), "{absent} is in\n{text}");
    }
    let recorded = recorded_from(&path);
    let json = planned(reference(), None, recorded.as_ref(), true).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for (of, figure) in [
        ("measured", "hot_share"),
        ("inputs", "hot_share"),
        ("sums", "hot_rate"),
        ("sums", "hot_owners"),
    ] {
        let figures = json[of].as_object().unwrap();
        assert_eq!(
            figures.get(figure),
            Some(&serde_json::Value::Null),
            "{of}.{figure}"
        );
    }
}

#[test]
fn a_trace_of_fewer_than_twenty_requests_a_replica_is_said_to_be_too_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let said = |requests: u64| {
        let rows: String = (0..requests)
            .map(|n| {
                let (at, own) = (n * 250, 100 + n);
                format!(
                    "{{\"timestamp\": {at}, \"input_length\": 1024, \"output_length\": 40, \"hash_ids\": [1, {own}]}}\n"
                )
            })
            .collect();
        std::fs::write(&path, rows).unwrap();
        let recorded = recorded_from(&path);
        let plan = |json| planned(reference(), None, recorded.as_ref(), json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&plan(true)).unwrap();
        let replicas = json["sums"]["chance"]["replicas"].as_u64().unwrap();
        let short = plan(false).contains("the trace is too short to say");
        assert_eq!(short, requests < 20 * replicas, "{requests} on {replicas}");
        short
    };
    assert!(said(1));
    assert!(said(19));
    assert!(!said(20));
    assert!(!said(400));
}

/// Conversations of two turns, each of another length, so that a sample is known by its mean.
#[test]
fn the_sample_is_the_one_that_simulate_takes_with_the_same_seed() {
    use crate::simulate::workload::{Loop, Spec, Trace};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let mut rows = "arrival,input_tokens,output_tokens,session\n".to_owned();
    for n in 1..=60_u64 {
        let (at, tokens) = (n * 10, n * n * 16);
        rows.push_str(&format!(
            "{at},{tokens},40,{n}\n{},{},40,{n}\n",
            at + 5,
            tokens + 64
        ));
    }
    std::fs::write(&path, rows).unwrap();
    let simulated = |seed| {
        let mut trace = Trace::new(path.clone());
        trace.sessions = Some(5);
        let mut workload = Spec::Trace(trace).open(seed, Loop::Open).unwrap();
        crate::plan::measure(workload.as_mut()).measured
    };
    let planned = |flags: &[&str]| recorded_with(&path, flags).unwrap().measured;
    assert_ne!(simulated(0), simulated(1));
    assert_eq!(planned(&["--sessions", "5"]), simulated(1));
    assert_eq!(planned(&["--sessions", "5", "--seed", "0"]), simulated(0));
}

#[test]
fn the_mooncake_conversations_are_measured() {
    let Some(shared) = std::env::var_os("WARMPATH_SHARED") else {
        println!("left out: WARMPATH_SHARED does not name the shared folder");
        return;
    };
    let path = std::path::Path::new(&shared).join("data/traces/mooncake/conversation_trace.jsonl");
    let text = planned_from(&path);
    assert!(text.contains("of 12,031 requests"), "{text}");
    assert!(text.contains("Verdict"), "{text}");
    // `warmpath simulate` plays 16.8 % with least-prefill on 8 such replicas, and 6.1 % with random (docs/plan.md).
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with("8 "));
    let row: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(row, ["8", "19.2", "%", "6.2", "%"], "{text}");
}
