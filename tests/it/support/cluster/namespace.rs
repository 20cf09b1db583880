//! One test's share of the API server: its Pods, its pool, its accounts.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace as Object, Pod};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};

use super::Cluster;

/// The label that [`Namespace::create_pod`] gives, and its value.
pub(crate) const SELECTOR: (&str, &str) = ("app", "vllm");

/// A namespace that no other test uses. It is left as it is: the server ends with the test run.
pub(crate) struct Namespace {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) name: String,
    client: Client,
}

impl Namespace {
    pub(super) async fn create(cluster: Arc<Cluster>, name: String) -> Self {
        let client = cluster.client().await;
        let object = json!({ "metadata": { "name": name } });
        let object: Object = serde_json::from_value(object).expect("a namespace");
        let namespaces: Api<Object> = Api::all(client.clone());
        let created = namespaces.create(&PostParams::default(), &object).await;
        created.expect("a namespace can be created");
        Self {
            cluster,
            name,
            client,
        }
    }

    /// The Pods in it.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Objects of any other kind.
    pub(crate) fn objects(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), &self.name, &resource)
    }

    fn pools(&self) -> Api<DynamicObject> {
        self.objects("inference.networking.k8s.io", "v1", "InferencePool")
    }

    /// Creates a Pod with the label of [`SELECTOR`] and the container `vllm`: no address, no status yet.
    ///
    /// It is bound to a node, so that its deletion waits for a kubelet, which a test plays.
    pub(crate) async fn create_pod(&self, name: &str) {
        self.create_pod_as(name, &json!({})).await;
    }

    /// The same with further metadata.
    pub(crate) async fn create_pod_as(&self, name: &str, metadata: &Value) {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { SELECTOR.0: SELECTOR.1 } },
            "spec": { "nodeName": "node-0", "containers": [{ "name": "vllm", "image": "vllm" }] },
        }))
        .expect("a Pod");
        let more: Pod = serde_json::from_value(json!({ "metadata": metadata })).expect("metadata");
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.extend(more.metadata.labels.unwrap_or_default());
        pod.metadata.annotations = more.metadata.annotations;
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.unwrap_or_else(|error| panic!("{name} cannot be created: {error}"));
    }

    /// Says of a Pod what a kubelet says of one that runs: its address, ready or not, restarted so often.
    pub(crate) async fn pod_runs(&self, name: &str, ip: IpAddr, ready: bool, restarts: u32) {
        let truth = if ready { "True" } else { "False" };
        let container = json!({
            "name": "vllm", "image": "vllm", "imageID": "vllm",
            "ready": ready, "restartCount": restarts,
            "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
        });
        let status = json!({
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": truth }],
            "containerStatuses": [container],
        });
        self.patch_pod_status(name, &status).await;
    }

    /// Merges into a Pod's status.
    pub(crate) async fn patch_pod_status(&self, name: &str, status: &Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self
            .pods()
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap_or_else(|error| panic!("status of {name}: {error}"));
    }

    /// Merges into a Pod's metadata.
    pub(crate) async fn patch_pod_metadata(&self, name: &str, metadata: &Value) {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = self
            .pods()
            .patch(name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap_or_else(|error| panic!("metadata of {name}: {error}"));
    }

    /// Asks a Pod to end: it gets its deletion time and stays until [`Self::delete_pod`].
    pub(crate) async fn terminate_pod(&self, name: &str) {
        let deleted = self.pods().delete(name, &DeleteParams::default()).await;
        deleted.unwrap_or_else(|error| panic!("{name} cannot be deleted: {error}"));
    }

    /// Removes a Pod at once, as a kubelet does when its containers have ended.
    pub(crate) async fn delete_pod(&self, name: &str) {
        let at_once = DeleteParams::default().grace_period(0);
        let deleted = self.pods().delete(name, &at_once).await;
        deleted.unwrap_or_else(|error| panic!("{name} cannot be deleted: {error}"));
    }

    /// Creates an InferencePool that selects the label of [`SELECTOR`].
    pub(crate) async fn create_pool(&self, name: &str, ports: &[u16]) {
        let spec = json!({
            "selector": { "matchLabels": { SELECTOR.0: SELECTOR.1 } },
            "targetPorts": target_ports(ports),
            "endpointPickerRef": { "name": "picker", "port": { "number": 9002 } },
        });
        let pool: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": { "name": name },
            "spec": spec,
        }))
        .expect("a pool");
        let created = self.pools().create(&PostParams::default(), &pool).await;
        created.unwrap_or_else(|error| panic!("{name} cannot be created: {error}"));
    }

    /// Merges into a pool's spec.
    pub(crate) async fn patch_pool(&self, name: &str, spec: &Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = self
            .pools()
            .patch(name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap_or_else(|error| panic!("{name} cannot be changed: {error}"));
    }

    /// Deletes a pool.
    pub(crate) async fn delete_pool(&self, name: &str) {
        let deleted = self.pools().delete(name, &DeleteParams::default()).await;
        deleted.unwrap_or_else(|error| panic!("{name} cannot be deleted: {error}"));
    }

    /// Runs kubectl in this namespace; it must succeed.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        let args = [&["--namespace", &self.name], args].concat();
        self.cluster.kubectl(&args).await
    }
}

/// A pool's target ports as its spec has them.
pub(crate) fn target_ports(ports: &[u16]) -> Value {
    ports.iter().map(|port| json!({ "number": port })).collect()
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cluster.keep_logs();
        }
    }
}
