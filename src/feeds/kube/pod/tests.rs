//! What is read of a Pod, and what of it may be wrong without harm.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::feeds::kube::object;

fn whole() -> Value {
    json!({
        "metadata": {
            "name": "vllm-0", "namespace": "prod", "uid": "u-0", "resourceVersion": "41",
            "creationTimestamp": "2026-11-29T10:00:00Z",
            "labels": {"app": "vllm"},
            "annotations": {
                "llm-d.ai/active-ports": "8000, 8001",
                "warmpath.dev/kv-events-port": "6557",
                "warmpath.dev/kv-replay-port": "6558",
                "warmpath.dev/data-parallel-rank": "4",
            },
        },
        "spec": {
            "initContainers": [{"name": "routing-proxy", "ports": [{"containerPort": 8000}], "restartPolicy": "Always"}],
            "containers": [
                {"name": "vllm", "ports": [{"containerPort": 8200}, {"containerPort": 5557, "protocol": "TCP"}]},
                {"name": "agent"},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "agent", "restartCount": 9}, {"name": "vllm", "restartCount": 2}],
            "initContainerStatuses": [{"name": "routing-proxy", "restartCount": 5}],
        },
    })
}

fn read(pod: &Value) -> Pod {
    Pod::read(&pod.to_string()).unwrap()
}

/// The whole Pod with the value at `pointer` replaced.
fn with(pointer: &str, value: Value) -> Value {
    let mut pod = whole();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value;
    pod
}

#[test]
fn everything_that_is_used_is_read() {
    let pod = read(&whole());
    assert_eq!(pod.identity.uid, "u-0");
    assert_eq!(pod.address.unwrap().to_string(), "10.0.0.7");
    assert!(pod.ready && !pod.terminating && !pod.finished);
    assert_eq!(pod.created.unwrap().to_string(), "2026-11-29T10:00:00Z");
    assert_eq!(pod.labels["app"], "vllm");
    assert_eq!(pod.active_ports, Some([8000, 8001].into()));
    let expected = Hints {
        live_port: Some(6557),
        replay_port: Some(6558),
        first_rank: Some(4),
    };
    assert_eq!(pod.hints, expected);
    let container = |name: &str, ports: &[u16], restarts| Container {
        name: name.to_owned(),
        ports: ports.to_vec(),
        restarts,
    };
    let expected = [
        container("vllm", &[8200, 5557], 2),
        container("agent", &[], 9),
    ];
    assert_eq!(pod.containers, expected);
    assert_eq!(pod.oddities, [""; 0]);
}

#[test]
fn ready_is_the_condition_and_nothing_else() {
    let cases = [
        (json!([{"type": "Ready", "status": "True"}]), true),
        (json!([{"type": "Ready", "status": "False"}]), false),
        (json!([{"type": "Ready", "status": "Unknown"}]), false),
        (
            json!([{"type": "ContainersReady", "status": "True"}]),
            false,
        ),
        (json!([{"type": "Ready", "status": true}]), false),
        (json!([7, {"type": "Ready", "status": "True"}]), true),
        (json!([]), false),
        (json!(null), false),
        (json!("Ready"), false),
    ];
    for (conditions, ready) in cases {
        let pod = read(&with("/status/conditions", conditions.clone()));
        assert_eq!(pod.ready, ready, "{conditions}");
    }
}

#[test]
fn a_deletion_timestamp_means_terminating_and_an_end_phase_finished() {
    let pod = read(&with(
        "/metadata/deletionTimestamp",
        json!("2026-11-29T11:00:00Z"),
    ));
    assert!(pod.terminating && pod.ready);
    for (phase, finished) in [("Pending", false), ("Succeeded", true), ("Failed", true)] {
        assert_eq!(
            read(&with("/status/phase", json!(phase))).finished,
            finished,
            "{phase}"
        );
    }
}

#[test]
fn the_address_is_the_primary_one_and_none_before_it_is_given() {
    let address = |primary: Value, all: Value| {
        let mut pod = with("/status/podIP", primary);
        pod["status"]["podIPs"] = all;
        Pod::read(&pod.to_string()).map(|pod| pod.address.map(|ip| ip.to_string()))
    };
    let ip = |text: &str| Some(text.to_owned());
    let v6 = json!([{"ip": "fd00::7"}, {"ip": "10.0.0.7"}]);
    assert_eq!(
        address(json!("10.0.0.7"), v6.clone()).unwrap(),
        ip("10.0.0.7")
    );
    assert_eq!(
        address(json!("fd00::1"), json!(null)).unwrap(),
        ip("fd00::1")
    );
    assert_eq!(address(json!(null), v6.clone()).unwrap(), ip("fd00::7"));
    assert_eq!(address(json!(""), v6).unwrap(), ip("fd00::7"));
    assert_eq!(address(json!(null), json!(null)).unwrap(), None);
    for bad in [
        "10.0.0",
        "vllm-0",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "10.0.0.7:8000",
    ] {
        let problem = address(json!(bad), json!(null)).unwrap_err().to_string();
        assert!(
            problem.contains(&format!("status.podIP `{bad}` is not")),
            "{problem}"
        );
    }
}

