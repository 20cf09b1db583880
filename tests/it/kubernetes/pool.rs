//! The pool itself: not there yet, gone, back; named by a selector instead; not ours to read; of objects that are broken.

use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::world::{POOL, PORTS, Plan, World, ids, pod_name};
use crate::support::cluster::accounts::{reader, rule};
use crate::support::waiting::until;

/// What the gRPC health port says of readiness and of liveness.
async fn health(world: &World) -> [ServingStatus; 2] {
    let to = format!("http://{}", world.picker.addresses.health);
    let channel = tonic::transport::Channel::from_shared(to).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut said = [ServingStatus::Unknown; 2];
    for (service, status) in ["readiness", "liveness"].iter().zip(&mut said) {
        let asked = HealthCheckRequest {
            service: (*service).to_owned(),
        };
        *status = client.check(asked).await.unwrap().into_inner().status();
    }
    said
}

/// Waits until the picker is ready, or not.
async fn is_ready(world: &World, ready: bool) -> serde_json::Value {
    let status = if ready { 200 } else { 503 };
    until(&format!("/readyz answers {status}"), async || {
        let (said, why) = world.readyz().await;
        (said == status).then_some(why)
    })
    .await
}

#[tokio::test]
async fn without_its_pool_a_picker_is_alive_and_not_ready_and_says_which_it_awaits() {
    let plan = Plan::pods("late", 1).without_pool();
    plan.run(async |world| {
        let described = format!("InferencePool {POOL} in namespace {}", world.namespace.name);
        until("the pool is awaited by name", async || {
            let (status, why) = world.readyz().await;
            let awaited = why["awaited"].as_array()?;
            (status == 503 && *awaited == [described.as_str()]).then_some(())
        })
        .await;
        assert_eq!(
            health(world).await,
            [ServingStatus::NotServing, ServingStatus::Serving]
        );

        world.namespace.create_pool(POOL, &PORTS[..1]).await;
        is_ready(world, true).await;
        assert_eq!(health(world).await, [ServingStatus::Serving; 2]);
        world.knows(&[pod_name(0)]).await;
        world.envoy_sees_the_picker().await;
        assert_eq!(world.ask(&ids(1, 300)).await.answer.status, 200);

        world.namespace.delete_pool(POOL).await;
        let why = is_ready(world, false).await;
        let awaited = why["awaited"].as_array().unwrap();
        assert_eq!(*awaited, [described.as_str()], "{why}");
        let refused = world.try_ask(&ids(1, 300)).await;
        assert_eq!(refused.status, 503, "{:?}", refused.body);
        assert_eq!(
            health(world).await,
            [ServingStatus::NotServing, ServingStatus::Serving]
        );

        world.namespace.create_pool(POOL, &PORTS[..1]).await;
        world.knows(&[pod_name(0)]).await;
        world.envoy_sees_the_picker().await;
        // What the engine cached in the old pool's time is seen again.
        let warm = world.ask(&ids(1, 300)).await;
        assert_eq!(warm.answer.status, 200);
        assert_eq!((warm.predicted(), warm.reported()), (288, Some(288)));
    })
    .await;
}

#[tokio::test]
async fn a_selector_and_ports_do_without_any_inference_pool() {
    let pods = rule("", "pods", &["get", "list", "watch"]);
    let ports = format!("--endpoint-target-ports={}", PORTS[0]);
    let plan = Plan::pods("selected", 2).without_pool().rules(vec![pods]);
    let plan = plan.flags(&["--endpoint-selector=app in (vllm, sglang), !broken", &ports]);
    plan.run(async |world| {
        world.knows(&[pod_name(0), pod_name(1)]).await;
        world.envoy_sees_the_picker().await;
        assert_eq!(world.served_by(100, 20).await, ["vllm-0", "vllm-1"]);
        let broken = json!({ "labels": { "broken": "true" } });
        world.namespace.patch_pod_metadata("vllm-0", &broken).await;
        world.knows(&[pod_name(1)]).await;
        let audited = world.cluster.audited(&world.namespace.user("picker"));
        let others: Vec<_> = audited
            .iter()
            .filter(|request| request.resource != "pods")
            .collect();
        assert!(others.is_empty(), "{others:?}");
    })
    .await;
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_its_grant_is_noticed() {
    let plan = Plan::pods("denied", 1).rules(vec![rule("", "pods", &["get", "list", "watch"])]);
    plan.without_settling()
        .run(async |world| {
            let namespace = &world.namespace;
            let refused = format!(
                "inferencepools: we may not list inferencepools.inference.networking.k8s.io in namespace {}: grant the service account list and watch of inferencepools.inference.networking.k8s.io there",
                namespace.name
            );
            until("readiness names the right", async || {
                let (status, why) = world.readyz().await;
                let told = why["degraded"]["kubernetes"].as_str()?;
                (status == 503 && told.starts_with(&refused)).then_some(())
            })
            .await;
            assert!(world.picker.logged().contains("we may not list inferencepools"));
            namespace.account("picker", &reader()).await;
            world.knows(&[pod_name(0)]).await;
            let (status, why) = world.readyz().await;
            assert_eq!((status, &why["degraded"]), (200, &json!({})));
        })
        .await;
}

#[tokio::test]
async fn one_odd_object_is_told_of_and_does_no_harm_to_the_others() {
    let plan = Plan::pods("odd", 1).and_engines(1);
    plan.run(async |world| {
        let namespace = &world.namespace;
        // No address yet, and one that nobody can read a port from.
        namespace.create_pod("pending").await;
        let annotations = json!({ "annotations": {
            "llm-d.ai/active-ports": "http, 99999",
            "warmpath.dev/kv-events-port": "five",
        }});
        namespace.create_pod_as("vllm-1", &annotations).await;
        world.pod_is(1, true).await;
        world.knows(&[pod_name(0), pod_name(1)]).await;
        assert_eq!(world.served_by(100, 20).await, ["vllm-0", "vllm-1"]);
        let log = world.picker.logged();
        for told in [
            "annotation llm-d.ai/active-ports: `http` is not a port from 1 to 65535",
            "annotation llm-d.ai/active-ports: `99999` is not a port from 1 to 65535",
            "annotation warmpath.dev/kv-events-port: `five` is not a whole number from 1 to 65535",
        ] {
            assert_eq!(log.matches(told).count(), 1, "{told}");
        }
    })
    .await;
}
