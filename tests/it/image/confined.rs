//! Does the binary run with nothing else around? It is shut into the assembled root: no `/proc`, no `/dev`, no DNS, no shell,
//! nothing writable but its home, as user 65532.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use warmpath::engine;

use super::pack;
use crate::hub::Hub;
use crate::support::cluster::Cluster;
use crate::support::cluster::accounts::reader;
use crate::support::envoy::Envoy;
use crate::support::envoy_config::EnvoyConfig;
use crate::support::fleet::{MODEL, endpoints_text};
use crate::support::http;
use crate::support::picker::process::PickerProcess;
use crate::support::ports::own_loopback;
use crate::support::waiting::until;

/// The parts that both ways have in common. What is writable is what a Pod gets as an `emptyDir`.
const MOUNTS: &str = r#"
    set -e
    root="$1" owner="$2"
    shift 2
    mount --bind "$root" "$root"
    mount -t tmpfs -o "mode=0700,uid=$owner,gid=$owner" home "$root/home/nonroot"
    mount -o remount,bind,ro "$root"
    cd /
"#;

/// How a process can be shut into a folder here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As root: it becomes user 65532 for good.
    Root,
    /// As anybody, where user namespaces are allowed: it is user 65532 in its own eyes.
    UserNamespace,
}

impl Way {
    /// What runs `arguments` with nothing in its environment but `variables`.
    fn command(self, root: &Path, variables: &[String], arguments: &[&str]) -> Command {
        let mut command = Command::new("env");
        let (flags, owner, enter): (&[_], _, _) = match self {
            Self::Root => (
                &["--mount"],
                "65532",
                "exec chroot --userspec=65532:65532 --groups= \"$root\" \"$@\"",
            ),
            Self::UserNamespace => (
                &["--user", "--map-root-user", "--mount"],
                "0",
                "exec unshare --user --map-user=65532 --map-group=65532 --root=\"$root\" \"$@\"",
            ),
        };
        command
            .args(["-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
            .args(variables)
            .arg("unshare")
            .args(flags)
            .args(["sh", "-c", &format!("{MOUNTS}{enter}"), "sh"])
            .arg(root)
            .arg(owner)
            .args(arguments);
        command
    }

    /// The way that works here; else the test is left out and says so, which is a failure with `CI` set.
    fn find(root: &Path) -> Option<Self> {
        let version = ["/usr/local/bin/warmpath", "version"];
        let mut told = String::new();
        for way in [Self::Root, Self::UserNamespace] {
            let output = way.command(root, &[], &version).output().unwrap();
            if output.status.success() {
                return Some(way);
            }
            told.push_str(&String::from_utf8_lossy(&output.stderr));
        }
        assert!(
            std::env::var_os("CI").is_none(),
            "no process can be shut in here: {told}"
        );
        println!("left out: no process can be shut in here ({told})");
        None
    }
}

async fn serve(way: Way, root: &Path, variables: &[String], flags: &[&str]) -> PickerProcess {
    let usual = ["/usr/local/bin/warmpath", "serve", "--drain-delay=0s"];
    PickerProcess::started(way.command(root, variables, &[&usual, flags].concat())).await
}

/// Puts a file where the picker sees it.
fn put(root: &Path, name: &str, text: &str) {
    std::fs::write(root.join(name), text).unwrap();
}

#[tokio::test]
async fn the_binary_serves_a_real_envoy_and_ends_in_order_with_nothing_else_around() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    pack("--root", &root);
    let Some(way) = Way::find(&root) else {
        return;
    };
    let hub = Hub::tiny().await;
    let settings = engine::Settings::local(&["--model", MODEL, "--name", "engine-0"]).unwrap();
    let engine = engine::start(settings).await.unwrap();

    // A Pod gets these by mounts.
    put(&root, "etc/hosts", "127.0.0.1 hub.test\n");
    let endpoints = endpoints_text(&[("engine-0".to_owned(), engine.http())]);
    put(&root, "etc/endpoints.yaml", &endpoints);
    let settings = json!({
        // The engine has a tokenizer of its own, which canaries would notice.
        "tokenizers": { "models": { MODEL: { "hub": "org/tiny" } }, "canary_interval": "0s" },
        "guards": { "report_age_limit": "30s" },
        "limits": { "pick_timeout": "30s" },
    });
    put(&root, "etc/warmpath.yaml", &settings.to_string());

    let port = hub.port();
    let files = [
        "--endpoints-file=/etc/endpoints.yaml",
        "--config=/etc/warmpath.yaml",
    ];
    let variables = [format!("HF_ENDPOINT=http://hub.test:{port}")];
    let mut picker = serve(way, &root, &variables, &files).await;
    is_shut_in(way, &picker, &root);

    // The hub is found by its name, and its file kept in the home of the user.
    picker.metric_is("warmpath_models_loaded", 1.0).await;
    until("the picker is ready", async || {
        let answer = http::get(picker.addresses.metrics, "/readyz").await;
        (answer.status == 200).then_some(())
    })
    .await;
    let metrics = picker.page("/metrics").await;
    assert!(metrics.contains("warmpath_build_info{"), "{metrics}");
    // Without /proc there is nothing to tell of the process, and nothing else is missing.
    assert!(!metrics.contains("process_"), "{metrics}");

    envoy_is_led(&picker, engine.http()).await;
    let end = picker.terminate().await;
    assert_eq!(end.code, Some(0), "{}", end.log);
    assert!(!end.log.contains("ERROR"), "{}", end.log);
}

/// A request through a real Envoy goes where the picker says, by token ids of its own.
async fn envoy_is_led(picker: &PickerProcess, engine: SocketAddr) {
    let config = EnvoyConfig::new(picker.addresses.grpc, [engine]);
    let Some(envoy) = Envoy::start(config).await else {
        return;
    };
    envoy
        .stat_reaches("cluster.picker.membership_healthy", 1)
        .await;
    let body = json!({ "model": MODEL, "prompt": "ab ab ab", "max_tokens": 2 });
    let answer = http::post_json(envoy.picked(), "/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let served_by = engine.to_string();
    assert_eq!(answer.header("x-served-by"), Some(served_by.as_str()));
    for sample in [
        r#"warmpath_picks_total{endpoint="default/engine-0"}"#,
        r#"warmpath_tokenized_requests_total{source="local"}"#,
    ] {
        picker.metric_is(sample, 1.0).await;
    }
}

/// What a Pod finds in its file system: the address of the API server is in its environment, the rest in this folder.
fn put_service_account(root: &Path, kubeconfig: &Path, namespace: &str) -> SocketAddr {
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    let kubeconfig: Value = serde_json::from_str(&text).unwrap();
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    let folder = root.join("var/run/secrets/kubernetes.io/serviceaccount");
    std::fs::create_dir_all(&folder).unwrap();
    let copy = |from: &Value, name| {
        let text = std::fs::read_to_string(from.as_str().unwrap()).unwrap();
        std::fs::write(folder.join(name), text).unwrap();
    };
    copy(&cluster["certificate-authority"], "ca.crt");
    copy(&kubeconfig["users"][0]["user"]["tokenFile"], "token");
    std::fs::write(folder.join("namespace"), namespace).unwrap();
    let server = cluster["server"].as_str().unwrap();
    server.strip_prefix("https://").unwrap().parse().unwrap()
}

#[tokio::test]
async fn in_a_pod_it_reaches_the_api_server_with_what_every_pod_has() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    pack("--root", &root);
    let (Some(way), Some(cluster)) = (Way::find(&root), Cluster::shared().await) else {
        return;
    };
    let namespace = cluster.namespace("image").await;
    let kubeconfig = namespace.account("picker", &reader()).await;
    let api_server = put_service_account(&root, &kubeconfig, &namespace.name);
    namespace.create_pool("pool", &[8000]).await;
    namespace.create_pod("vllm-0").await;
    let address = IpAddr::from(own_loopback());
    namespace.pod_runs("vllm-0", address, true, 0).await;

    let variables = [
        format!("KUBERNETES_SERVICE_HOST={}", api_server.ip()),
        format!("KUBERNETES_SERVICE_PORT={}", api_server.port()),
    ];
    let mut picker = serve(way, &root, &variables, &["--pool-name=pool"]).await;
    picker
        .sees("the Pod is an endpoint", |endpoints| {
            endpoints.iter().any(|endpoint| {
                endpoint["address"] == format!("{address}:8000") && endpoint["ready"] == true
            })
        })
        .await;
    let end = picker.terminate().await;
    assert_eq!(end.code, Some(0), "{}", end.log);
}

/// What the kernel says of it: the test sees `/proc`, the picker does not.
fn is_shut_in(way: Way, picker: &PickerProcess, root: &Path) {
    let of = |name: &str| {
        let path = format!("/proc/{}/{name}", picker.pid());
        std::fs::read_to_string(path).unwrap()
    };
    let mounts = of("mountinfo");
    let own: Vec<_> = mounts
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            Some((*words.get(4)?, words.get(5)?.starts_with("ro")))
        })
        .collect();
    assert_eq!(own, [("/", true), ("/home/nonroot", false)], "{mounts}");
    if way == Way::Root {
        let status = of("status");
        assert!(
            status.contains("Uid:\t65532\t65532\t65532\t65532"),
            "{status}"
        );
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    }
    assert!(!root.join("proc").exists());
}
