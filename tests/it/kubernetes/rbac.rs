//! The rights that the chart grants are the rights that the picker uses: none is missing, none is more.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::chart::Helm;
use super::world::POOL;
use crate::support::cluster::Cluster;
use crate::support::cluster::namespace::Namespace;
use crate::support::http;
use crate::support::picker::process::PickerProcess;
use crate::support::ports::own_loopback;
use crate::support::waiting::until;

/// Name of the chart's Deployment, and of its account.
const PICKER: &str = "warm-epp";

/// A verb on a resource in a namespace (empty: in the whole cluster).
type Right = (String, String, String);

async fn json_of(namespace: &Namespace, what: &[&str]) -> Value {
    let args = [&["get", "--output=json"], what].concat();
    serde_json::from_str(&namespace.kubectl(&args).await).expect("kubectl prints JSON")
}

/// Everything that bindings grant to the picker's account.
async fn granted(namespace: &Namespace) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for (bindings, place) in [
        ("rolebindings", &*namespace.name),
        ("clusterrolebindings", ""),
    ] {
        let bindings = json_of(namespace, &[bindings]).await;
        for binding in bindings["items"].as_array().into_iter().flatten() {
            let subjects = binding["subjects"].as_array().into_iter().flatten();
            let mut subjects = subjects.filter(|subject| subject["namespace"] == *namespace.name);
            if subjects.any(|subject| subject["name"] == PICKER) {
                let kind = binding["roleRef"]["kind"].as_str().unwrap().to_lowercase();
                let name = binding["roleRef"]["name"].as_str().unwrap();
                let role = json_of(namespace, &[&kind, name]).await;
                rights.extend(rights_of(&role["rules"], place));
            }
        }
    }
    rights
}

fn rights_of(rules: &Value, place: &str) -> Vec<Right> {
    let words = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = Vec::new();
    for rule in rules.as_array().unwrap() {
        assert!(rule["nonResourceURLs"].is_null(), "{rule}");
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                let resource = if group.is_empty() {
                    resource
                } else {
                    format!("{resource}.{group}")
                };
                let verbs = words(&rule["verbs"]).into_iter();
                rights.extend(verbs.map(|verb| (verb, resource.clone(), place.to_owned())));
            }
        }
    }
    rights
}

/// The picker as the Deployment would run it, but for its address and the place of its settings file.
async fn picker_of_the_chart(namespace: &Namespace, folder: &Path) -> PickerProcess {
    let deployment = json_of(namespace, &["deployment", PICKER]).await;
    let pod = &deployment["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().unwrap();
    let settings = json_of(namespace, &["configmap", PICKER]).await;
    let file = folder.join("warmpath.yaml");
    std::fs::write(&file, settings["data"]["warmpath.yaml"].as_str().unwrap()).unwrap();
    // The image's entry point has the command already.
    let mut command = PickerProcess::command();
    for argument in pod["containers"][0]["args"].as_array().unwrap() {
        let argument = argument.as_str().unwrap();
        let path = file.display().to_string();
        command.arg(argument.replace("/etc/warmpath/warmpath.yaml", &path));
    }
    command.env(
        "KUBECONFIG",
        namespace.service_account_kubeconfig(account).await,
    );
    command.env("NAMESPACE", &namespace.name);
    PickerProcess::started(command).await
}

/// What the account asked so far, and that nothing was refused to it.
fn used(namespace: &Namespace) -> BTreeSet<Right> {
    let audited = namespace.cluster.audited(&namespace.user(PICKER));
    for request in &audited {
        assert!(request.code < 400, "{request:?}");
    }
    let rights = audited.into_iter();
    rights
        .map(|request| (request.verb, request.resource, request.namespace))
        .collect()
}

/// Installs the chart with these values, runs its picker while Pods and pool change, and compares.
async fn rights_are_used(
    name: &str,
    more: &[&str],
    meanwhile: impl AsyncFnOnce(&Namespace, &PickerProcess),
) {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace(name).await;
    let Some(helm) = Helm::of(&namespace) else {
        return;
    };
    let own = [
        "--set",
        "tokenizer.hub.enabled=false",
        "--set",
        "inferencePool.name=pool",
    ];
    let flags = [&own[..], more].concat();
    helm.chart("install", "tests/data/chart/default.yaml", &flags)
        .await;
    let folder = tempfile::tempdir().unwrap();
    let picker = picker_of_the_chart(&namespace, folder.path()).await;

    namespace.create_pod("vllm-0").await;
    namespace
        .pod_runs("vllm-0", own_loopback().into(), true, 0)
        .await;
    meanwhile(&namespace, &picker).await;
    namespace.delete_pod("vllm-0").await;
    let granted = granted(&namespace).await;
    assert!(granted.len() >= 2, "{granted:?}");
    until(&format!("{granted:?} are all used"), async || {
        (used(&namespace) == granted).then_some(())
    })
    .await;
    let log = picker.logged();
    assert!(
        !log.contains("may not") && !log.contains("forbidden"),
        "{log}"
    );
}

#[tokio::test]
async fn the_picker_of_the_chart_uses_each_right_it_is_granted_and_is_denied_nothing() {
    rights_are_used("rbac", &[], async |namespace, picker| {
        let joined = format!("{}/vllm-0", namespace.name);
        picker.lists(&joined).await;
        // Another selector is another watch.
        let selector = json!({ "selector": { "matchLabels": { "app": "other" } } });
        namespace.patch_pool(POOL, &selector).await;
        picker
            .sees("it is none any more", |endpoints| endpoints.is_empty())
            .await;
    })
    .await;
}

#[tokio::test]
async fn without_an_inference_pool_the_chart_grants_pods_alone() {
    let standalone = [
        "--set",
        "standalone.enabled=true",
        "--set",
        "inferencePool.name=",
    ];
    rights_are_used("rbac", &standalone, async |namespace, picker| {
        let joined = format!("{}/vllm-0", namespace.name);
        picker.lists(&joined).await;
    })
    .await;
}

#[tokio::test]
async fn with_protected_metrics_the_picker_may_ask_who_asks_and_the_reader_may_read() {
    let auth = [
        "--set",
        "inferenceExtension.monitoring.prometheus.auth.enabled=true",
    ];
    rights_are_used("rbac", &auth, async |namespace, picker| {
        let metrics = picker.addresses.metrics;
        let get = async |token: Option<String>| {
            let header = token.map(|token| format!("Bearer {token}"));
            let headers: Vec<_> = header
                .iter()
                .map(|value| ("authorization", &**value))
                .collect();
            http::get_with(metrics, "/metrics", &headers).await.status
        };
        assert_eq!(get(None).await, 401);
        let reader = namespace.token(&format!("{PICKER}-metrics-reader")).await;
        assert_eq!(get(Some(reader)).await, 200);
        // The picker's own account may ask, but not read.
        assert_eq!(get(Some(namespace.token(PICKER).await)).await, 403);
    })
    .await;
}
