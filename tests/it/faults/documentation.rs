//! Does docs/cache-state.md name only tests that exist?

use std::collections::BTreeSet;
use std::path::Path;

/// Names of functions in all Rust files below a folder.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| {
                let (_, rest) = line.split_once("fn ")?;
                Some(rest.split('(').next()?.to_owned())
            });
            found.extend(names);
        }
    }
}

#[test]
fn every_trap_has_its_row_and_every_test_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for folder in ["src", "tests"] {
        functions(&root.join(folder), &mut known);
    }
    let text = std::fs::read_to_string(root.join("docs/cache-state.md")).unwrap();
    let (_, traps) = text.split_once("## Known traps").expect("the table");
    let mut numbers = Vec::new();
    for row in traps.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, _, tests] = cells[..] else {
            panic!("a row has four cells: {row}");
        };
        let Ok(number) = number.parse::<u32>() else {
            continue;
        };
        numbers.push(number);
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty() || tests == "none", "{row}");
        for name in named {
            assert!(known.contains(name), "row {number} names {name}");
        }
    }
    assert!(numbers.into_iter().eq(1..=55));
}
