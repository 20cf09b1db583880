//! What holds for every admissible input.

use proptest::prelude::*;

use super::*;

/// Inputs within the bounds of their flags, the load over many orders of magnitude.
fn admissible() -> impl Strategy<Value = Given> {
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
        let whole = crate::plan::sums::whole;
        let prefixes = whole(10_f64.powf(load.3)).max(1);
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
            prefixes: Some(prefixes),
            skew: Some(load.4),
            tenants_with_salts: Some(load.5),
            output_tokens: Some(10_f64.powf(rest.0)),
            decode_batch: Some(rest.1),
            utilisation: Some(rest.2),
            warm_share: Some(rest.3),
            hot_share: Some(rest.4.max(1.0 / prefixes as f64)),
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
        let may_be_null = ["room_prefixes", "hot_rate", "hot_owners"].contains(&name.as_str());
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
    let verdict = judge(&resolved.inputs, &sums, false);
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
