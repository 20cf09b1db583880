//! What is used of an InferencePool? Which Pods it selects, and which of their ports are endpoints.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::members::TargetPorts;
use super::object::{Identity, Lenient, Malformed, Object, RawMetadata};
use super::selector::LabelSelector;

/// What is used of an InferencePool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InferencePool {
    pub(super) identity: Identity,
    /// It was told to go: as good as gone.
    pub(super) terminating: bool,
    pub(super) spec: Spec,
}

/// How a pool is made of Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) selector: LabelSelector,
    pub(super) ports: TargetPorts,
}

#[derive(Deserialize)]
struct RawPool {
    #[serde(default)]
    metadata: RawMetadata,
    #[serde(default)]
    spec: Option<RawSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(default)]
    selector: Option<RawSelector>,
    #[serde(default)]
    target_ports: Option<Vec<RawPort>>,
}

/// Not lenient: a selector read in part would select more than was meant, also where a later version of the API has
/// further ways to narrow it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSelector {
    #[serde(default)]
    match_labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RawPort {
    #[serde(default)]
    number: Lenient<u16>,
}

impl Object for InferencePool {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn read(json: &str) -> Result<Self, Malformed> {
        let RawPool { mut metadata, spec } = serde_json::from_str(json)?;
        let spec = spec.ok_or(Malformed::Missing("spec"))?;
        let labels = spec.selector.and_then(|selector| selector.match_labels);
        let labels = labels.ok_or(Malformed::Missing("spec.selector.matchLabels"))?;
        let ports = spec
            .target_ports
            .ok_or(Malformed::Missing("spec.targetPorts"))?;
        let number = |port: RawPort| {
            let number = port.number.0;
            number.ok_or(Malformed::Missing(
                "number from 1 to 65535 in spec.targetPorts",
            ))
        };
        let ports = ports
            .into_iter()
            .map(number)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            identity: metadata.identity()?,
            terminating: metadata.deletion_timestamp.is_some(),
            spec: Spec {
                selector: LabelSelector::of_labels(&labels)?,
                ports: TargetPorts::new(ports)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(spec: &Value) -> Result<InferencePool, Malformed> {
        let metadata = json!({"name": "vllm", "uid": "u1", "resourceVersion": "7"});
        InferencePool::read(&json!({"metadata": metadata, "spec": spec}).to_string())
    }

    #[test]
    fn selector_and_ports_are_read_and_the_rest_is_ignored() {
        let pool = pool(&json!({
            "selector": {"matchLabels": {"tier": "a", "app": "vllm"}},
            "targetPorts": [{"number": 8000}, {"number": 8001}],
            "appProtocol": "kubernetes.io/h2c",
            "endpointPickerRef": {"name": "warmpath", "port": {"number": 9002}, "failureMode": "FailOpen"},
        }))
        .unwrap();
        assert_eq!(pool.identity.version, "7");
        assert!(!pool.terminating);
        assert_eq!(pool.spec.selector.as_str(), "app=vllm,tier=a");
        assert_eq!(pool.spec.ports.as_slice(), [8000, 8001]);
    }

    #[test]
    fn a_pool_that_means_nothing_is_refused_with_the_reason() {
        let labels = json!({"matchLabels": {"app": "vllm"}});
        let port = json!([{"number": 8000}]);
        let cases = [
            (json!(null), "it has no usable spec"),
            (
                json!("x"),
                "it is not of the expected form: invalid type: string",
            ),
            (
                json!({"targetPorts": port}),
                "it has no usable spec.selector.matchLabels",
            ),
            (
                json!({"selector": labels}),
                "it has no usable spec.targetPorts",
            ),
            (
                json!({"selector": labels, "targetPorts": []}),
                "spec.targetPorts: no port",
            ),
            (
                json!({"selector": labels, "targetPorts": [{"number": 8000}, {"number": 8000}]}),
                "spec.targetPorts: port 8000 is named twice",
            ),
            (
                json!({"selector": labels, "targetPorts": [{"number": 70000}]}),
                "it has no usable number from 1 to 65535 in spec.targetPorts",
            ),
            (
                json!({"selector": labels, "targetPorts": [{"number": 0}]}),
                "port 0 is no port",
            ),
            (
                json!({"selector": {"matchLabels": {}}, "targetPorts": port}),
                "spec.selector.matchLabels: an empty selector would select every Pod",
            ),
            (
                json!({"selector": {"matchLabels": {"app": "a"}, "matchExpressions": []}, "targetPorts": port}),
                "unknown field `matchExpressions`",
            ),
            (
                json!({"selector": {"matchLabels": {"app": 5}}, "targetPorts": port}),
                "invalid type: integer",
            ),
            (
                json!({"selector": {"matchLabels": {"app": "a b"}}, "targetPorts": port}),
                "`a b` is no label value",
            ),
        ];
        for (spec, expected) in cases {
            let problem = pool(&spec).unwrap_err().to_string();
            assert!(problem.contains(expected), "{spec}: {problem}");
        }
    }
}
