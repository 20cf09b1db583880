//! Pods come and go, become ready and not; the pool selects others, or other ports of them.

use std::time::Instant;

use futures_util::future::join_all;
use serde_json::{Value, json};
use warmpath::engine::Settings;

use super::world::{POOL, PORTS, Plan, ids, pod_name};
use crate::support::cluster::namespace::target_ports;
use crate::support::fleet::engine::Engine;
use crate::support::fleet::{INSTANT, MODEL};
use crate::support::picker::feed_is;
use crate::support::ports::own_loopback;

#[tokio::test]
async fn pods_that_come_get_requests_and_pods_that_go_get_none() {
    let plan = Plan::pods("scale", 1).and_engines(2);
    plan.run(async |world| {
        assert_eq!(world.served_by(100, 3).await, ["vllm-0"]);
        world.pod_comes(1).await;
        world.pod_comes(2).await;
        world.knows(&[pod_name(0), pod_name(1), pod_name(2)]).await;
        assert_eq!(
            world.served_by(200, 30).await,
            ["vllm-0", "vllm-1", "vllm-2"]
        );
        // Told to end, it is there for the requests it has, and gets no more.
        world.namespace.terminate_pod("vllm-0").await;
        world
            .pod_seen(0, "not ready", |endpoint| endpoint["ready"] == false)
            .await;
        assert_eq!(world.served_by(300, 20).await, ["vllm-1", "vllm-2"]);
        world.namespace.delete_pod("vllm-0").await;
        world.knows(&[pod_name(1), pod_name(2)]).await;
        assert_eq!(world.served_by(400, 20).await, ["vllm-1", "vllm-2"]);
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_is_not_ready_gets_nothing_and_is_warm_when_it_is_back() {
    let plan = Plan::pods("ready", 2);
    plan.run(async |world| {
        let first = world.ask(&ids(1, 300)).await;
        let owner = usize::from(first.endpoint().ends_with("vllm-1"));
        let held = |endpoint: &Value| endpoint["cached_blocks"].as_u64() >= Some(18);
        world.pod_seen(owner, "the prompt is cached", held).await;
        world.pod_is(owner, false).await;
        world
            .pod_seen(owner, "not ready", |endpoint| endpoint["ready"] == false)
            .await;
        let away = world.ask(&ids(1, 300)).await;
        assert_eq!(away.endpoint(), world.full(&pod_name(1 - owner)));
        // What it cached is still known, and its events are still followed.
        world
            .pod_seen(owner, "its view stays", |endpoint| {
                held(endpoint) && feed_is(endpoint, "live")
            })
            .await;
        world.pod_is(owner, true).await;
        world
            .pod_seen(owner, "ready again", |endpoint| endpoint["ready"] == true)
            .await;
        world.pod_is(1 - owner, false).await;
        world
            .pod_seen(1 - owner, "not ready", |endpoint| {
                endpoint["ready"] == false
            })
            .await;
        let back = world.ask(&ids(1, 300)).await;
        assert_eq!(back.endpoint(), first.endpoint());
        assert_eq!((back.predicted(), back.reported()), (288, Some(288)));
    })
    .await;
}

#[tokio::test]
async fn another_selector_means_other_pods_at_once() {
    let plan = Plan::pods("selector", 1).and_engines(1);
    plan.run(async |world| {
        let other = json!({ "labels": { "app": "sglang" } });
        world.namespace.create_pod_as("vllm-1", &other).await;
        world.pod_is(1, true).await;
        assert_eq!(world.served_by(100, 3).await, ["vllm-0"]);
        let selector = json!({ "selector": { "matchLabels": { "app": "sglang" } } });
        world.namespace.patch_pool(POOL, &selector).await;
        world.knows(&[pod_name(1)]).await;
        assert_eq!(world.served_by(200, 3).await, ["vllm-1"]);
        // A label is taken away: the Pod is no longer of the pool.
        let labels = json!({ "labels": { "app": "other" } });
        world.namespace.patch_pod_metadata("vllm-1", &labels).await;
        world.knows(&[]).await;
    })
    .await;
}

#[tokio::test]
async fn each_target_port_is_an_endpoint_unless_the_pod_says_otherwise() {
    let plan = Plan::pods("ports", 2).two_ports();
    plan.run(async |world| {
        world.ask(&ids(1, 100)).await;
        let both = json!({ "targetPorts": target_ports(&PORTS) });
        world.namespace.patch_pool(POOL, &both).await;
        let all = [
            "vllm-0-rank-0",
            "vllm-0-rank-1",
            "vllm-1-rank-0",
            "vllm-1-rank-1",
        ];
        world.knows(&all.map(str::to_owned)).await;
        assert_eq!(world.served_by(100, 40).await, all);
        for annotation in [
            "llm-d.ai/active-ports",
            "inference.networking.k8s.io/active-ports",
        ] {
            let one = json!({ "annotations": { annotation: PORTS[1].to_string() } });
            world.namespace.patch_pod_metadata("vllm-0", &one).await;
            let rest = ["vllm-0-rank-1", "vllm-1-rank-0", "vllm-1-rank-1"];
            world.knows(&rest.map(str::to_owned)).await;
            assert_eq!(world.served_by(200, 30).await, rest);
            let none = json!({ "annotations": { annotation: null } });
            world.namespace.patch_pod_metadata("vllm-0", &none).await;
            world.knows(&all.map(str::to_owned)).await;
        }
    })
    .await;
}

/// As many as a large deployment starts at once.
const MANY: usize = 300;

#[tokio::test]
async fn three_hundred_pods_at_once_are_all_endpoints_and_picks_go_on() {
    // One engine that listens on every loopback address stands for all.
    let engine = [
        "--address",
        "0.0.0.0",
        "--port",
        "18100",
        "--model",
        MODEL,
        "--kv-events",
        "tcp://*:18101",
        "--kv-replay",
        "tcp://*:18102",
    ];
    let engine = Settings::local(&[engine.as_slice(), &INSTANT].concat()).unwrap();
    let engine = Engine::start("all".to_owned(), engine).await;
    let ips: Vec<_> = (0..MANY).map(|_| own_loopback()).collect();
    let addresses = ips.iter().map(|&ip| (ip, 18_100).into()).collect();
    let plan = Plan::pods("many", 0)
        .without_pool()
        .and_addresses(addresses);
    plan.run(async |world| {
        let namespace = &world.namespace;
        namespace.create_pool(POOL, &[18_100]).await;
        world.envoy_sees_the_picker().await;
        let cpu_before = world.picker.metric("process_cpu_seconds_total").await;
        let started = Instant::now();
        let created = ips.iter().enumerate().map(async |(number, &ip)| {
            let name = format!("many-{number:03}");
            namespace.create_pod(&name).await;
            namespace.pod_runs(&name, ip.into(), true, 0).await;
        });
        join_all(created).await;
        let created = started.elapsed();
        let picker = &world.picker;
        picker.sees("all are endpoints", |endpoints| endpoints.len() == MANY).await;
        let listed = started.elapsed();
        picker
            .sees("all are known and followed", |endpoints| {
                endpoints.iter().all(|endpoint| feed_is(endpoint, "live") && endpoint["report"]["age_ms"].is_u64())
            })
            .await;
        let followed = started.elapsed();
        let cpu = picker.metric("process_cpu_seconds_total").await - cpu_before;
        let mut picks = Vec::new();
        for topic in 1..21 {
            let exchange = world.ask(&ids(topic, 100)).await;
            assert_eq!(exchange.answer.status, 200);
            picks.push(exchange.decision["pick_us"].as_u64());
        }
        println!(
            "{MANY} Pods: made in {created:?}, all endpoints after {listed:?}, all followed after {followed:?}, {cpu:.2} s of CPU (debug build); picks in us: {picks:?}"
        );
    })
    .await;
    drop(engine);
}
