//! Does `docs/metrics.md` name the metrics that there are, with their types, and no others?

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use warmpath::config::Settings;
use warmpath::metrics::Metrics;
use warmpath::routing::router::Router;

use crate::support::tools::tool;

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Names and types from the rows of the page.
fn documented() -> BTreeMap<String, String> {
    let page = file("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.trim_start_matches("| ").split(" | ");
        let mut cell = || cells.next().unwrap().trim_matches('`').to_owned();
        (cell(), cell())
    })
    .collect()
}

/// Every metric name that stands as a literal under `folder`: also those without a sample yet.
fn coded(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.append(&mut coded(&path));
            continue;
        }
        for literal in std::fs::read_to_string(&path).unwrap().split('"') {
            let is_name = literal.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            if is_name && (literal.starts_with("warmpath_") || literal.starts_with("process_")) {
                names.insert(literal.to_owned());
            }
        }
    }
    names
}

#[test]
fn every_metric_is_documented_and_every_documented_one_exists() {
    let documented: BTreeSet<String> = documented().into_keys().collect();
    let coded = coded(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics"));
    let missing: Vec<_> = coded.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&coded).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "missing in docs/metrics.md: {missing:?}; not in the code: {invented:?}"
    );
}

#[test]
fn the_documented_types_are_those_of_the_registry() {
    let metrics = Metrics::register().unwrap();
    let router = Router::new(Settings::default().router);
    metrics.register_fleet(Arc::clone(&router)).unwrap();
    let documented = documented();
    let families = metrics.registry.gather();
    assert!(families.len() > 5);
    for family in families {
        let told = format!("{:?}", family.get_field_type()).to_lowercase();
        assert_eq!(
            documented.get(family.name()),
            Some(&told),
            "{}",
            family.name()
        );
    }
}

/// Runs promtool on a file in a folder; its output, which must be a success.
fn promtool(folder: &Path, arguments: &[&str]) {
    let Some(promtool) = tool("promtool") else {
        return;
    };
    let output = std::process::Command::new(promtool)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
}

/// Series with their values, and the alerts that fire.
type Case = (Vec<(String, &'static str)>, &'static [&'static str]);

/// A rule test: these samples a minute for an hour, and which of the alerts fire at its end.
fn rule_test(series: &[(&str, &str)], firing: &[&str]) -> serde_json::Value {
    let alerts = [
        "WarmpathBypassed",
        "WarmpathPartlyBypassed",
        "WarmpathServedElsewhere",
    ];
    let page = file("docs/metrics.md");
    let expected = |alert: &&str| {
        let (_, after) = page.split_once(&format!("alert: {alert}\n")).unwrap();
        let (_, after) = after.split_once("summary: ").unwrap();
        let summary = after.lines().next().unwrap();
        let fires = json!([{ "exp_annotations": { "summary": summary } }]);
        let fires = if firing.contains(alert) {
            fires
        } else {
            json!([])
        };
        json!({ "eval_time": "1h", "alertname": alert, "exp_alerts": fires })
    };
    json!({
        "interval": "1m",
        "input_series": series.iter().map(|(series, values)| json!({ "series": series, "values": values })).collect::<Vec<_>>(),
        "alert_rule_test": alerts.iter().map(expected).collect::<Vec<_>>(),
    })
}

#[test]
fn the_documented_alerts_fire_when_engines_serve_what_no_pick_led_to_and_only_then() {
    let page = file("docs/metrics.md");
    let (_, rules) = page.split_once("```yaml\n").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    promtool(folder.path(), &["check", "rules", "rules.yaml"]);

    let finished = |replica, endpoint| {
        format!(
            "warmpath_engine_finished_requests_total{{pod=\"{replica}\",endpoint=\"{endpoint}\"}}"
        )
    };
    let picks = |replica, endpoint| {
        format!("warmpath_picks_total{{pod=\"{replica}\",endpoint=\"{endpoint}\"}}")
    };
    let [a1, a2, b1, b2] = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")];
    // Two replicas watch two engines; each of these is a rise a minute.
    let watched = |rise: &'static str| {
        [a1, a2, b1, b2].map(|(pod, endpoint)| (finished(pod, endpoint), rise))
    };
    let picked =
        |rise: &'static str| [a1, a2, b1, b2].map(|(pod, endpoint)| (picks(pod, endpoint), rise));
    let elsewhere = |rise: &'static str| {
        [(
            "warmpath_served_elsewhere_total{pod=\"a\"}".to_owned(),
            rise,
        )]
    };
    let cases: [Case; 6] = [
        // Each engine finishes 20, half of them picked by each replica.
        ([watched("0+20x60"), picked("0+10x60")].concat(), &[]),
        // Nobody was ever picked for: there is no series at all.
        (watched("0+20x60").into(), &["WarmpathBypassed"]),
        (
            [watched("0+20x60"), picked("500+0x60")].concat(),
            &["WarmpathBypassed", "WarmpathPartlyBypassed"],
        ),
        // A third goes past.
        (
            [watched("0+30x60"), picked("0+10x60")].concat(),
            &["WarmpathPartlyBypassed"],
        ),
        // Nothing happens at all.
        ([watched("7+0x60"), picked("7+0x60")].concat(), &[]),
        (
            [
                &watched("0+20x60")[..],
                &picked("0+10x60"),
                &elsewhere("0+10x60"),
            ]
            .concat(),
            &["WarmpathServedElsewhere"],
        ),
    ];
    let tests: Vec<_> = cases
        .iter()
        .map(|(series, firing)| {
            let series: Vec<_> = series
                .iter()
                .map(|(name, values)| (name.as_str(), *values))
                .collect();
            rule_test(&series, firing)
        })
        .collect();
    let file = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests });
    std::fs::write(folder.path().join("tests.yaml"), file.to_string()).unwrap();
    promtool(folder.path(), &["test", "rules", "tests.yaml"]);
}
