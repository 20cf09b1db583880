//! Does `docs/metrics.md` name the metrics that there are, with their types, and no others?

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use warmpath::config::Settings;
use warmpath::metrics::Metrics;
use warmpath::routing::router::Router;

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
