//! The reference case, the verdicts, what is refused, and what holds for every admissible input.

use proptest::prelude::*;

use super::inputs::{Given, Inputs, InputsError, resolve};
use super::sums::{Sums, SumsError};
use super::verdict::{Choice, judge};
use super::{planned, presets};
use crate::routing::block::BlockSize;

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

fn inputs(given: Given) -> Inputs {
    resolve(given, None, None).unwrap().inputs
}

fn choice(given: Given) -> (Choice, String) {
    let inputs = inputs(given);
    let verdict = judge(&inputs, &Sums::of(&inputs).unwrap());
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
        ("hot /s", format!("{:.0}", sums.hot_rate), "4"),
        ("owners", format!("{:.1}", sums.hot_owners), "1.8"),
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
    assert_eq!(from("mfu"), "assumed");
    assert_eq!(from("kv_bytes_per_token"), "worked out");
}

#[test]
fn least_queued_tokens_when_little_is_shared() {
    let little = Given {
        shared_tokens: Some(800.0),
        ..reference()
    };
    let (choice_, why) = choice(little);
    assert_eq!(choice_, Choice::LeastQueuedTokens);
    assert!(why.contains("under about a fifth"), "{why}");
    let nothing = Given {
        shared_tokens: Some(0.0),
        ..reference()
    };
    assert_eq!(choice(nothing).0, Choice::LeastQueuedTokens);
    let seldom = Given {
        warm_share: Some(0.1),
        ..reference()
    };
    assert_eq!(choice(seldom).0, Choice::LeastQueuedTokens);
}

#[test]
fn indifferent_when_the_whole_set_fits_in_every_pool() {
    for prefixes in [1, 20, 70] {
        let (choice, why) = choice(Given {
            prefixes: Some(prefixes),
            ..reference()
        });
        assert_eq!(choice, Choice::Indifferent, "{prefixes}: {why}");
        assert!(why.contains("fits in every pool"), "{why}");
    }
    let (choice, _) = choice(Given {
        prefixes: Some(71),
        ..reference()
    });
    assert_eq!(choice, Choice::Affinity);
}

#[test]
fn a_set_that_only_just_fits_comes_with_a_warning() {
    let (_, ample) = choice(Given {
        prefixes: Some(10),
        ..reference()
    });
    assert!(!ample.contains("only just"), "{ample}");
    let (_, tight) = choice(Given {
        prefixes: Some(65),
        ..reference()
    });
    assert!(tight.contains("only just"), "{tight}");
}

#[test]
fn indifferent_when_decoding_is_what_costs() {
    let reasoning = Given {
        prompt_tokens: Some(1250.0),
        shared_tokens: Some(1000.0),
        prefixes: Some(2000),
        output_tokens: Some(8000.0),
        ..reference()
    };
    let (choice, why) = choice(reasoning);
    assert_eq!(choice, Choice::Indifferent, "{why}");
    assert!(why.contains("decoding"), "{why}");
}

#[test]
fn sessions_too_large_for_all_pools_together_are_told_and_count_less() {
    let sessions = |prefixes| Given {
        prompt_tokens: Some(40_000.0),
        shared_tokens: Some(36_000.0),
        prefixes: Some(prefixes),
        ..reference()
    };
    let some = inputs(sessions(2_000));
    let many = Sums::of(&inputs(sessions(1_000_000))).unwrap();
    let few = Sums::of(&some).unwrap();
    assert!(few.affinity.warm_share < some.warm_share);
    assert!(many.affinity.warm_share < few.affinity.warm_share);
    let (verdict, why) = choice(sessions(1_000_000));
    assert_eq!(verdict, Choice::LeastQueuedTokens, "{why}");
    assert!(why.contains("too large for all pools together"), "{why}");
}

#[test]
fn tenants_with_salts_multiply_the_copies() {
    let one = Given {
        prefixes: Some(20),
        ..reference()
    };
    assert_eq!(choice(one.clone()).0, Choice::Indifferent);
    let salted = Given {
        tenants_with_salts: Some(10),
        ..one
    };
    let sums = Sums::of(&inputs(salted.clone())).unwrap();
    assert_eq!(sums.prefix_copies, 200);
    assert_eq!(sums.set_tokens, 1_200_000.0);
    let (choice, why) = choice(salted);
    assert_eq!(choice, Choice::Affinity);
    assert!(why.contains("200 copies"), "{why}");
}

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
    let deepseek = inputs(preset("deepseek-v3-h200"));
    assert_eq!(deepseek.tensor_parallel, 8);
    assert_eq!(super::sums::kv_bytes_held(&deepseek), 8.0 * 70_272.0);
    // Eight KV heads on two GPUs are split, on sixteen held twice.
    let llama = |gpus| {
        inputs(Given {
            tensor_parallel: Some(gpus),
            ..reference()
        })
    };
    assert_eq!(super::sums::kv_bytes_held(&llama(2)), 327_680.0);
    assert_eq!(super::sums::kv_bytes_held(&llama(16)), 655_360.0);
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
    assert_eq!(inputs(fp8_kv).kv_bytes_per_token, 163_840.0);
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
fn a_file_with_an_unknown_key_or_a_bad_value_says_where() {
    let error = crate::yaml::read::<Given>("rate: 4\nreplicas: 3\n").unwrap_err();
    assert!(error.problem.contains("replicas"), "{error:?}");
    assert_eq!(error.line, 2);
    let error = crate::yaml::read::<Inputs>("rate: .nan\n").unwrap_err();
    assert!(error.problem.contains("rate must be between"), "{error:?}");
    let missing = super::inputs::read_file(std::path::Path::new("no/such.yaml")).unwrap_err();
    assert!(missing.to_string().contains("no/such.yaml"));
}

