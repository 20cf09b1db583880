//! One test's cluster: a namespace with a pool and Pods, an engine behind each, a picker process and a real Envoy.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use warmpath::engine::Settings;

use crate::support::cluster::Cluster;
use crate::support::cluster::accounts::reader;
use crate::support::cluster::namespace::Namespace;
use crate::support::envoy::Envoy;
use crate::support::envoy_config::EnvoyConfig;
use crate::support::fleet::engine::Engine;
use crate::support::fleet::{Exchange, INSTANT, MODEL, request_id};
use crate::support::http::{self, Answer};
use crate::support::picker::feed_is;
use crate::support::picker::process::PickerProcess;
use crate::support::ports::own_loopback;

/// The pool's name.
pub(super) const POOL: &str = "pool";
/// The ports that engines listen on, each Pod at an address of its own: below those that the kernel gives out.
pub(super) const PORTS: [u16; 2] = [18_000, 18_001];

/// What a test wants to be there.
pub(super) struct Plan {
    name: &'static str,
    engines: usize,
    engines_per_pod: usize,
    pods: usize,
    pool: bool,
    own_server: bool,
    addresses: Vec<SocketAddr>,
    settles: bool,
    flags: Vec<String>,
    rules: Vec<Value>,
}

impl Plan {
    /// So many engines, each with a Pod that is ready, and a pool that selects them.
    pub(super) fn pods(name: &'static str, pods: usize) -> Self {
        Self {
            name,
            engines: pods,
            engines_per_pod: 1,
            pods,
            pool: true,
            own_server: false,
            addresses: Vec::new(),
            settles: true,
            flags: vec![format!("--pool-name={POOL}")],
            rules: reader(),
        }
    }

    /// So many further engines whose Pods the test makes itself.
    pub(super) fn and_engines(mut self, engines: usize) -> Self {
        self.engines += engines;
        self
    }

    /// The picker does not get to know the pool by itself.
    pub(super) fn without_settling(mut self) -> Self {
        self.settles = false;
        self
    }

    /// Envoy knows these addresses as well.
    pub(super) fn and_addresses(mut self, addresses: Vec<SocketAddr>) -> Self {
        self.addresses = addresses;
        self
    }

    /// Each Pod has an engine at both of [`PORTS`]; the pool names the first.
    pub(super) fn two_ports(mut self) -> Self {
        self.engines_per_pod = 2;
        self
    }

    /// The test makes the pool itself, or does without.
    pub(super) fn without_pool(mut self) -> Self {
        self.pool = false;
        self
    }

    /// The test stops the API server.
    pub(super) fn own_server(mut self) -> Self {
        self.own_server = true;
        self
    }

    /// Where the picker finds its endpoints, instead of by the pool's name.
    pub(super) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self
    }

    /// What the picker's account may do, instead of what it needs.
    pub(super) fn rules(mut self, rules: Vec<Value>) -> Self {
        self.rules = rules;
        self
    }

    /// Starts it all, runs `test`, and asserts that nothing is left booked. Without the programs the test is left out.
    pub(super) async fn run(self, test: impl AsyncFnOnce(&mut World)) {
        let Some(mut world) = World::start(self).await else {
            return;
        };
        test(&mut world).await;
        world.picker.nothing_is_booked().await;
    }
}

/// What is there.
pub(super) struct World {
    // Dropped in this order.
    pub(super) envoy: Envoy,
    pub(super) picker: PickerProcess,
    /// By Pod, then by port.
    pub(super) engines: Vec<Vec<Engine>>,
    pub(super) namespace: Namespace,
    pub(super) cluster: Arc<Cluster>,
    _folder: TempDir,
}

