//! Does the binary run with nothing else around? It is shut into the assembled root: no `/proc`, no `/dev`, no DNS, no shell,
//! nothing writable but its home, as user 65532.

use std::path::Path;

use serde_json::json;
use tokio::process::Command;
use warmpath::engine;

use super::pack;
use crate::hub::Hub;
use crate::support::envoy::Envoy;
use crate::support::envoy_config::EnvoyConfig;
use crate::support::fleet::{MODEL, endpoints_text, until};
use crate::support::http;
use crate::support::process::Process;

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
    fn command(self, root: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
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
            .args(flags)
            .args(["sh", "-c", &format!("{MOUNTS}{enter}"), "sh"])
            .arg(root)
            .arg(owner)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    /// The way that works here; else the test is left out and says so, which is a failure with `CI` set.
    async fn find(root: &Path) -> Option<Self> {
        let version = ["/usr/local/bin/warmpath", "version"];
        let mut told = String::new();
        for way in [Self::Root, Self::UserNamespace] {
            let output = way.command(root, &version).output().await.unwrap();
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

/// Puts a file where the picker sees it.
fn put(root: &Path, name: &str, text: &str) {
    std::fs::write(root.join(name), text).unwrap();
}

async fn page(picker: &Process, path: &str) -> String {
    let answer = http::get(picker.addresses.metrics, path).await;
    String::from_utf8(answer.body.to_vec()).unwrap()
}

async fn has_sample(picker: &Process, sample: &str) {
    until(sample, async || {
        let page = page(picker, "/metrics").await;
        page.lines().any(|line| line == sample).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_binary_serves_a_real_envoy_and_ends_in_order_with_nothing_else_around() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    pack("--root", &root);
    let Some(way) = Way::find(&root).await else {
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
        "tokenizers": { "models": { MODEL: { "hub": "org/tiny" } } },
        "guards": { "report_age_limit": "30s" },
        "limits": { "pick_timeout": "30s" },
    });
    put(&root, "etc/warmpath.yaml", &settings.to_string());

    let port = hub.port();
    let mut command = way.command(
        &root,
        &[
            "/usr/local/bin/warmpath",
            "serve",
            "--bind=127.0.0.1",
            "--grpc-port=0",
            "--grpc-health-port=0",
            "--metrics-port=0",
            "--drain-delay=0s",
            "--endpoints-file=/etc/endpoints.yaml",
            "--config=/etc/warmpath.yaml",
        ],
    );
    command.env("HF_ENDPOINT", format!("http://hub.test:{port}"));
    let picker = Process::start(command).await.unwrap();
    is_shut_in(way, &picker, &root);

    // The hub is found by its name, and its file kept in the home of the user.
    has_sample(&picker, "warmpath_models_loaded 1").await;
    until("the picker is ready", async || {
        let answer = http::get(picker.addresses.metrics, "/readyz").await;
        (answer.status == 200).then_some(())
    })
    .await;
    let metrics = page(&picker, "/metrics").await;
    assert!(metrics.contains("warmpath_build_info{"), "{metrics}");
    // Without /proc there is nothing to tell of the process, and nothing else is missing.
    assert!(!metrics.contains("process_"), "{metrics}");

    if let Some(envoy) =
        Envoy::start(EnvoyConfig::new(picker.addresses.grpc, [engine.http()])).await
    {
        let healthy = "cluster.picker.membership_healthy";
        envoy.stat_reaches(healthy, 1).await;
        let body = json!({ "model": MODEL, "prompt": "ab ab ab", "max_tokens": 2 });
        let answer = http::post_json(envoy.picked(), "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let served_by = engine.http().to_string();
        assert_eq!(answer.header("x-served-by"), Some(served_by.as_str()));
        let picks = "warmpath_picks_total{endpoint=\"default/engine-0\"} 1";
        has_sample(&picker, picks).await;
        has_sample(
            &picker,
            "warmpath_tokenized_requests_total{source=\"local\"} 1",
        )
        .await;
    }

    let end = picker.terminate().await;
    assert_eq!(end.code, Some(0), "{}", end.log);
    assert!(!end.log.contains("ERROR"), "{}", end.log);
}

/// What the kernel says of it: the test sees `/proc`, the picker does not.
fn is_shut_in(way: Way, picker: &Process, root: &Path) {
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
