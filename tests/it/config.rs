//! The settings file: what is refused and with which words, and that the documentation tells the truth.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use warmpath::config::Settings;
use warmpath::extproc::exchange::BodyMode;
use warmpath::routing::router::Policy;
use warmpath::tokens::ModelSource;

fn parse(text: &str) -> Result<Settings, String> {
    Settings::parse(text, Path::new("w.yaml")).map_err(|error| error.to_string())
}

#[test]
fn refusals_name_line_column_and_what_was_expected() {
    let cases = [
        (
            "guards:\n  report_age_limit: 500\n",
            "w.yaml:2:21: `500` is not a duration",
        ),
        (
            "guards:\n  report_age_limit: 0s\n",
            "w.yaml:2:21: `0s` is not a duration above zero",
        ),
        (
            "guards:\n  kv_usage_limit: 95\n",
            "w.yaml:2:19: `95` is not a share above 0 and at most 1",
        ),
        (
            "guards:\n  kv_limit: 0.9\n",
            "w.yaml:2:3: unknown field `kv_limit`, expected",
        ),
        (
            "\n\npolcy: least-prefill\n",
            "w.yaml:3:1: unknown field `polcy`, expected one of policy, alternates",
        ),
        (
            "policy: round-robin\n",
            "w.yaml:1:9: unknown variant `round-robin`, expected",
        ),
        (
            "limits:\n  max_body: 32MB\n",
            "w.yaml:2:13: `32MB` is not a size",
        ),
        (
            "limits: {max_exchanges: 0}\n",
            "w.yaml:1:25: `0` is not a whole number from 1 to",
        ),
        (
            "kv_events:\n  live_port: 70000\n",
            "w.yaml:2:14: `70000` is not a whole number from 1 to 65535",
        ),
        (
            "reports:\n  path: metrics\n",
            "w.yaml:2:9: `metrics` is not a URL path",
        ),
        (
            "tokenizers:\n  hub: perhaps\n",
            "w.yaml:2:8: `perhaps` is not `true` or `false`",
        ),
        (
            "tokenizers:\n  models: {m: {dir: /x}}\n",
            "unknown variant `dir`, expected one of directory, hub",
        ),
        (
            "tokenizers:\n  bytes_per_token: -1\n",
            "w.yaml:2:20: `-1` is not a number above zero",
        ),
        (
            "alternates: 1\nalternates: 2\n",
            "w.yaml:2:1: duplicate mapping key",
        ),
        ("policy: [\n", "w.yaml:1:"),
        (
            "- policy\n",
            "w.yaml:1:1: keys with values are expected here",
        ),
        (
            "guards:\n",
            "w.yaml:1:7: keys with values are expected here",
        ),
        ("policy: least-prefill\n---\npolicy: x\n", "w.yaml:3:1: "),
    ];
    for (text, expected) in cases {
        let refusal = parse(text).expect_err(text);
        assert!(refusal.starts_with("w.yaml:"), "{refusal}");
        assert!(refusal.contains(expected), "{text:?}: {refusal}");
    }
}

#[test]
fn every_key_reaches_its_setting() {
    let settings = parse(
        "policy: least-queued\nalternates: 2\ndecisions: 10\ndefault_body_mode: buffered\n\
         guards: {kv_usage_limit: 0.9, report_age_limit: 1s}\n\
         reports: {path: /prometheus/metrics, idle_interval: 10s}\n\
         kv_events: {live_port: 1, replay_port: 2, replay_timeout: 3s, guess_timeout: 4s, max_orphans: 5}\n\
         tokenizers:\n  models: {a: {directory: /m}, b: {hub: org/b@main}}\n  directory: /d\n  hub: false\n\
         \x20 cache_directory: /c\n  cache_size: 1MiB\n  engine_timeout: 6s\n  engine_concurrency: 7\n  bytes_per_token: 3.5\n  canary_interval: 0s\n\
         limits: {max_body: 1KiB, max_exchanges: 8, max_buffered: 2KiB, pick_timeout: 9s, body_timeout: 10s}\n",
    )
    .unwrap();
    assert_eq!(settings.router.policy, Policy::LeastQueued);
    assert_eq!((settings.alternates, settings.decisions), (2, 10));
    assert_eq!(settings.router.report_age_limit, Duration::from_secs(1));
    assert!(settings.router.idle_report_age_limit > 3 * Duration::from_secs(10));
    assert_eq!(settings.reports.path, "/prometheus/metrics");
    assert_eq!(settings.kv_events.max_orphans, 5);
    assert_eq!(settings.kv_events.replay_timeout, Duration::from_secs(3));
    assert_eq!(
        settings.tokens.models["a"],
        ModelSource::Directory("/m".into())
    );
    assert_eq!(
        settings.tokens.models["b"],
        ModelSource::Hub("org/b@main".to_owned())
    );
    assert!(!settings.tokens.hub);
    assert_eq!(
        (
            settings.tokens.cache_bytes,
            settings.tokens.engine_concurrency
        ),
        (1 << 20, 7)
    );
    assert_eq!(settings.tokens.canary_interval, Duration::ZERO);
    assert_eq!(settings.wire.default_body_mode, BodyMode::Buffered);
    assert_eq!(
        (settings.wire.max_body_bytes, settings.wire.max_exchanges),
        (1024, 8)
    );
    assert_eq!(settings.wire.body_timeout, Duration::from_secs(10));
}

#[test]
fn without_a_file_and_with_an_empty_one_the_defaults_hold() {
    let defaults = Settings::load(None).unwrap();
    assert_eq!(parse("").unwrap().summary, defaults.summary);
    assert_eq!(parse("# nothing\n").unwrap().summary, defaults.summary);
    assert_eq!(defaults.router.report_age_limit, Duration::from_millis(500));
}

#[test]
fn a_missing_settings_file_is_named() {
    let error = Settings::load(Some(Path::new("/no/such/w.yaml"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the settings file /no/such/w.yaml"
    );
}

/// Dotted keys with their values as the documentation writes them. Maps that are empty count as one key.
fn flatten(prefix: &str, value: &serde_json::Value, into: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{key}"), value, into);
            }
        }
        serde_json::Value::String(text) => {
            into.insert(prefix.to_owned(), text.clone());
        }
        other => {
            into.insert(prefix.to_owned(), other.to_string());
        }
    }
}

#[test]
fn the_documented_keys_and_defaults_are_the_codes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut documented = BTreeMap::new();
    for row in page
        .lines()
        .filter(|line| line.starts_with("| `") && !line.starts_with("| `--"))
    {
        let cells: Vec<&str> = row.split(" | ").collect();
        let code = |cell: &str| cell.trim_matches(['|', ' ', '`']).to_owned();
        assert!(
            cells.len() == 4 && cells[3].len() > 10,
            "a row needs key, default, unit, meaning: {row}"
        );
        documented.insert(code(cells[0]), code(cells[1]));
    }
    let mut coded = BTreeMap::new();
    flatten("", &Settings::default().summary, &mut coded);
    assert_eq!(documented, coded);
}

#[test]
fn the_documented_example_is_valid() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut examples = page
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    parse(examples.next().unwrap()).unwrap();
    let pool = warmpath::feeds::static_file::parse(examples.next().unwrap(), Path::new("e"));
    assert_eq!(pool.unwrap().members().len(), 1);
}
