//! Does the chart's README list every value with its default and meaning, as `values.yaml` says them?

use serde_json::Value;

use super::{file, text_of};

const BEGIN: &str = "<!-- values -->\n";
const END: &str = "<!-- end of values -->\n";

/// A value with a comment above it: its path, its default and the comment's first paragraph.
struct Row {
    path: Vec<String>,
    meaning: String,
}

/// Reads `values.yaml` line by line, since comments are no part of YAML's data.
fn rows(text: &str) -> Vec<Row> {
    let (mut rows, mut path, mut comment) = (Vec::new(), Vec::new(), Vec::new());
    // What stands deeper than a commented key belongs to its default.
    let mut described_at: Option<usize> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(words) = trimmed.strip_prefix('#') {
            comment.push(words.trim().to_owned());
            continue;
        }
        let key = trimmed
            .split_once(':')
            .filter(|(key, _)| !key.starts_with('-') && !key.contains(' '));
        let Some((key, _)) = key.filter(|_| described_at.is_none_or(|above| indent <= above))
        else {
            comment.clear();
            continue;
        };
        path.truncate(indent / 2);
        path.push(key.to_owned());
        described_at = None;
        let meaning: Vec<_> = comment
            .drain(..)
            .take_while(|line| !line.is_empty())
            .collect();
        if !meaning.is_empty() {
            described_at = Some(indent);
            rows.push(Row {
                path: path.clone(),
                meaning: meaning.join(" "),
            });
        }
    }
    rows
}

fn value_at<'a>(values: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(values, |value, key| &value[key.as_str()])
}

/// Paths of all values that are no section.
fn leaves(prefix: &[String], value: &Value, into: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                leaves(&[prefix, std::slice::from_ref(key)].concat(), value, into);
            }
        }
        _ => into.push(prefix.to_vec()),
    }
}

fn table(values: &str) -> String {
    let data: Value = serde_yaml::from_str(values).unwrap();
    let mut table = "| value | default | meaning |\n| --- | --- | --- |\n".to_owned();
    for Row { path, meaning } in rows(values) {
        let default = value_at(&data, &path).to_string();
        let row = format!(
            "| `{}` | `{default}` | {} |\n",
            path.join("."),
            meaning.replace('|', "\\|")
        );
        table.push_str(&row);
    }
    table
}

#[test]
fn every_value_has_a_comment() {
    let values = text_of("charts/warmpath/values.yaml");
    let rows = rows(&values);
    let mut all = Vec::new();
    leaves(&[], &serde_yaml::from_str(&values).unwrap(), &mut all);
    assert!(all.len() > 60, "{all:?}");
    for leaf in all {
        assert!(
            rows.iter().any(|row| leaf.starts_with(&row.path)),
            "{} has no comment",
            leaf.join(".")
        );
    }
}

#[test]
fn the_readme_lists_every_value_with_its_default() {
    let table = table(&text_of("charts/warmpath/values.yaml"));
    let page = text_of("charts/warmpath/README.md");
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (listed, after) = rest.split_once(END).unwrap();
    if std::env::var_os("WARMPATH_BLESS").is_some() {
        let page = [before, BEGIN, &table, END, after].concat();
        std::fs::write(file("charts/warmpath/README.md"), page).unwrap();
        return;
    }
    for (listed, wanted) in listed.lines().zip(table.lines()) {
        assert_eq!(listed, wanted, "WARMPATH_BLESS=1 writes the table anew");
    }
    assert_eq!(listed.lines().count(), table.lines().count());
}

#[test]
fn a_comments_first_paragraph_is_a_rows_meaning() {
    let rows = rows(
        "# One\n# line.\n#\n# Why.\na: 1\nb:\n  # Two.\n  c:\n    d: 1 # not a comment above\n    # Of d.\n    e: 2\n  f: 3\n",
    );
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.path.join("."), row.meaning.as_str()))
        .collect();
    assert_eq!(
        shown,
        [("a".to_owned(), "One line."), ("b.c".to_owned(), "Two.")]
    );
}
