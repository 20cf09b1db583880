//! Files of the reference pickers' kinds, and texts of other kinds.

use proptest::prelude::*;

use super::*;

fn parts(text: &str) -> Vec<String> {
    let notes = parse(text, "f").unwrap();
    notes.into_iter().map(|note| note.part).collect()
}

fn refused(text: &str) -> String {
    parse(text, "f.yaml").unwrap_err().to_string()
}

const DEFAULT: &str = "
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
  parameters: {blockSize: 64, maxPrefixBlocksToMatch: 256}
- name: best
  type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: best}
";

#[test]
fn the_default_file_has_a_counterpart_for_each_part() {
    let notes = parse(DEFAULT, "f").unwrap();
    let parts: Vec<_> = notes.iter().map(|note| note.part.as_str()).collect();
    assert_eq!(
        parts,
        [
            "plugins: queue-scorer",
            "plugins: kv-cache-utilization-scorer",
            "plugins: prefix-cache-scorer",
            "plugins: max-score-picker",
            "plugins: single-profile-handler",
            "schedulingProfiles: default",
        ]
    );
    assert!(notes.iter().all(|note| note.instead.is_some()), "{notes:?}");
    assert!(notes[1].instead.unwrap().contains("guards.kv_usage_limit"));
    assert!(notes[2].instead.unwrap().starts_with("the rule itself"));
}

#[test]
fn every_part_is_told_once_and_none_is_fatal() {
    let text = "
apiVersion: llm-d.ai/v1beta7
kind: EndpointPickerConfig
metadata: {name: x}
featureGates: [flowControl, haPopulateNonLeaderDatastore=false, newThing]
plugins:
- {name: a, type: token-load-scorer}
- {name: b, type: token-load-scorer}
- {type: openai-parser}
- {type: from-the-future}
- {name: without-type}
- 7
schedulingProfiles: [{name: prefill, plugins: []}, {name: decode}]
dataLayer: {injectDefaults: true, sources: []}
flowControl: {maxRequests: 10}
saturationDetector: {queueDepthThreshold: 5}
parser: {pluginRef: openai-parser}
requestHandler: {parsers: [{pluginRef: openai-parser}]}
tomorrow: {a: 1}
";
    assert_eq!(
        parts(text),
        [
            "apiVersion: llm-d.ai/v1beta7",
            "featureGates: flowControl",
            "featureGates: haPopulateNonLeaderDatastore=false",
            "featureGates: newThing",
            "plugins: token-load-scorer",
            "plugins: openai-parser",
            "plugins: from-the-future",
            "plugins: {\"name\":\"without-type\"}",
            "plugins: 7",
            "schedulingProfiles: prefill",
            "schedulingProfiles: decode",
            "dataLayer",
            "flowControl",
            "saturationDetector",
            "parser",
            "requestHandler",
            "tomorrow",
        ]
    );
    let of = |part: &str| {
        let notes = parse(text, "f").unwrap();
        notes
            .into_iter()
            .find(|note| note.part == part)
            .unwrap()
            .instead
    };
    assert_eq!(of("plugins: from-the-future"), None);
    assert_eq!(of("tomorrow"), None);
}

#[test]
fn shapes_that_nobody_expects_are_told_as_a_whole() {
    let text = "kind: [1]\nplugins: all\nschedulingProfiles: {a: 1}\nfeatureGates: null\n";
    assert_eq!(
        parts(text),
        ["kind: [1]", "plugins", "schedulingProfiles", "featureGates"]
    );
    let long = format!("plugins: [{{type: \"{}\\n\"}}]", "x".repeat(200));
    assert!(parts(&long)[0].len() < 100);
    assert_eq!(parts(""), Vec::<String>::new());
}

#[test]
fn what_is_no_such_file_is_refused_with_what_it_is() {
    assert!(
        refused("plugins: [\n").starts_with("f.yaml:1:"),
        "{}",
        refused("plugins: [\n")
    );
    assert_eq!(
        refused("- a\n"),
        "f.yaml: an EndpointPickerConfig has keys with values"
    );
    assert_eq!(
        refused("guards: {kv_usage_limit: 0.9}\n"),
        "f.yaml is a settings file of Warmpath (it has `guards`): pass it by --config; --config-file takes an EndpointPickerConfig"
    );
    let missing = load(Path::new("/no/such/file")).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "--config-file: cannot read /no/such/file"
    );
}

#[test]
fn one_is_known_by_its_kind_alone() {
    assert!(is_one(DEFAULT));
    assert!(!is_one("kind: ConfigMap\n"));
    assert!(!is_one("policy: least-prefill\n"));
    assert!(!is_one("[\n"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z: \\-\\[\\]{}\n,#&*!|>'\"]{0,80}") {
        parse(&text, "f").ok();
        is_one(&text);
    }
}
