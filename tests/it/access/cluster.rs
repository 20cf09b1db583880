//! The same before a real API server, with the rights that the documentation names.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{PROTECTED, serve};
use crate::support::cluster::Cluster;
use crate::support::cluster::accounts::rule;
use crate::support::cluster::namespace::Namespace;
use crate::support::http;
use crate::support::picker::process::PickerProcess;
use crate::support::waiting::until;

/// What the picker's account needs, as docs/metrics.md has it.
fn reviewer() -> Vec<Value> {
    vec![
        rule("authentication.k8s.io", "tokenreviews", &["create"]),
        rule("authorization.k8s.io", "subjectaccessreviews", &["create"]),
    ]
}

/// Grants rights in the whole cluster to an account.
async fn grant(namespace: &Namespace, account: &str, rules: Value) {
    let rbac = "rbac.authorization.k8s.io";
    let meta = json!({ "name": format!("{}-{account}", namespace.name) });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": meta, "rules": rules },
        { "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": meta,
          "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": meta["name"] },
          "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace.name }] },
    ]});
    namespace.cluster.apply(&objects.to_string()).await;
}

async fn token(namespace: &Namespace, account: &str) -> String {
    let token = namespace.kubectl(&["create", "token", account]).await;
    token.trim().to_owned()
}

async fn get(picker: &PickerProcess, path: &str, token: &str) -> http::Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    http::get_with(picker.addresses.metrics, path, &headers).await
}

#[tokio::test]
async fn the_right_to_get_metrics_opens_them_and_nothing_else() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("access").await;
    let kubeconfig = namespace.account("picker", &[]).await;
    for account in ["prometheus", "somebody"] {
        namespace
            .kubectl(&["create", "serviceaccount", account])
            .await;
    }
    let scrape = json!([{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }]);
    grant(&namespace, "prometheus", scrape).await;
    let prometheus = token(&namespace, "prometheus").await;
    let somebody = token(&namespace, "somebody").await;

    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path());
    command.env("KUBECONFIG", kubeconfig);
    let mut picker = PickerProcess::started(command).await;

    let early = get(&picker, "/metrics", &prometheus).await;
    let text = String::from_utf8_lossy(&early.body).into_owned();
    assert_eq!(early.status, 500, "{text}");
    assert!(
        text.contains("does not let the picker create a TokenReview"),
        "{text}"
    );

    grant(&namespace, "picker", reviewer().into()).await;
    until("prometheus may scrape", async || {
        let answer = get(&picker, "/metrics", &prometheus).await;
        (answer.status == 200).then_some(())
    })
    .await;
    for page in PROTECTED {
        let expected = if page == "/metrics" { 200 } else { 403 };
        assert_eq!(
            get(&picker, page, &prometheus).await.status,
            expected,
            "{page}"
        );
        assert_eq!(get(&picker, page, &somebody).await.status, 403, "{page}");
        assert_eq!(get(&picker, page, "made-up").await.status, 401, "{page}");
    }
    let refused = get(&picker, "/metrics", &somebody).await;
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(text.starts_with(&namespace.user("somebody")), "{text}");

    let asked: BTreeSet<_> = cluster
        .audited(&namespace.user("picker"))
        .into_iter()
        .map(|request| format!("{} {}", request.verb, request.resource))
        .collect();
    let expected = [
        "create subjectaccessreviews.authorization.k8s.io",
        "create tokenreviews.authentication.k8s.io",
    ];
    assert!(asked.iter().eq(expected), "{asked:?}");
    assert_eq!(picker.terminate().await.code, Some(0));
}
