//! Which names does a release give, and which releases are refused for the names that they would give?

use serde_json::Value;

use super::{Helm, file, pickers};

/// The name of the Deployment that a release of this name makes, or why there is none.
fn name_of(helm: &Helm, release: &str, more: &[&str]) -> Result<String, String> {
    let values = file("tests/data/chart/default.yaml");
    let words = [&["template", release][..], more].concat();
    let text = helm.run(&words, &values)?;
    let manifests: Vec<Value> = serde_yaml::from_multiple(&text).expect("YAML documents");
    let name = pickers(&manifests)["metadata"]["name"].as_str();
    Ok(name.expect("a name").to_owned())
}

#[test]
fn a_release_whose_service_could_not_be_made_is_refused_with_a_way_out() {
    let Some(helm) = Helm::find() else { return };
    for release in ["a.b", "7b"] {
        let refusal = name_of(&helm, release, &[]).expect_err(release);
        assert!(refusal.contains("Set fullnameOverride"), "{refusal}");
        let name = name_of(&helm, release, &["--set", "fullnameOverride=picker"]);
        assert_eq!(name.as_deref(), Ok("picker"));
    }
}

#[test]
fn long_releases_that_begin_alike_have_names_of_their_own() {
    let Some(helm) = Helm::find() else { return };
    let begin = "r".repeat(40);
    assert_eq!(name_of(&helm, &begin, &[]), Ok(format!("{begin}-epp")));
    let first = name_of(&helm, &format!("{begin}-one"), &[]).unwrap();
    let second = name_of(&helm, &format!("{begin}-two"), &[]).unwrap();
    assert_ne!(first, second);
    // The longest suffixes still fit into the 63 characters of a name.
    assert_eq!(first.len(), begin.len() + "-epp".len());
}
