//! What is rendered for each values file, to the letter.
//!
//! After a wanted change `WARMPATH_BLESS=1 make test TEST_FLAGS="--test it chart::"` writes the files anew; the diff
//! shows what users get.

use super::{Helm, file, values_files};

/// Compares with the file `name`, or writes it when that is asked for.
fn is_golden(name: &str, text: &str) {
    let path = file("tests/data/chart/golden").join(name);
    if std::env::var_os("WARMPATH_BLESS").is_some() {
        std::fs::write(&path, text).expect("a golden file");
        return;
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; WARMPATH_BLESS=1 writes it", path.display()));
    let same = text.lines().zip(golden.lines());
    let same = same.take_while(|(now, then)| now == then).count();
    assert!(
        text == golden,
        "{name} differs from line {} on; WARMPATH_BLESS=1 writes it anew",
        same + 1
    );
}

#[test]
fn each_values_file_renders_what_is_recorded() {
    let Some(helm) = Helm::find() else { return };
    for (name, values) in values_files() {
        let manifests = helm
            .template(&values)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        is_golden(&format!("{name}.yaml"), &manifests);
        is_golden(&format!("{name}.notes"), &helm.notes(&values));
    }
}

#[test]
fn nothing_is_recorded_for_values_that_are_gone() {
    let names: Vec<_> = values_files().into_iter().map(|(name, _)| name).collect();
    for entry in std::fs::read_dir(file("tests/data/chart/golden")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(names.contains(&name), "{}", path.display());
    }
}

#[test]
fn the_linter_finds_nothing() {
    let Some(helm) = Helm::find() else { return };
    for (name, values) in values_files() {
        if let Err(error) = helm.run(&["lint", "--strict", "--quiet"], &values) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn values_of_gies_chart_without_a_meaning_are_named() {
    let Some(helm) = Helm::find() else { return };
    let notes = helm.notes(&file("tests/data/chart/gie.yaml"));
    let (_, named) = notes.split_once("have no meaning here").unwrap();
    for key in [
        "inferenceExtension.pluginsConfigFile:",
        "inferenceExtension.sidecar:",
        "inferenceExtension.tracing:",
        "inferenceExtension.latencyPredictor:",
        "inferenceExtension.metricsDataSource.scheme:",
        "inferenceExtension.metricsDataSource.insecureSkipVerify:",
        "inferencePool.parser:",
        "inferenceObjectives:",
    ] {
        assert!(named.contains(key), "{key} is not named in {named}");
    }
    let plain = helm.notes(&file("tests/data/chart/default.yaml"));
    assert!(!plain.contains("no meaning"), "{plain}");
}

#[test]
fn the_notes_tell_the_engines_flags_as_valid_json() {
    let Some(helm) = Helm::find() else { return };
    let notes = helm.notes(&file("tests/data/chart/default.yaml"));
    assert!(notes.contains("--enable-prompt-tokens-details"));
    let (_, rest) = notes.split_once("--kv-events-config '").unwrap();
    let (config, _) = rest.split_once('\'').unwrap();
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    // The ports that the picker looks at when an engine does not tell its own.
    let defaults = warmpath::config::Settings::default().kv_events;
    assert_eq!(
        config["endpoint"],
        format!("tcp://*:{}", defaults.live_port)
    );
    assert_eq!(
        config["replay_endpoint"],
        format!("tcp://*:{}", defaults.replay_port)
    );
    assert_eq!(config["enable_kv_cache_events"], true);
    assert_eq!(config["publisher"], "zmq");
}
