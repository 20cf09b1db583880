//! Does a real Envoy run the bootstrap that the standalone mode renders, and take requests where the picker says?

use std::process::Command;

use serde_json::{Value, json};

use super::{Helm, file, manifest};
use crate::support::envoy::Envoy;
use crate::support::fleet::Setup;
use crate::support::http;
use crate::support::tools::tool;

/// The bootstrap in the ConfigMap of the rendered Envoy.
fn bootstrap(helm: &Helm, name: &str) -> Value {
    let manifests = helm.manifests(&file("tests/data/chart").join(name));
    let map = manifest(&manifests, "ConfigMap", "warm-epp-envoy");
    serde_yaml::from_str(map["data"]["envoy.yaml"].as_str().unwrap()).unwrap()
}

fn set(config: &mut Value, pointer: &str, value: Value) {
    *config
        .pointer_mut(pointer)
        .unwrap_or_else(|| panic!("the bootstrap has no {pointer}")) = value;
}

#[test]
fn envoy_finds_every_rendered_bootstrap_valid_and_nothing_deprecated() {
    let (Some(helm), Some(envoy)) = (Helm::find(), tool("envoy")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for name in ["standalone.yaml", "standalone-plain.yaml"] {
        let written = folder.path().join("envoy.json");
        std::fs::write(&written, bootstrap(&helm, name).to_string()).unwrap();
        let checked = Command::new(&envoy)
            .args(["--mode", "validate", "--log-level", "warning", "-c"])
            .arg(written)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{name}: {said}");
        assert!(!said.contains("eprecated"), "{name}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rendered_envoy_takes_requests_where_the_picker_says() {
    let Some(helm) = Helm::find() else { return };
    let Some(fleet) = Setup::engines(2).start().await else {
        return;
    };
    let mut config = bootstrap(&helm, "standalone.yaml");
    // Here there is no DNS of a cluster, and ports are free ones.
    let picker = fleet.picker.addresses.grpc;
    for (pointer, value) in [
        ("/admin/address/socket_address/port_value", json!(0)),
        (
            "/static_resources/listeners/0/address/socket_address/port_value",
            json!(0),
        ),
        (
            "/static_resources/listeners/1/address/socket_address/port_value",
            json!(0),
        ),
        (
            "/static_resources/clusters/1/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address",
            json!({ "address": picker.ip(), "port_value": picker.port() }),
        ),
    ] {
        set(&mut config, pointer, value);
    }
    let envoy = Envoy::run(&config).await.unwrap();
    envoy
        .stat_reaches("cluster.picker.membership_healthy", 1)
        .await;
    let probes = envoy.listener("probes");
    assert_eq!(http::get(probes, "/ready").await.status, 200);

    let path = "/v1/completions";
    let prompt = "a prompt of some blocks that is warm after the first time ".repeat(10);
    let body = json!({ "model": "qwen3", "prompt": prompt, "max_tokens": 2 });
    let mut served = Vec::new();
    for _ in 0..4 {
        let exchange = fleet.ask_by(&envoy, path, &body).await;
        assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer);
        served.push(exchange.decision["endpoint"].clone());
        fleet.events_arrived().await;
    }
    assert!(
        served.iter().all(|endpoint| *endpoint == served[0]),
        "{served:?}"
    );
    // An address that a client names is nobody's choice but the picker's.
    let headers = [("x-gateway-destination-endpoint", "127.0.0.1:1")];
    let exchange = fleet.ask_with(&envoy, path, &headers, &body).await;
    assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer);

    fleet.picker.kill().await;
    envoy
        .stat_reaches("cluster.picker.health_check.failure", 2)
        .await;
    assert_eq!(
        http::post_json(envoy.picked(), path, &body).await.status,
        503
    );
    assert_eq!(http::get(probes, "/ready").await.status, 503);
}
