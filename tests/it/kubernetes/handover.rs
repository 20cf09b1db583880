//! Does the pool that traffic goes to outlive changes of the chart's values, and can it be handed over and taken over?

use serde_json::{Value, json};

use super::chart::Helm;
use crate::support::cluster::Cluster;
use crate::support::cluster::namespace::Namespace;

const VALUES: &str = "tests/data/chart/default.yaml";

/// What tells one pool from another of the same name, and the Service that it names.
async fn pool(namespace: &Namespace, name: &str) -> (String, String) {
    let pool = namespace
        .kubectl(&["get", "inferencepool", name, "--output=json"])
        .await;
    let pool: Value = serde_json::from_str(&pool).expect("JSON");
    let text = |pointer| {
        let value = pool.pointer(pointer).and_then(Value::as_str);
        value.expect("a string").to_owned()
    };
    (text("/metadata/uid"), text("/spec/endpointPickerRef/name"))
}

/// Values with which the pool `warm` is no longer part of the release.
const WITHOUT: [&[&str]; 3] = [
    &[
        "--set",
        "inferencePool.create=false,inferencePool.name=warm",
    ],
    &["--set", "inferencePool.name=other"],
    &["--set", "standalone.enabled=true"],
];

#[tokio::test]
async fn an_upgrade_that_would_delete_the_pool_is_refused_until_the_pool_is_handed_over() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("handover").await;
    let Some(helm) = Helm::of(&namespace) else {
        return;
    };
    helm.chart("install", VALUES, &[]).await;
    let first = pool(&namespace, "warm").await;
    for values in WITHOUT {
        let refusal = helm.refuses("upgrade", VALUES, values).await;
        let hand_over = format!(
            "kubectl -n {} annotate inferencepool warm helm.sh/resource-policy=keep",
            namespace.name
        );
        assert!(refusal.contains(&hand_over), "{values:?}: {refusal}");
        assert_eq!(pool(&namespace, "warm").await, first, "{values:?}");
    }
    // What is no part of it does not matter.
    helm.chart(
        "upgrade",
        VALUES,
        &["--set", "inferenceExtension.replicas=3"],
    )
    .await;

    let annotate = [
        "annotate",
        "inferencepool",
        "warm",
        "helm.sh/resource-policy=keep",
    ];
    namespace.kubectl(&annotate).await;
    for values in WITHOUT {
        helm.chart("upgrade", VALUES, values).await;
        assert_eq!(pool(&namespace, "warm").await, first, "{values:?}");
        // The pool `other`, which nothing is routed to, goes as the refusal says; the first one is taken back.
        let delete = ["delete", "inferencepool", "other", "--ignore-not-found"];
        namespace.kubectl(&delete).await;
        helm.chart("upgrade", VALUES, &[]).await;
        assert_eq!(pool(&namespace, "warm").await, first, "{values:?}");
    }
}

#[tokio::test]
async fn a_pool_to_be_kept_outlives_its_release_and_is_taken_over_by_the_next() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("handover").await;
    let Some(helm) = Helm::of(&namespace) else {
        return;
    };
    let attached = "inferencePool.create=false,inferencePool.name=warm";
    helm.chart("install", VALUES, &["--set", attached]).await;
    let keep = ["--set", "inferencePool.keep=true"];
    helm.chart("upgrade", VALUES, &keep).await;
    let first = pool(&namespace, "warm").await;
    helm.rollback("1").await;
    assert_eq!(pool(&namespace, "warm").await, first);
    helm.chart("upgrade", VALUES, &keep).await;
    assert_eq!(pool(&namespace, "warm").await, first);
    helm.uninstall().await;
    assert_eq!(pool(&namespace, "warm").await, first);
    helm.chart("install", VALUES, &[]).await;
    assert_eq!(pool(&namespace, "warm").await, first);
    helm.uninstall().await;
}

#[tokio::test]
async fn a_pool_that_is_not_helms_is_taken_over_when_that_is_asked_for() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("handover").await;
    let Some(helm) = Helm::of(&namespace) else {
        return;
    };
    let theirs = json!({
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": { "name": "theirs", "namespace": namespace.name },
        "spec": {
            "selector": { "matchLabels": { "app": "vllm" } },
            "targetPorts": [{ "number": 8000 }],
            "endpointPickerRef": { "name": "other-epp", "port": { "number": 9002 } },
        },
    });
    cluster.apply(&theirs.to_string()).await;
    let (uid, service) = pool(&namespace, "theirs").await;
    assert_eq!(service, "other-epp");
    let name = ["--set", "inferencePool.name=theirs"];
    let refusal = helm.refuses("install", VALUES, &name).await;
    assert!(refusal.contains("invalid ownership metadata"), "{refusal}");
    let take = ["--take-ownership", "--force-conflicts"];
    let half = [&name[..], &take[..1]].concat();
    let refusal = helm.refuses("install", VALUES, &half).await;
    assert!(refusal.contains("conflict"), "{refusal}");
    assert_eq!(pool(&namespace, "theirs").await, (uid.clone(), service));
    helm.chart("upgrade", VALUES, &[&name[..], &take].concat())
        .await;
    assert_eq!(
        pool(&namespace, "theirs").await,
        (uid, "warm-epp".to_owned())
    );
}
