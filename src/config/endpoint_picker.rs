//! What of an `EndpointPickerConfig` (the reference pickers' own settings) has a counterpart here?
//!
//! Nothing in such a file changes what this picker does. It is read so that whoever moves over learns of each part what
//! takes its place, and no part is fatal: whatever a later version of that file holds, the picker starts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::file;
use crate::yaml::{self, Located};

/// What is said of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The part: its key, and its type or name where it has one.
    pub part: String,
    /// What takes its place here; `None` when nothing does.
    pub instead: Option<&'static str>,
}

/// Why a text is not an `EndpointPickerConfig`.
#[derive(Debug, thiserror::Error)]
pub enum EndpointPickerError {
    /// It cannot be read.
    #[error("--config-file: cannot read {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not YAML.
    #[error("{from}:{line}:{column}: {problem}")]
    NotYaml {
        /// Where it came from: the file, or the flag of the text.
        from: String,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What is wrong there.
        problem: String,
    },
    /// It is YAML, but no mapping.
    #[error("{from}: an EndpointPickerConfig has keys with values")]
    NoMapping {
        /// Where it came from.
        from: String,
    },
    /// It is a settings file of ours.
    #[error(
        "{from} is a settings file of Warmpath (it has `{key}`): pass it by --config; --config-file takes an EndpointPickerConfig"
    )]
    OurSettings {
        /// Where it came from.
        from: String,
        /// The key that tells.
        key: String,
    },
}

/// Reads the file.
///
/// # Errors
/// When it cannot be read, is not YAML, or is one of our own settings files.
pub fn load(path: &Path) -> Result<Vec<Note>, EndpointPickerError> {
    let text = std::fs::read_to_string(path).map_err(|source| EndpointPickerError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, &path.display().to_string())
}

/// Reads the text; `from` is for messages only.
///
/// # Errors
/// When it is not YAML, or a settings file of ours.
pub fn parse(text: &str, from: &str) -> Result<Vec<Note>, EndpointPickerError> {
    let located = |Located {
                       line,
                       column,
                       problem,
                   }| EndpointPickerError::NotYaml {
        from: from.to_owned(),
        line,
        column,
        problem,
    };
    match yaml::read(text).map_err(located)? {
        Value::Object(fields) => match our_key(&fields) {
            Some(key) => Err(EndpointPickerError::OurSettings {
                from: from.to_owned(),
                key,
            }),
            None => Ok(notes(&fields)),
        },
        // An empty file says nothing.
        Value::Null => Ok(Vec::new()),
        _ => Err(EndpointPickerError::NoMapping {
            from: from.to_owned(),
        }),
    }
}

/// Whether a text is an `EndpointPickerConfig`, whatever it holds.
pub(super) fn is_one(text: &str) -> bool {
    yaml::read::<Value>(text).is_ok_and(|value| value.get("kind").is_some_and(|kind| kind == KIND))
}

const KIND: &str = "EndpointPickerConfig";
const VERSIONS: [&str; 2] = [
    "llm-d.ai/v1alpha1",
    "inference.networking.x-k8s.io/v1alpha1",
];

/// A key that only our settings have, in a text that does not claim to be of another kind.
fn our_key(fields: &Map<String, Value>) -> Option<String> {
    if fields.contains_key("kind") || fields.contains_key("apiVersion") {
        return None;
    }
    let ours = serde_json::to_value(file::File::default()).ok()?;
    fields.keys().find(|key| ours.get(*key).is_some()).cloned()
}

const RULE: &str =
    "the rule itself: least queued and uncached prompt tokens, with nothing to weigh";
const QUEUED: &str = "the picker's own count of prompt tokens queued on each endpoint";
const REPORTS: &str = "reports are asked of engines by themselves (reports in the settings file)";
const LEAST_COST: &str = "the least cost is taken; equal costs go to the fewest in flight, then by chance (alternates in the settings file names further endpoints)";
const REFUSALS: &str = "nothing is queued in the picker: limits.max_exchanges in the settings file bounds what is in flight (429)";
const CONFORMANCE: &str = "--conformance-test-headers";

