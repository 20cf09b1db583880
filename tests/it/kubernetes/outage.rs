//! The API server goes away and comes back: what is known stays in force, and what changed is caught up with.

use serde_json::json;

use super::world::{Plan, pod_name};
use crate::support::waiting::until;

#[tokio::test]
async fn without_the_api_server_picks_go_on_and_changes_are_caught_up_with_when_it_is_back() {
    let plan = Plan::pods("outage", 2).and_engines(1).own_server();
    plan.run(async |world| {
        let connected =
            |resource| format!(r#"warmpath_kubernetes_watch_connected{{resource="{resource}"}}"#);
        for resource in ["pods", "inferencepools"] {
            world.picker.metric_is(&connected(resource), 1.0).await;
        }
        world.cluster.stop_server();
        let why = until("readiness tells of it", async || {
            let (status, why) = world.readyz().await;
            assert_eq!(status, 200, "{why}");
            let told = why["degraded"]["kubernetes"].as_str()?;
            let both = told.contains("inferencepools: ") && told.contains("pods: ");
            both.then(|| told.to_owned())
        })
        .await;
        assert!(why.contains("cannot reach the API server"), "{why}");
        for resource in ["pods", "inferencepools"] {
            world.picker.metric_is(&connected(resource), 0.0).await;
            let errors =
                format!(r#"warmpath_kubernetes_watch_errors_total{{resource="{resource}"}}"#);
            assert!(world.picker.metric(&errors).await >= 1.0);
        }
        assert_eq!(world.served_by(100, 20).await, ["vllm-0", "vllm-1"]);

        world.cluster.start_server().await;
        // Sooner than the picker can have noticed, most likely; either way it must arrive.
        world.namespace.delete_pod("vllm-0").await;
        world.pod_comes(2).await;
        world.knows(&[pod_name(1), pod_name(2)]).await;
        assert_eq!(world.served_by(200, 20).await, ["vllm-1", "vllm-2"]);
        for resource in ["pods", "inferencepools"] {
            world.picker.metric_is(&connected(resource), 1.0).await;
        }
        let (status, why) = world.readyz().await;
        assert_eq!((status, &why["degraded"]), (200, &json!({})));
        // A server that starts has no roles loaded, and refuses whoever asks.
        let log = world.picker.logged();
        let mut told = log
            .lines()
            .filter(|line| line.contains("kubernetes watch fails"));
        assert!(told.all(|line| !line.contains("we may not")), "{log}");
    })
    .await;
}