#[test]
fn an_annotation_that_means_nothing_is_told_and_ignored() {
    let cases = [
        (
            "llm-d.ai/active-ports",
            "http",
            "`http` is not a port from 1 to 65535",
        ),
        ("llm-d.ai/active-ports", "0", "`0` is not a port"),
        (
            "warmpath.dev/kv-events-port",
            "0",
            "`0` is not a whole number from 1 to 65535",
        ),
        (
            "warmpath.dev/kv-replay-port",
            "70000",
            "`70000` is not a whole number",
        ),
        (
            "warmpath.dev/data-parallel-rank",
            "-1",
            "`-1` is not a whole number from 0 to 1023",
        ),
        (
            "warmpath.dev/data-parallel-rank",
            "",
            "`` is not a whole number",
        ),
    ];
    for (annotation, written, expected) in cases {
        let pod = read(&with(
            "/metadata/annotations",
            json!({ annotation: written }),
        ));
        assert_eq!(pod.active_ports, None, "{annotation}");
        assert_eq!(pod.hints, Hints::default(), "{annotation}");
        assert_eq!(pod.oddities.len(), 1, "{:?}", pod.oddities);
        assert!(
            pod.oddities[0].contains(annotation) && pod.oddities[0].contains(expected),
            "{:?}",
            pod.oddities
        );
    }
}

#[test]
fn an_annotation_as_long_as_they_may_be_is_told_in_a_few_short_lines() {
    let mut pod = whole();
    pod["metadata"]["annotations"] = json!({
        "llm-d.ai/active-ports": "http,".repeat(50_000),
        "warmpath.dev/kv-events-port": "5".repeat(250_000),
    });
    let oddities = read(&pod).oddities;
    assert!(oddities.len() <= 10, "{}", oddities.len());
    assert!(oddities.iter().all(|line| line.len() < 250), "{oddities:?}");
    pod["metadata"]["annotations"] = json!({"llm-d.ai/active-ports": "8000,".repeat(50_000)});
    assert_eq!(read(&pod).active_ports, Some([8000].into()));
}

#[test]
fn the_newer_annotation_of_active_ports_comes_first_and_readable_ports_count() {
    let active = |annotations: Value| {
        let pod = read(&with("/metadata/annotations", annotations));
        (pod.active_ports, pod.oddities.len())
    };
    let (new, old) = (
        "llm-d.ai/active-ports",
        "inference.networking.k8s.io/active-ports",
    );
    assert_eq!(active(json!({})), (None, 0));
    assert_eq!(active(json!({old: "8001"})), (Some([8001].into()), 0));
    assert_eq!(
        active(json!({new: "8000", old: "8001"})),
        (Some([8000].into()), 0)
    );
    assert_eq!(
        active(json!({new: "8000,x,8001"})),
        (Some([8000, 8001].into()), 1)
    );
    assert_eq!(active(json!({new: " "})), (Some([].into()), 0));
}

#[test]
fn fields_of_another_kind_are_as_good_as_absent_and_never_cost_the_pod() {
    let cases = [
        ("/metadata/labels", json!(["a"])),
        ("/metadata/labels", json!({"app": 7})),
        ("/metadata/annotations", json!(null)),
        ("/metadata/creationTimestamp", json!("yesterday")),
        ("/spec/containers", json!({"name": "vllm"})),
        ("/spec/containers", json!([{"image": "x"}, 5, null])),
        (
            "/status/containerStatuses",
            json!([{"name": "vllm", "restartCount": -1}]),
        ),
        ("/status/phase", json!(3)),
        ("/spec", json!(null)),
    ];
    for (pointer, value) in cases {
        let pod = Pod::read(&with(pointer, value.clone()).to_string());
        assert!(
            pod.is_ok_and(|pod| pod.address.is_some()),
            "{pointer} = {value}"
        );
    }
    let negative = with("/status/containerStatuses/1/restartCount", json!(-1));
    assert_eq!(read(&negative).containers[0].restarts, 0);
}

#[test]
fn a_pod_that_cannot_be_told_from_others_is_refused_by_name_and_version() {
    let cases = [
        (
            "/metadata/name",
            json!(null),
            "it has no usable metadata.name",
        ),
        ("/metadata/uid", json!(""), "it has no usable metadata.uid"),
        ("/metadata/uid", json!(7), "it has no usable metadata.uid"),
        ("/status", json!("fine"), "it is not of the expected form"),
        (
            "/status/podIP",
            json!("10.0.0.256"),
            "status.podIP `10.0.0.256` is not",
        ),
    ];
    for (pointer, value, expected) in cases {
        let refusal = object::read::<Pod>(&with(pointer, value).to_string()).unwrap_err();
        assert!(
            refusal.problem.to_string().contains(expected),
            "{}",
            refusal.problem
        );
        assert_eq!(refusal.identity.version, "41", "{pointer}");
    }
    let refusal = object::read::<Pod>("[1, 2").unwrap_err();
    assert_eq!(refusal.identity, Identity::default());
}

/// Any JSON, now and then with the names that Pods have.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9.:,-]{0,12}".prop_map(Value::from),
        Just(json!("True")),
        Just(json!("10.0.0.1")),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "name",
            "uid",
            "labels",
            "annotations",
            "podIP",
            "podIPs",
            "ip",
            "conditions",
            "type",
            "containers",
            "containerStatuses",
            "restartCount",
            "ports",
            "containerPort",
            "phase",
            "llm-d.ai/active-ports",
            "deletionTimestamp",
        ])
        .prop_map(str::to_owned),
        "[a-z]{1,4}",
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_stands_anywhere_in_a_pod_it_is_read_or_refused(
        pointer in prop::sample::select(vec![
            "/metadata", "/spec", "/status", "/metadata/labels", "/metadata/annotations",
            "/metadata/deletionTimestamp", "/spec/containers", "/spec/containers/0",
            "/spec/containers/0/ports", "/status/conditions", "/status/podIPs",
            "/status/containerStatuses", "/status/containerStatuses/0",
        ]),
        value in any_json(),
    ) {
        let mut pod = whole();
        *pod.pointer_mut(pointer).unwrap_or(&mut Value::Null) = value;
        object::read::<Pod>(&pod.to_string()).ok();
    }

    #[test]
    fn any_json_at_all_is_read_or_refused(value in any_json()) {
        object::read::<Pod>(&value.to_string()).ok();
    }
}