impl World {
    async fn start(plan: Plan) -> Option<Self> {
        let cluster = if plan.own_server {
            Cluster::own().await?
        } else {
            Cluster::shared().await?
        };
        let namespace = cluster.namespace(plan.name).await;
        let kubeconfig = namespace.account("picker", &plan.rules).await;
        if plan.pool {
            namespace.create_pool(POOL, &PORTS[..1]).await;
        }
        let mut engines = Vec::new();
        for number in 0..plan.engines {
            engines.push(pod_of_engines(number, plan.engines_per_pod).await);
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let picker = start_picker(folder.path(), &kubeconfig, &namespace.name, &plan.flags).await;
        let addresses = engines.iter().flatten().map(Engine::address);
        let addresses = addresses.chain(plan.addresses);
        let envoy = Envoy::start(EnvoyConfig::new(picker.addresses.grpc, addresses)).await?;
        let world = Self {
            envoy,
            picker,
            engines,
            namespace,
            cluster,
            _folder: folder,
        };
        for pod in 0..plan.pods {
            world.pod_comes(pod).await;
        }
        if plan.settles && plan.pool && plan.pods > 0 {
            let names: Vec<_> = (0..plan.pods).map(pod_name).collect();
            world.knows(&names).await;
            world.envoy_sees_the_picker().await;
        }
        Some(world)
    }

    /// Waits until Envoy, which asks the picker's health once a second, sends it requests.
    pub(super) async fn envoy_sees_the_picker(&self) {
        let healthy = "cluster.picker.membership_healthy";
        self.envoy.stat_reaches(healthy, 1).await;
    }

    /// The address of a Pod.
    pub(super) fn ip(&self, pod: usize) -> IpAddr {
        self.engines[pod][0].address().ip()
    }

    /// A Pod is created and ready.
    pub(super) async fn pod_comes(&self, pod: usize) {
        self.namespace.create_pod(&pod_name(pod)).await;
        self.pod_is(pod, true).await;
    }

    /// A Pod's readiness.
    pub(super) async fn pod_is(&self, pod: usize, ready: bool) {
        let (name, ip) = (pod_name(pod), self.ip(pod));
        self.namespace.pod_runs(&name, ip, ready, 0).await;
    }

    /// Waits until the endpoints are exactly these, all of their engines known and their events followed.
    pub(super) async fn knows(&self, names: &[String]) {
        let wanted: Vec<_> = names.iter().map(|name| self.full(name)).collect();
        let what = format!("the endpoints are {wanted:?}, all known");
        let known = |endpoint: &Value| {
            let models = endpoint["engine"]["models"].as_array();
            let told = models.is_some_and(|models| !models.is_empty());
            told && endpoint["report"]["age_ms"].is_u64() && feed_is(endpoint, "live")
        };
        self.picker
            .sees(&what, |endpoints| {
                let mut names: Vec<_> =
                    endpoints.iter().map(|endpoint| &endpoint["name"]).collect();
                names.sort_by_key(|name| name.as_str());
                names == wanted.iter().collect::<Vec<_>>() && endpoints.iter().all(known)
            })
            .await;
    }

    /// Waits until the endpoint of a Pod is as `holds` wants it.
    pub(super) async fn pod_seen(&self, pod: usize, what: &str, holds: impl Fn(&Value) -> bool) {
        let name = self.full(&pod_name(pod));
        self.picker
            .sees(&format!("{name}: {what}"), |endpoints| {
                let mut endpoints = endpoints.iter();
                endpoints.any(|endpoint| endpoint["name"] == name.as_str() && holds(endpoint))
            })
            .await;
    }

    /// The name of an endpoint as pages and decisions have it.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace.name)
    }

    /// Asks for a completion through Envoy, and waits for what the picker made of it.
    pub(super) async fn ask(&self, prompt: &[u32]) -> Exchange {
        let id = request_id();
        let headers = [("content-type", "application/json"), ("x-request-id", &id)];
        let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2 });
        let path = "/v1/completions";
        let answer = http::post(self.envoy.picked(), path, &headers, body.to_string()).await;
        let decision = self.picker.ended(&id).await;
        Exchange { answer, decision }
    }

    /// Asks the same of a picker that may not pick.
    pub(super) async fn try_ask(&self, prompt: &[u32]) -> Answer {
        let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2 });
        http::post_json(self.envoy.picked(), "/v1/completions", &body).await
    }

    /// The Pods that `requests` different prompts went to, each once; every answer is 200.
    pub(super) async fn served_by(&self, topic: u32, requests: u32) -> Vec<String> {
        let mut pods = Vec::new();
        for request in 0..requests {
            let exchange = self.ask(&ids(topic + request, 100)).await;
            assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
            pods.push(
                exchange
                    .endpoint()
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            );
        }
        pods.sort();
        pods.dedup();
        pods
    }

    /// What `/readyz` says: the status, and why.
    pub(super) async fn readyz(&self) -> (u16, Value) {
        let answer = http::get(self.picker.addresses.metrics, "/readyz").await;
        (answer.status, answer.json())
    }
}

/// How the Pod of a number is called.
pub(super) fn pod_name(pod: usize) -> String {
    format!("vllm-{pod}")
}

/// Token ids of a prompt; those of different topics share no block.
pub(super) fn ids(topic: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|token| 1000 * topic + token).collect()
}

/// The engines of one Pod, at one address.
async fn pod_of_engines(number: usize, engines: usize) -> Vec<Engine> {
    let ip = own_loopback().to_string();
    let mut pod = Vec::new();
    for port in &PORTS[..engines] {
        let (port, name) = (port.to_string(), format!("engine-{number}-{port}"));
        let events = format!("tcp://{ip}:0");
        let mut options = vec![
            "--address",
            &ip,
            "--port",
            &port,
            "--name",
            &name,
            "--model",
            MODEL,
        ];
        options.extend(["--kv-events", &events, "--kv-replay", &events]);
        options.extend(INSTANT);
        let settings = Settings::local(&options).expect("options of an engine");
        pod.push(Engine::start(name, settings).await);
    }
    pod
}

/// Starts a picker process under the account of a kubeconfig.
async fn start_picker(
    folder: &Path,
    kubeconfig: &Path,
    namespace: &str,
    flags: &[String],
) -> PickerProcess {
    let settings = json!({
        // A test machine may be busy for longer than an engine may be silent.
        "guards": { "report_age_limit": "30s" },
        "limits": { "pick_timeout": "30s" },
        "tokenizers": { "hub": false, "engine_timeout": "30s" },
        "decisions": 20_000,
    });
    let file = folder.join("settings.yaml");
    std::fs::write(&file, settings.to_string()).expect("a temporary file");
    let mut command = PickerProcess::command();
    command
        .env("KUBECONFIG", kubeconfig)
        .env("RUST_LOG", "info,warmpath=debug")
        .args(["--pool-namespace", namespace, "--drain-delay=0s"])
        .arg("--config")
        .arg(file)
        .args(flags);
    PickerProcess::started(command).await
}
