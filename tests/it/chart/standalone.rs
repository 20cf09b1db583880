//! Does a real Envoy run the bootstrap that the standalone mode renders, and take requests where the picker says?

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use super::{Helm, file, manifest};
use crate::support::envoy::Envoy;
use crate::support::fleet::{Fleet, MODEL, Setup};
use crate::support::http;
use crate::support::tools::tool;
use crate::support::waiting::until;

const PATH: &str = "/v1/completions";

/// The bootstrap in the ConfigMap of the rendered Envoy.
fn bootstrap(helm: &Helm, name: &str) -> Value {
    let manifests = helm.manifests(&file("tests/data/chart").join(name));
    let map = manifest(&manifests, "ConfigMap", "warm-epp-envoy");
    serde_yaml::from_str(map["data"]["envoy.yaml"].as_str().unwrap()).unwrap()
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

/// The bootstrap for this machine: no DNS of a cluster, and ports of Envoy's own choice.
fn local(mut config: Value, picker: SocketAddr) -> Value {
    let resources = "/static_resources";
    for (pointer, value) in [
        ("/admin/address/socket_address/port_value", json!(0)),
        (
            &format!("{resources}/listeners/0/address/socket_address/port_value"),
            json!(0),
        ),
        (
            &format!("{resources}/listeners/1/address/socket_address/port_value"),
            json!(0),
        ),
        (
            &format!(
                "{resources}/clusters/1/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address"
            ),
            json!({ "address": picker.ip(), "port_value": picker.port() }),
        ),
    ] {
        let place = config.pointer_mut(pointer);
        *place.unwrap_or_else(|| panic!("the bootstrap has no {pointer}")) = value;
    }
    config
}

#[tokio::test]
async fn the_rendered_envoy_takes_requests_where_the_picker_says() {
    let Some(helm) = Helm::find() else { return };
    let config = bootstrap(&helm, "standalone.yaml");
    let drive = async |fleet: &mut Fleet| {
        let config = local(config, fleet.picker.addresses.grpc);
        let envoy = Envoy::run(&config).await.unwrap();
        let probes = envoy.listener("probes");
        envoy
            .stat_reaches("cluster.picker.membership_healthy", 1)
            .await;
        assert_eq!(http::get(probes, "/ready").await.status, 200);

        let prompt = "a prompt of some blocks that is warm after the first time ".repeat(10);
        let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2 });
        // An address that a client names is nobody's choice but the picker's.
        let headers = [("x-gateway-destination-endpoint", "127.0.0.1:1")];
        let mut served = Vec::new();
        for _ in 0..4 {
            let exchange = fleet.ask_with(&envoy, PATH, &headers, &body).await;
            assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer);
            served.push(exchange.decision["endpoint"].clone());
            fleet.events_arrived().await;
        }
        assert!(served.iter().all(|other| *other == served[0]), "{served:?}");

        fleet.picker.kill().await;
        until("Envoy noticed", async || {
            let page = http::get(probes, "/ready").await;
            (page.status == 503).then_some(())
        })
        .await;
        let refused = http::post_json(envoy.picked(), PATH, &body).await;
        assert_eq!(refused.status, 503);
        // It is asked again as soon as it is back.
        fleet.start_picker().await;
        until("Envoy noticed", async || {
            let answer = http::post_json(envoy.picked(), PATH, &body).await;
            (answer.status == 200).then_some(())
        })
        .await;
    };
    Setup::engines(2).run(drive).await;
}
