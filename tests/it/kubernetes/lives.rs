//! An address outlives an engine, and a Pod outlives its engine's process: neither inherits what is no longer there.

use super::world::{Plan, World, ids, pod_name};
use crate::support::fleet::traffic::Traffic;
use crate::support::picker::feed_is;
use crate::support::waiting::until;

/// Asks for a prompt of 300 tokens; what was foreseen as cached, which must be what the engine then found.
async fn cached(world: &World, topic: u32) -> u64 {
    let exchange = world.ask(&ids(topic, 300)).await;
    assert_eq!(exchange.answer.status, 200);
    assert_eq!(
        Some(exchange.predicted()),
        exchange.reported(),
        "topic {topic}"
    );
    exchange.predicted()
}

/// Waits until the picker holds just what the engine of a Pod has cached.
async fn caught_up(world: &World, pod: usize, endpoint: &str) {
    until(&format!("all events of {endpoint} arrived"), async || {
        let cached = world.engines[pod][0].running().dump().await?.len();
        let endpoint = world.picker.endpoint(endpoint).await;
        (feed_is(&endpoint, "live") && endpoint["cached_blocks"] == cached).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_gets_the_address_of_another_inherits_nothing() {
    let plan = Plan::pods("reuse", 1);
    plan.run(async |world| {
        cached(world, 1).await;
        caught_up(world, 0, "vllm-0").await;
        assert_eq!(cached(world, 1).await, 288);
        let ip = world.ip(0);
        // The old Pod is still in the API when the new one has its address: records are late.
        world.namespace.terminate_pod("vllm-0").await;
        world.engines[0][0].kill().await;
        world.engines[0][0].restart().await;
        world.namespace.create_pod("another").await;
        world.namespace.pod_runs("another", ip, true, 0).await;
        world.knows(&["another".to_owned()]).await;
        assert_eq!(cached(world, 1).await, 0);
        world.namespace.delete_pod("vllm-0").await;
        caught_up(world, 0, "another").await;
        assert_eq!(cached(world, 1).await, 288);
        // And once more with nothing between: deleted, and a Pod of the same name is made.
        world.namespace.delete_pod("another").await;
        world.engines[0][0].kill().await;
        world.engines[0][0].restart().await;
        world.namespace.create_pod("another").await;
        world.namespace.pod_runs("another", ip, true, 0).await;
        let uid = world
            .namespace
            .pods()
            .get("another")
            .await
            .unwrap()
            .metadata
            .uid;
        world
            .picker
            .sees("the new Pod is the endpoint", |endpoints| {
                endpoints.len() == 1 && endpoints[0]["incarnation"].as_str() == uid.as_deref()
            })
            .await;
        world.knows(&["another".to_owned()]).await;
        assert_eq!(cached(world, 1).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_late_restart_count_does_not_wipe_what_the_new_life_cached() {
    let plan = Plan::pods("restart", 1);
    plan.run(async |world| {
        cached(world, 1).await;
        caught_up(world, 0, "vllm-0").await;
        let ip = world.ip(0);
        world.engines[0][0].kill().await;
        world.engines[0][0].restart().await;
        world.knows(&[pod_name(0)]).await;
        caught_up(world, 0, "vllm-0").await;
        // The new life computes something before the API server hears of the restart.
        assert_eq!(cached(world, 2).await, 0);
        caught_up(world, 0, "vllm-0").await;
        let name = world.full("vllm-0");
        let restarts = format!(r#"warmpath_kv_event_restarts_total{{endpoint="{name}",rank="0"}}"#);
        assert_eq!(world.picker.metric(&restarts).await, 1.0);
        world.namespace.pod_runs("vllm-0", ip, true, 1).await;
        until(
            "the count has arrived, and the proof was asked for",
            async || {
                world
                    .picker
                    .logged()
                    .contains("container was restarted")
                    .then_some(())
            },
        )
        .await;
        caught_up(world, 0, "vllm-0").await;
        assert_eq!(
            world.picker.metric(&restarts).await,
            1.0,
            "it was the same restart"
        );
        assert_eq!(
            cached(world, 2).await,
            288,
            "what the new life cached is kept"
        );
        assert_eq!(
            cached(world, 1).await,
            0,
            "what the old life cached is gone"
        );
    })
    .await;
}

#[tokio::test]
async fn a_rolling_update_of_the_engines_fails_no_request() {
    let plan = Plan::pods("rolling", 2).and_engines(2);
    plan.run(async |world| {
        let prompts: Vec<_> = (0..20).map(|topic| ids(topic, 200)).collect();
        let traffic = Traffic::start(world.envoy.picked(), 3, &prompts);
        for (old, new) in [(0, 2), (1, 3)] {
            world.pod_comes(new).await;
            let picks = format!(
                r#"warmpath_picks_total{{endpoint="{}"}}"#,
                world.full(&pod_name(new))
            );
            world.picker.metric_reaches(&picks, 10.0).await;
            world.namespace.terminate_pod(&pod_name(old)).await;
            // As a container does that waits in its preStop hook: what it has is answered, then it goes.
            until("the old Pod has nothing to do", async || {
                let endpoint = world.picker.endpoint(&pod_name(old)).await;
                (endpoint["ready"] == false && endpoint["in_flight"] == 0).then_some(())
            })
            .await;
            world.engines[old][0].kill().await;
            world.namespace.delete_pod(&pod_name(old)).await;
        }
        world.knows(&[pod_name(2), pod_name(3)]).await;
        let asked = traffic.stop().await;
        let failed: Vec<_> = asked
            .iter()
            .filter(|asked| asked.status != Ok(200))
            .collect();
        assert!(failed.is_empty(), "{failed:?}");
        println!("{} requests", asked.len());
    })
    .await;
}