fn notes(fields: &Map<String, Value>) -> Vec<Note> {
    let mut notes = Vec::new();
    for (key, value) in fields {
        match key.as_str() {
            "apiVersion" if VERSIONS.iter().any(|version| value == version) => {}
            "kind" if value == KIND => {}
            "apiVersion" | "kind" => notes.push(Note {
                part: format!("{key}: {}", text_of(value)),
                instead: Some("it is read as an EndpointPickerConfig all the same"),
            }),
            "metadata" => {}
            "plugins" => named(key, value, "type", plugin, &mut notes),
            "schedulingProfiles" => named(key, value, "name", |_| Some(RULE), &mut notes),
            "featureGates" => named(key, value, "", gate, &mut notes),
            "dataLayer" => note(
                key,
                Some(
                    "reports and KV events are read by themselves; --endpoints-file lists endpoints without Kubernetes",
                ),
                &mut notes,
            ),
            "flowControl" => note(key, Some(REFUSALS), &mut notes),
            "saturationDetector" => note(key, Some(SATURATION), &mut notes),
            "parser" | "requestHandler" => note(key, Some(PARSERS), &mut notes),
            _ => note(key, None, &mut notes),
        }
    }
    notes
}

const SATURATION: &str =
    "guards.kv_usage_limit and guards.report_age_limit in the settings file leave out an endpoint";
const PARSERS: &str =
    "requests of the OpenAI paths are read by themselves, all others are routed on load";

fn note(part: &str, instead: Option<&'static str>, notes: &mut Vec<Note>) {
    let part = part.to_owned();
    notes.push(Note { part, instead });
}

/// A note for each different member of a list, by the text that stands under `field` (or by itself).
fn named(
    key: &str,
    list: &Value,
    field: &str,
    instead: fn(&str) -> Option<&'static str>,
    notes: &mut Vec<Note>,
) {
    let Value::Array(members) = list else {
        return note(key, None, notes);
    };
    let mut seen = BTreeSet::new();
    for member in members {
        let name = text_of(member.get(field).unwrap_or(member));
        if seen.insert(name.clone()) {
            notes.push(Note {
                part: format!("{key}: {name}"),
                instead: instead(&name),
            });
        }
    }
}

/// A text as it stands, anything else as JSON; one line, and short.
fn text_of(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST)
        .collect()
}

fn gate(gate: &str) -> Option<&'static str> {
    let name = gate.split_once('=').map_or(gate, |(name, _)| name);
    match name {
        "flowControl" => Some(REFUSALS),
        "haPopulateNonLeaderDatastore" => {
            Some("every replica watches the endpoints and is ready; there is no leader")
        }
        "dataLayer" => Some(REPORTS),
        _ => None,
    }
}

fn plugin(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "prefix-cache-scorer"
        | "precise-prefix-cache-scorer"
        | "token-load-scorer"
        | "prefix-cache-affinity-filter"
        | "no-hit-lru-scorer" => RULE,
        "queue-scorer"
        | "running-requests-size-scorer"
        | "active-request-scorer"
        | "load-aware-scorer" => QUEUED,
        "kv-cache-utilization-scorer" | "utilization-filter" => {
            "guards.kv_usage_limit in the settings file leaves out an endpoint whose KV pool is nearly full"
        }
        "lora-affinity-scorer" => {
            "blocks are cached by adapter, so a request costs least where its adapter's prefix is"
        }
        "max-score-picker" | "random-picker" | "weighted-random-picker" => LEAST_COST,
        "single-profile-handler" => "there is one rule for all requests",
        "approx-prefix-cache-producer" => {
            "the approximate index serves endpoints without KV events by itself"
        }
        "precise-prefix-cache-producer" => {
            "KV events are followed by themselves (kv_events in the settings file)"
        }
        "token-producer" => {
            "token ids are made in this process, else by the engine (tokenizers in the settings file)"
        }
        "inflight-load-producer" => "the picker's own bookings",
        "metrics-data-source" | "core-metrics-extractor" | "model-server-protocol-metrics" => {
            REPORTS
        }
        "utilization-detector" | "concurrency-detector" => SATURATION,
        "file-discovery" => "--endpoints-file",
        "header-based-testing-filter" | "destination-endpoint-served-verifier" => CONFORMANCE,
        "fcfs-ordering-policy"
        | "global-strict-fairness-policy"
        | "round-robin-fairness-policy" => REFUSALS,
        parser if parser.ends_with("-parser") => PARSERS,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