#[test]
fn a_replica_that_cannot_hold_the_batch_says_what_would_fit() {
    let sums = |given: Given| Sums::of(&inputs(given));
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
    assert!(crate::engine::model::Engine::new(engine).is_ok());
}

/// Inputs within the bounds of their flags, the load over many orders of magnitude.
fn admissible() -> impl Strategy<Value = Given> {
    let figures = crate::plan::presets::assumed().figures();
    assert!(!figures.is_empty());
    let model = (1e6..1e14_f64, 0.25..4.0_f64, 1.0..1e9_f64, 1_u64..1024);
    let gpu = (
        1.0..1e5_f64,
        0.01..=1.0_f64,
        0.1..1e6_f64,
        0.001..1e4_f64,
        0.001..=1.0_f64,
    );
    let load = (
        -6.0..7.0_f64,
        0.0..8.0_f64,
        0.0..1.0_f64,
        0.0..9.0_f64,
        0.0..=5.0_f64,
        0_u64..1_000_000,
    );
    let rest = (
        0.0..7.0_f64,
        1_u64..65_536,
        0.01..=1.0_f64,
        0.0..=1.0_f64,
        1e-9..=1.0_f64,
        proptest::option::of(0.0..1e6_f64),
    );
    (model, gpu, load, rest).prop_map(|(model, gpu, load, rest)| {
        let prompt = 10_f64.powf(load.1).max(1.0);
        let whole = super::sums::whole;
        Given {
            parameters: Some(whole(model.0)),
            weight_bytes: Some(whole(model.0 * model.1)),
            kv_bytes_per_token: Some(model.2),
            tensor_parallel: Some(model.3),
            gpu_memory_gb: Some(gpu.0),
            memory_fraction: Some(gpu.1),
            tflops: Some(gpu.2),
            bandwidth_tb_per_s: Some(gpu.3),
            mbu: Some(gpu.4),
            rate: Some(10_f64.powf(load.0)),
            prompt_tokens: Some(prompt),
            shared_tokens: Some(prompt * load.2 * 0.999),
            prefixes: Some(whole(10_f64.powf(load.3)).max(1)),
            skew: Some(load.4),
            tenants_with_salts: Some(load.5),
            output_tokens: Some(10_f64.powf(rest.0)),
            decode_batch: Some(rest.1),
            utilisation: Some(rest.2),
            warm_share: Some(rest.3),
            hot_share: Some(rest.4),
            price_per_gpu_hour: rest.5,
            ..Given::default()
        }
    })
}

/// Loads around the reference, which nearly always fit.
fn usual() -> impl Strategy<Value = Given> {
    (
        0.1..1000.0_f64,
        100.0..8000.0_f64,
        0.0..0.99_f64,
        1_u64..100_000,
        0.0..2.0_f64,
        0.0..=1.0_f64,
        1_u64..20,
    )
        .prop_map(|(rate, prompt, part, prefixes, skew, warm, salts)| Given {
            rate: Some(rate),
            prompt_tokens: Some(prompt),
            shared_tokens: Some(prompt * part),
            prefixes: Some(prefixes),
            skew: Some(skew),
            warm_share: Some(warm),
            tenants_with_salts: Some(salts),
            decode_batch: Some(32),
            ..reference()
        })
}

fn no_number_is_lost(given: Given) -> Result<(), TestCaseError> {
    let Ok(resolved) = resolve(given, None, None) else {
        return Ok(());
    };
    let Ok(sums) = Sums::of(&resolved.inputs) else {
        return Ok(());
    };
    // JSON has no NaN and no infinity: they would be null where a number belongs.
    let figures = serde_json::to_value(&sums).unwrap();
    for (name, value) in figures.as_object().unwrap() {
        let may_be_null = name == "room_prefixes";
        prop_assert!(may_be_null || !value.is_null(), "{name}");
        prop_assert!(
            value.as_f64().is_none_or(|value| value >= 0.0),
            "{name}: {value}"
        );
    }
    for fleet in [sums.cold, sums.chance, sums.affinity] {
        prop_assert!(fleet.load.is_finite() && fleet.load > 0.0);
        prop_assert!(fleet.dollars_per_million_output.is_none_or(f64::is_finite));
        prop_assert!((0.0..=1.0).contains(&fleet.warm_share));
    }
    prop_assert!(sums.affinity.replicas <= sums.chance.replicas);
    prop_assert!(sums.chance.replicas <= sums.cold.replicas);
    let verdict = judge(&resolved.inputs, &sums);
    prop_assert_eq!(verdict.reasons.len(), 1);
    prop_assert!(!verdict.reasons[0].contains("NaN") && !verdict.reasons[0].contains("inf "));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_admissible_input_makes_a_figure_that_is_none(given in admissible()) {
        no_number_is_lost(given)?;
    }

    #[test]
    fn affinity_never_needs_more_replicas(given in usual()) {
        prop_assert!(resolve(given.clone(), None, None).is_ok());
        no_number_is_lost(given)?;
    }
}
