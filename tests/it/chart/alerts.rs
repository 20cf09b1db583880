//! Are the alerts valid, about metrics that there are, and do they fire when they should?

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Helm, file, manifest, text_of};
use crate::support::tools::tool;

/// What the chart makes of files/alerts.yaml.
fn rules(helm: &Helm) -> Value {
    let manifests = helm.manifests(&file("tests/data/chart/locked-down.yaml"));
    manifest(&manifests, "PrometheusRule", "warm-epp")["spec"].clone()
}

/// Runs promtool in `folder`.
fn promtool(folder: &Path, words: &[&str]) -> Option<Result<(), String>> {
    let output = Command::new(tool("promtool")?)
        .current_dir(folder)
        .args(words)
        .output()
        .expect("promtool starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Some(output.status.success().then_some(()).ok_or(said))
}

#[test]
fn alerts_look_at_this_releases_pickers_and_at_metrics_that_there_are() {
    let Some(helm) = Helm::find() else { return };
    let page = text_of("docs/metrics.md");
    let mut seen = 0;
    for rule in rules(&helm)["groups"][0]["rules"].as_array().unwrap() {
        let expression = rule["expr"].as_str().unwrap();
        for rest in expression.split("warmpath_").skip(1) {
            let (name, selector) = rest.split_once('{').expect("a metric and its selector");
            let ours = selector.starts_with("namespace=\"models\",service=\"warm-epp\"");
            assert!(ours, "{expression}");
            assert!(page.contains(&format!("| `warmpath_{name}` |")), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 8, "{seen}");
}

/// An alert, series of the pickers by name, labels and values each minute, and how often it has fired after 40 minutes.
type Case = (
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
    u64,
);

const CASES: [Case; 12] = [
    ("WarmpathPickersAway", &[], 1),
    (
        "WarmpathPickersAway",
        &[("warmpath_build_info", "pod=\"a\"", "1x60")],
        0,
    ),
    (
        "WarmpathNothingReady",
        &[("warmpath_build_info", "pod=\"a\"", "1x60")],
        1,
    ),
    (
        "WarmpathNothingReady",
        &[
            ("warmpath_build_info", "pod=\"a\"", "1x60"),
            (
                "warmpath_endpoint_ready",
                "pod=\"a\",endpoint=\"x\"",
                "0x60",
            ),
            (
                "warmpath_endpoint_ready",
                "pod=\"a\",endpoint=\"y\"",
                "1x60",
            ),
        ],
        0,
    ),
    (
        "WarmpathRefusing",
        &[(
            "warmpath_rejections_total",
            "pod=\"a\",reason=\"unavailable\"",
            "0+12x60",
        )],
        1,
    ),
    (
        "WarmpathRefusing",
        &[(
            "warmpath_rejections_total",
            "pod=\"a\",reason=\"malformed\"",
            "0+12x60",
        )],
        0,
    ),
    (
        "WarmpathBypassed",
        &[(
            "warmpath_engine_finished_requests_total",
            "pod=\"a\",endpoint=\"x\"",
            "0+60x60",
        )],
        1,
    ),
    (
        "WarmpathServedElsewhere",
        &[
            (
                "warmpath_picks_total",
                "pod=\"a\",endpoint=\"x\"",
                "0+100x60",
            ),
            ("warmpath_served_elsewhere_total", "pod=\"a\"", "0+10x60"),
        ],
        1,
    ),
    (
        "WarmpathEventsIncomplete",
        &[(
            "warmpath_endpoint_feed_state",
            "pod=\"a\",endpoint=\"x\",rank=\"0\",state=\"incomplete\"",
            "1x60",
        )],
        1,
    ),
    (
        "WarmpathReportsOld",
        &[(
            "warmpath_endpoint_report_age_seconds",
            "pod=\"a\",endpoint=\"x\"",
            "0+60x60",
        )],
        1,
    ),
    (
        "WarmpathEndpointStalled",
        &[(
            "warmpath_endpoint_excluded",
            "pod=\"a\",endpoint=\"x\",guard=\"stalled\"",
            "1x60",
        )],
        1,
    ),
    (
        "WarmpathPredictionsWrong",
        &[
            (
                "warmpath_predicted_cached_tokens_total",
                "pod=\"a\",endpoint=\"x\"",
                "0+130x60",
            ),
            (
                "warmpath_reported_cached_tokens_total",
                "pod=\"a\",endpoint=\"x\"",
                "0+100x60",
            ),
        ],
        1,
    ),
];

#[test]
fn alerts_fire_when_they_should() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rules = rules(&helm);
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let fires = |case: &&Case| rule["alert"] == case.0 && case.2 > 0;
        assert_eq!(CASES.iter().filter(fires).count(), 1, "{}", rule["alert"]);
    }
    let tests: Vec<_> = CASES.iter().map(test_of).collect();
    let all = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests });
    std::fs::write(folder.path().join("rules.yaml"), rules.to_string()).unwrap();
    std::fs::write(folder.path().join("tests.yaml"), all.to_string()).unwrap();
    for words in [
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "tests.yaml"],
    ] {
        let Some(checked) = promtool(folder.path(), &words) else {
            return;
        };
        assert_eq!(checked, Ok(()));
    }
}

/// The case as promtool writes it.
fn test_of((alert, series, fired): &Case) -> Value {
    let series: Vec<_> = series
        .iter()
        .map(|(name, labels, values)| {
            let series = format!("{name}{{namespace=\"models\",service=\"warm-epp\",{labels}}}");
            json!({ "series": series, "values": values })
        })
        .collect();
    let expression =
        format!("count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}) or vector(0)");
    json!({
        "name": format!("{alert} {series:?}"),
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{ "expr": expression, "eval_time": "40m", "exp_samples": [{ "labels": "{}", "value": fired }] }],
    })
}
