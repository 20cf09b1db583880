//! Does the chart agree with the program: flags, settings, versions, times?

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use clap::Parser as _;
use serde_json::Value;
use warmpath::args::{self, Args};
use warmpath::config::Settings;

use super::{Helm, NAMESPACE, manifest, pickers, text_of, values_files};

/// The command line of the pickers, as the image's entry point completes it.
fn serve(manifests: &[Value]) -> args::Serve {
    let container = &pickers(manifests)["spec"]["template"]["spec"]["containers"][0];
    let flags = container["args"].as_array().expect("arguments");
    let flags = flags.iter().map(|flag| flag.as_str().expect("a string"));
    let line: Vec<_> = ["warmpath", "serve"].into_iter().chain(flags).collect();
    let args = Args::try_parse_from(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    match args.command {
        args::Command::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_program_takes_every_rendered_command_line() {
    let Some(helm) = Helm::find() else { return };
    for (name, values) in values_files() {
        let serve = serve(&helm.manifests(&values));
        assert_eq!(
            serve.discovery.pool_namespace.as_deref(),
            Some(NAMESPACE),
            "{name}"
        );
        let by_pool = serve.discovery.pool_name.is_some();
        assert_ne!(by_pool, name.starts_with("standalone"), "{name}");
        assert!(
            serve.config.is_some_and(|path| path.is_absolute()),
            "{name}"
        );
    }
}

#[test]
fn the_kubelet_waits_longer_than_a_picker_drains() {
    let Some(helm) = Helm::find() else { return };
    for (name, values) in values_files() {
        let manifests = helm.manifests(&values);
        let serve = serve(&manifests);
        let grace =
            &pickers(&manifests)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
        let grace = Duration::from_secs(grace.as_u64().unwrap());
        let drains = serve.drain_delay.0 + serve.drain_timeout.0;
        assert!(grace >= drains + Duration::from_secs(10), "{name}");
        assert!(grace < drains + Duration::from_secs(12), "{name}");
    }
}

#[test]
fn the_program_reads_every_rendered_settings_file() {
    let Some(helm) = Helm::find() else { return };
    for (name, values) in values_files() {
        let manifests = helm.manifests(&values);
        let map = &pickers(&manifests)["metadata"]["name"];
        let map = manifest(&manifests, "ConfigMap", map.as_str().unwrap());
        let text = map["data"]["warmpath.yaml"].as_str().unwrap();
        let settings = Settings::parse(text, Path::new(&name)).unwrap();
        if name == "claim" {
            assert!(!settings.tokens.hub, "{text}");
            assert_eq!(settings.kv_events.max_orphans, 10_000_000, "{text}");
            assert_eq!(settings.reports.path, "/prometheus/metrics", "{text}");
        }
    }
}

/// Dotted keys of the settings file as the program knows them.
fn keys_of(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                keys_of(&format!("{prefix}.{key}"), value, into);
            }
        }
        _ => {
            into.insert(prefix.to_owned());
        }
    }
}

/// The same as the schema lists them.
fn keys_of_schema(prefix: &str, schema: &Value, into: &mut BTreeSet<String>) {
    let Some(fields) = schema["properties"].as_object() else {
        into.insert(prefix.to_owned());
        return;
    };
    for (key, schema) in fields {
        keys_of_schema(&format!("{prefix}.{key}"), schema, into);
    }
}

#[test]
fn the_schema_knows_the_settings_that_there_are() {
    let schema: Value =
        serde_json::from_str(&text_of("charts/warmpath/values.schema.json")).unwrap();
    let (mut listed, mut known) = (BTreeSet::new(), BTreeSet::new());
    keys_of_schema("settings", &schema["properties"]["settings"], &mut listed);
    keys_of("settings", &Settings::default().summary, &mut known);
    assert_eq!(listed, known);
}

#[test]
fn versions_are_those_of_the_program_and_of_the_tested_envoy() {
    let chart: Value = serde_yaml::from_str(&text_of("charts/warmpath/Chart.yaml")).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let values: Value = serde_yaml::from_str(&text_of("charts/warmpath/values.yaml")).unwrap();
    let tools = text_of("scripts/tools.sh");
    let (_, rest) = tools.split_once("\nENVOY_VERSION=").unwrap();
    let version = rest.split_whitespace().next().unwrap();
    let tag = &values["standalone"]["image"]["tag"];
    assert_eq!(*tag, format!("distroless-v{version}"));
}
