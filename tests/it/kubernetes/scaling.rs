//! Pods come and go, become ready and not; the pool selects others, or other ports of them.

use std::time::Instant;

use serde_json::json;

use super::world::{POOL, PORTS, Plan, ids, pod_name};
use crate::support::cluster::namespace::target_ports;

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
            .picker
            .sees("the Pod that ends is not ready", |endpoints| {
                endpoints.len() == 3 && endpoints[0]["ready"] == false
            })
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
        let held = |endpoint: &serde_json::Value| endpoint["cached_blocks"].as_u64();
        world
            .picker
            .sees("the prompt is cached", |endpoints| {
                held(&endpoints[owner]) >= Some(18)
            })
            .await;
        world.pod_is(owner, false).await;
        world
            .picker
            .sees("it is not ready", |endpoints| {
                endpoints[owner]["ready"] == false
            })
            .await;
        // The engine may well go on: what it caches meanwhile is seen.
        assert!(held(&world.picker.endpoint(&pod_name(owner)).await) >= Some(18));
        let away = world.ask(&ids(1, 300)).await;
        assert_eq!(away.endpoint(), world.full(&pod_name(1 - owner)));
        world.pod_is(owner, true).await;
        world
            .picker
            .sees("it is ready again", |endpoints| {
                endpoints[owner]["ready"] == true
            })
            .await;
        world.pod_is(1 - owner, false).await;
        world
            .picker
            .sees("the other is not", |endpoints| {
                endpoints[1 - owner]["ready"] == false
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
async fn three_hundred_pods_at_once_are_endpoints_within_seconds() {
    let plan = Plan::pods("many", 1);
    plan.run(async |world| {
        let ip = world.ip(0).to_string();
        let prefix = ip.rsplit_once('.').map(|(prefix, _)| prefix.to_owned()).unwrap();
        let started = Instant::now();
        // No engine runs there: addresses of the documentation range's kind, which refuse at once on loopback.
        let created = (1..MANY).map(async |number| {
            let name = format!("many-{number:03}");
            world.namespace.create_pod(&name).await;
            let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
            let ip = format!("127.255.{high}.{low}").parse().unwrap();
            world.namespace.pod_runs(&name, ip, true, 0).await;
        });
        futures_util::future::join_all(created).await;
        let created = started.elapsed();
        world
            .picker
            .sees("all are endpoints", |endpoints| endpoints.len() == MANY)
            .await;
        let late = started.elapsed() - created;
        let cpu = world.picker.metric("process_cpu_seconds_total").await;
        let asked = Instant::now();
        // Whoever does not report is not picked while somebody does.
        for topic in 1..21 {
            let exchange = world.ask(&ids(topic, 100)).await;
            assert_eq!(exchange.answer.status, 200, "{prefix}");
            assert_eq!(exchange.endpoint(), world.full("vllm-0"));
        }
        let each = asked.elapsed() / 20;
        println!("{MANY} Pods made in {created:?}, all endpoints {late:?} later; CPU {cpu} s; a request {each:?}");
        assert!(late.as_secs() < 5, "{late:?}");
    })
    .await;
}
