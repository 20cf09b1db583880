//! What does a value of null do? Helm then drops the default, so it is either the same as empty or refused.

use serde_json::{Map, Value, json};

use super::{Helm, RELEASE, text_of, values_files};

/// Sections that are handed on as they are; without them nothing is handed on.
const HANDED_ON: [&str; 3] = ["resources", "podSecurityContext", "securityContext"];

fn is_empty(value: &Value) -> bool {
    *value == json!({}) || *value == json!([]) || *value == json!("")
}

/// The values, each empty default null and all others left out.
fn empties_as_null(values: &Map<String, Value>) -> Value {
    let nulls = values.iter().filter_map(|(key, value)| match value {
        _ if HANDED_ON.contains(&key.as_str()) => None,
        _ if is_empty(value) => Some((key.clone(), Value::Null)),
        Value::Object(section) => Some((key.clone(), empties_as_null(section))),
        _ => None,
    });
    Value::Object(nulls.collect())
}

/// That the schema requires, of each section, the values that may not be null.
fn assert_required(path: &str, values: &Map<String, Value>, schema: &Value) {
    let mut needed: Vec<&str> = values
        .iter()
        .filter(|(key, value)| !is_empty(value) && !HANDED_ON.contains(&key.as_str()))
        .map(|(key, _)| key.as_str())
        .collect();
    let listed = schema["required"].as_array();
    let listed = listed.into_iter().flatten().filter_map(Value::as_str);
    let mut listed: Vec<&str> = listed.collect();
    needed.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, needed, "required of {path:?}");
    for (key, value) in values {
        if let Value::Object(section) = value
            && !HANDED_ON.contains(&key.as_str())
        {
            assert_required(
                &format!("{path}.{key}"),
                section,
                &schema["properties"][key],
            );
        }
    }
}

#[test]
fn null_for_a_default_that_is_not_empty_is_refused_by_the_schema() {
    let values: Value = serde_yaml::from_str(&text_of("charts/warmpath/values.yaml")).unwrap();
    let schema = serde_json::from_str(&text_of("charts/warmpath/values.schema.json")).unwrap();
    assert_required("", values.as_object().unwrap(), &schema);
}

#[test]
fn null_for_an_empty_default_changes_nothing() {
    let Some(helm) = Helm::find() else { return };
    let defaults: Value = serde_yaml::from_str(&text_of("charts/warmpath/values.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nulls = folder.path().join("nulls.yaml");
    let nothing = empties_as_null(defaults.as_object().unwrap());
    std::fs::write(&nulls, nothing.to_string()).unwrap();
    let words = ["template", RELEASE, "--values", nulls.to_str().unwrap()];
    for (name, values) in values_files() {
        assert_eq!(helm.run(&words, &values), helm.template(&values), "{name}");
    }
}
