//! A real API server with its store: started once for all tests, with InferencePool and the Gateway API defined.
//!
//! There is no controller and no kubelet: nothing happens to an object but what a test does to it. Start it by
//! [`Cluster::shared`], take a [`Namespace`] for each test, and [`Cluster::own`] where a test stops the server.

pub(crate) mod accounts;
pub(crate) mod audit;
mod credentials;
pub(crate) mod namespace;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::OnceCell;

use self::namespace::Namespace;
use super::fleet::tail;
use super::guarded::{Guarded, Swept};
use super::ports::own_loopback;
use super::tools;
use crate::support::waiting::until;

/// Who asks, and what was answered, for every request under a service account.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
    {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// A running etcd and kube-apiserver.
pub(crate) struct Cluster {
    // Dropped in this order.
    server: Mutex<Option<Guarded>>,
    _store: Guarded,
    folder: PathBuf,
    _sweep: Swept,
    programs: PathBuf,
    address: SocketAddr,
    namespaces: AtomicUsize,
}

impl Cluster {
    /// The server that all tests use; `None` (with a printed line) where the programs are missing.
    pub(crate) async fn shared() -> Option<Arc<Self>> {
        static SHARED: OnceCell<Option<Arc<Cluster>>> = OnceCell::const_new();
        SHARED.get_or_init(Self::own).await.clone()
    }

    /// A server for one test alone, which may stop it.
    pub(crate) async fn own() -> Option<Arc<Self>> {
        let (programs, definitions) = (tools::kubernetes()?, tools::crds()?);
        let folder = tempfile::tempdir().expect("a temporary folder").keep();
        let sweep = Swept::after_use(&folder);
        let started = Instant::now();
        // Nobody else listens on this address, so the usual ports are free.
        let ip = IpAddr::from(own_loopback());
        let address = SocketAddr::new(ip, 6443);
        credentials::write(&folder, ip).expect("certificates can be made");
        std::fs::write(folder.join("audit.json"), AUDIT_POLICY).expect("a temporary file");
        let store = Guarded::start(
            &store_command(&programs, &folder, ip),
            &folder.join("etcd.log"),
        );
        let cluster = Self {
            server: Mutex::default(),
            _store: store,
            folder,
            _sweep: sweep,
            programs,
            address,
            namespaces: AtomicUsize::new(0),
        };
        let certificate = cluster.file("admin.crt");
        cluster.write_kubeconfig(
            "admin.kubeconfig",
            &json!({ "client-certificate": certificate, "client-key": cluster.file("admin.key") }),
        );
        cluster.start_server().await;
        let ready = started.elapsed();
        cluster.define(&definitions).await;
        println!(
            "API server ready after {ready:?}, with its definitions after {:?}",
            started.elapsed()
        );
        Some(Arc::new(cluster))
    }

    /// Starts the server (again), at the same address and with what the store holds.
    pub(crate) async fn start_server(&self) {
        let log = self.folder.join("kube-apiserver.log");
        let server = Guarded::start(&self.server_command(), &log);
        *self.server.lock() = Some(server);
        let client = self.client().await;
        until("the API server is ready", async || {
            let ended = self.server.lock().as_mut().and_then(Guarded::ended);
            assert!(
                ended.is_none(),
                "the API server ended: {ended:?}\n{}",
                tail(&log, 20)
            );
            let request = axum::http::Request::get("/readyz").body(Vec::new());
            client.request_text(request.expect("a request")).await.ok()
        })
        .await;
    }

    /// Ends the server at once: connections break, nobody is told.
    pub(crate) fn stop_server(&self) {
        *self.server.lock() = None;
    }

    fn server_command(&self) -> Command {
        let ip = self.address.ip();
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        command.current_dir(&self.folder);
        command.args([
            "--bind-address",
            &ip.to_string(),
            "--advertise-address",
            &ip.to_string(),
        ]);
        command.args([
            "--secure-port",
            "6443",
            "--etcd-servers",
            &format!("http://{ip}:2379"),
        ]);
        command.args([
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            "--client-ca-file=ca.crt",
            "--cert-dir=.",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=accounts.pub",
            "--service-account-signing-key-file=accounts.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            // Pods need no service account, which only a controller would make.
            "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged",
            "--audit-policy-file=audit.json",
            "--audit-log-path=audit.log",
            // Neither serves a purpose here, and both cost time.
            "--enable-priority-and-fairness=false",
            "--endpoint-reconciler-type=none",
            // A watch that a test cuts must not keep the server from ending.
            "--shutdown-delay-duration=0s",
        ]);
        command
    }

    /// Defines InferencePool and the Gateway API, and waits until they are served.
    async fn define(&self, definitions: &Path) {
        let folder = definitions.to_str().expect("a path in UTF-8");
        self.kubectl(&[
            "apply",
            "--server-side",
            "--validate=false",
            "--filename",
            folder,
        ])
        .await;
        self.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd",
            "--all",
        ])
        .await;
    }

    /// A namespace of its own for one test, its name starting with `prefix`.
    pub(crate) async fn namespace(self: &Arc<Self>, prefix: &str) -> Namespace {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        Namespace::create(Arc::clone(self), format!("{prefix}-{number}")).await
    }

    /// A client with all rights. It belongs to the runtime of the test that asks.
    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.admin_kubeconfig()).expect("our own file");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Client::try_from(config.expect("our own file")).expect("a client")
    }

    /// The kubeconfig of somebody who may do anything.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.file("admin.kubeconfig")
    }

    /// Writes the kubeconfig of a user with these credentials.
    fn write_kubeconfig(&self, name: &str, user: &serde_json::Value) -> PathBuf {
        let cluster = json!({ "server": format!("https://{}", self.address), "certificate-authority": self.file("ca.crt") });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "tests", "cluster": cluster }],
            "users": [{ "name": name, "user": user }],
            "contexts": [{ "name": "tests", "context": { "cluster": "tests", "user": name } }],
            "current-context": "tests",
        });
        let file = self.file(name);
        std::fs::write(&file, config.to_string()).expect("a temporary file");
        file
    }

    /// A file of this cluster.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs kubectl with all rights; it must succeed. Returns what it printed.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {said}");
        String::from_utf8(output.stdout).expect("kubectl prints text")
    }

    /// The same, whatever comes of it.
    pub(crate) async fn try_kubectl(&self, args: &[&str]) -> Output {
        self.run(&self.programs.join("kubectl"), args, "").await
    }

    /// Applies objects written in YAML or JSON.
    pub(crate) async fn apply(&self, objects: &str) -> String {
        let args = ["apply", "--server-side", "--filename", "-"];
        let output = self
            .run(&self.programs.join("kubectl"), &args, objects)
            .await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\nin {objects}");
        String::from_utf8(output.stdout).expect("kubectl prints text")
    }

    /// Runs a program that talks to this cluster with all rights, such as helm. What it keeps goes to a folder of ours.
    pub(crate) async fn run(&self, program: &Path, args: &[&str], input: &str) -> Output {
        let mut command = tokio::process::Command::new(program);
        command.args(args).kill_on_drop(true);
        command.env("KUBECONFIG", self.admin_kubeconfig());
        command.env("HOME", &self.folder);
        for variable in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env_remove(variable);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut pipe = child.stdin.take().expect("it was asked for");
        let input = async move {
            // A program that has read enough closes its end, which is no failure of ours.
            drop(pipe.write_all(input.as_bytes()).await);
        };
        let ((), output) = tokio::join!(input, child.wait_with_output());
        output.expect("the program can be waited for")
    }

    /// Called by what a failing test drops: keeps the logs and shows the last lines.
    fn keep_logs(&self) {
        drop(std::fs::write(self.file("keep"), ""));
        let log = tail(&self.file("kube-apiserver.log"), 10);
        println!(
            "API server (logs kept in {}):\n{log}",
            self.folder.display()
        );
    }
}

fn store_command(programs: &Path, folder: &Path, ip: IpAddr) -> Command {
    let (client, peer) = (format!("http://{ip}:2379"), format!("http://{ip}:2380"));
    let mut command = Command::new(programs.join("etcd"));
    command.current_dir(folder);
    command.args([
        "--data-dir",
        "etcd",
        "--initial-cluster",
        &format!("default={peer}"),
    ]);
    command.args([
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
    ]);
    command.args([
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
    ]);
    // Nothing here has to outlive the machine.
    command.arg("--unsafe-no-fsync");
    command
}
