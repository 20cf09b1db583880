//! Service accounts: with which rights, and how a process acts as one.

use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::namespace::Namespace;

/// A right as a Role gives it.
pub(crate) fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
}

/// All that a picker needs: to read Pods and pools.
pub(crate) fn reader() -> Vec<Value> {
    let verbs = ["get", "list", "watch"];
    vec![
        rule("", "pods", &verbs),
        rule("inference.networking.k8s.io", "inferencepools", &verbs),
    ]
}

impl Namespace {
    /// Creates a service account with these rights in this namespace and no other, and returns its kubeconfig.
    pub(crate) async fn account(&self, name: &str, rules: &[Value]) -> PathBuf {
        let meta = json!({ "name": name, "namespace": self.name });
        let rbac = "rbac.authorization.k8s.io";
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta },
            { "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": meta, "rules": rules },
            { "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": meta,
              "roleRef": { "apiGroup": rbac, "kind": "Role", "name": name },
              "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": self.name }] },
        ]});
        self.cluster.apply(&objects.to_string()).await;
        self.service_account_kubeconfig(name).await
    }

    /// The kubeconfig of a service account that is there. Its token is in a file of its own, as in a Pod.
    pub(crate) async fn service_account_kubeconfig(&self, name: &str) -> PathBuf {
        let user = format!("{}-{name}", self.name);
        let file = self.cluster.file(&format!("{user}.token"));
        std::fs::write(&file, self.token(name).await).expect("a temporary file");
        let kubeconfig = format!("{user}.kubeconfig");
        self.cluster
            .write_kubeconfig(&kubeconfig, &json!({ "tokenFile": file }))
    }

    /// A token of a service account that is there.
    pub(crate) async fn token(&self, name: &str) -> String {
        let client = self.cluster.client().await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &self.name);
        let request = json!({ "spec": { "audiences": [], "expirationSeconds": 3600 } });
        let request: TokenRequest = serde_json::from_value(request).expect("a request");
        let granted = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await;
        let status = granted.expect("a token is granted").status;
        let token = status.and_then(|status| status.token);
        token.expect("the token itself")
    }

    /// The name under which the API server knows a service account of this namespace.
    pub(crate) fn user(&self, account: &str) -> String {
        format!("system:serviceaccount:{}:{account}", self.name)
    }
}
