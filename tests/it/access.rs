//! Who sees the pages with `--metrics-endpoint-auth`? A picker process that asks a double of the API server.

mod cluster;

use std::path::Path;
use std::process::Command;

use axum::Json;
use axum::routing::post;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::http;
use crate::support::picker::process::PickerProcess;
use crate::support::ports;

const PROTECTED: [&str; 6] = [
    "/",
    "/metrics",
    "/debug/state",
    "/debug/cache/default/vllm-0",
    "/debug/decisions",
    "/log-level",
];

/// A picker, and the API server that it asks.
struct Stage {
    picker: PickerProcess,
    api_server: JoinSet<std::io::Result<()>>,
    _folder: TempDir,
}

/// Every token is good and names its user; `prometheus` may get `/metrics`, `admin` may do all.
fn api_server() -> axum::Router {
    let token_review = async |Json(mut review): Json<Value>| {
        let user = review["spec"]["token"].clone();
        review["status"] = match user.as_str() {
            Some("made-up") => json!({ "error": "unknown" }),
            _ => json!({ "authenticated": true, "user": { "username": user } }),
        };
        Json(review)
    };
    let access_review = async |Json(mut review): Json<Value>| {
        let spec = &review["spec"];
        let right = &spec["nonResourceAttributes"];
        let scrape = json!({ "path": "/metrics", "verb": "get" });
        let allowed = spec["user"] == "admin" || spec["user"] == "prometheus" && *right == scrape;
        review["status"] = json!({ "allowed": allowed });
        Json(review)
    };
    axum::Router::new()
        .route(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            post(token_review),
        )
        .route(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            post(access_review),
        )
}

fn kubeconfig(folder: &Path, server: &str) -> std::path::PathBuf {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{ "name": "it", "cluster": { "server": server } }],
        "users": [{ "name": "picker", "user": { "token": "of-the-picker" } }],
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "picker" } }],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

fn serve(folder: &Path) -> Command {
    let endpoints = folder.join("endpoints.yaml");
    let text = "endpoints:\n  - {name: vllm-0, address: 127.0.0.1, port: 1}\n";
    std::fs::write(&endpoints, text).unwrap();
    let mut command = PickerProcess::command();
    command
        .args(["--metrics-endpoint-auth", "--drain-delay=0s"])
        .arg("--endpoints-file")
        .arg(endpoints);
    command
}

async fn start(listener: TcpListener) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let mut api_server_task = JoinSet::new();
    api_server_task.spawn(async move { axum::serve(listener, api_server()).await });
    let mut command = serve(folder.path());
    command.env("KUBECONFIG", kubeconfig(folder.path(), &server));
    Stage {
        picker: PickerProcess::started(command).await,
        api_server: api_server_task,
        _folder: folder,
    }
}

impl Stage {
    async fn get(&self, path: &str, token: Option<&str>) -> http::Answer {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = bearer
            .iter()
            .map(|bearer| ("authorization", bearer.as_str()))
            .collect();
        http::get_with(self.picker.addresses.metrics, path, &headers).await
    }

    /// Asks without a token for exactly this path, which an HTTP client would put in order, and reads all.
    async fn raw_get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.picker.addresses.metrics)
            .await
            .unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: picker\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn status(&self, path: &str, token: Option<&str>) -> u16 {
        self.get(path, token).await.status
    }
}

#[tokio::test]
async fn every_page_but_the_probes_asks_for_a_token_and_its_right() {
    let (listener, _) = ports::listener().await;
    let mut stage = start(listener).await;
    for page in PROTECTED {
        assert_eq!(stage.status(page, None).await, 401, "{page}");
        assert_eq!(stage.status(page, Some("made-up")).await, 401, "{page}");
        assert_eq!(stage.status(page, Some("grafana")).await, 403, "{page}");
        assert_eq!(stage.status(page, Some("admin")).await, 200, "{page}");
    }
    assert_eq!(stage.status("/livez", None).await, 200);
    assert!([200, 503].contains(&stage.status("/readyz", None).await));
    assert_eq!(stage.status("/no/such/page", None).await, 404);
    for other_spelling in [
        "//metrics",
        "/metrics/",
        "/livez/../metrics",
        "/./metrics",
        "/%6detrics",
        "/metrics%2f",
        "/METRICS",
        "/livez/metrics",
        "/debug/",
        "/debug/state/",
    ] {
        let answer = stage.raw_get(other_spelling).await;
        assert!(
            answer.starts_with("HTTP/1.1 404"),
            "{other_spelling}: {answer}"
        );
        assert!(answer.ends_with("\r\n\r\n"), "{other_spelling}: {answer}");
    }
    assert_eq!(stage.status("/metrics?page=/livez", None).await, 401);
    for page in PROTECTED {
        for method in ["OPTIONS", "HEAD", "POST", "TRACE", "PUT", "ODD"] {
            let url = format!("http://{}{page}", stage.picker.addresses.metrics);
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let asked = reqwest::Client::new().request(method.clone(), url);
            let status = asked.send().await.unwrap().status().as_u16();
            let expected = match method.as_str() {
                "HEAD" | "PUT" => 401,
                _ => 405,
            };
            assert_eq!(status, expected, "{method} {page}");
        }
    }

    assert_eq!(stage.status("/metrics", Some("prometheus")).await, 200);
    assert_eq!(stage.status("/debug/state", Some("prometheus")).await, 403);
    let asked = stage.get("/metrics", None).await;
    assert_eq!(asked.header("www-authenticate"), Some("Bearer"));

    let put = async |token: &str| {
        let url = format!("http://{}/log-level", stage.picker.addresses.metrics);
        let request = reqwest::Client::new().put(url).bearer_auth(token);
        request.body("debug").send().await.unwrap().status()
    };
    assert_eq!(put("prometheus").await, 403);
    assert_eq!(put("admin").await, 204);
    assert_eq!(stage.picker.terminate().await.code, Some(0));
}

#[tokio::test]
async fn an_api_server_that_goes_away_shuts_the_pages_and_leaves_the_probes() {
    let (listener, address) = ports::listener().await;
    let mut stage = start(listener).await;
    assert_eq!(stage.status("/metrics", Some("prometheus")).await, 200);
    stage.api_server.shutdown().await;
    // What was granted holds for a minute; a new token would have to be asked for.
    assert_eq!(stage.status("/metrics", Some("prometheus")).await, 200);
    let refused = stage.get("/metrics", Some("admin")).await;
    assert_eq!(refused.status, 503);
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(text.contains("did not answer a TokenReview"), "{text}");
    assert_eq!(stage.status("/livez", None).await, 200);

    let listener = TcpListener::bind(address).await.unwrap();
    stage
        .api_server
        .spawn(async move { axum::serve(listener, api_server()).await });
    crate::support::waiting::until("the page is shown again", async || {
        (stage.status("/metrics", Some("admin")).await == 200).then_some(())
    })
    .await;
    let end = stage.picker.terminate().await;
    assert_eq!(end.code, Some(0));
    for said in ["pages are refused", "can be found out again"] {
        assert!(end.log.contains(said), "{}", end.log);
    }
    for token in ["prometheus", "of-the-picker"] {
        assert!(!end.log.contains(token), "a token in the log: {}", end.log);
    }
}

#[tokio::test]
async fn without_an_api_server_to_ask_the_picker_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path());
    command
        .env("KUBECONFIG", folder.path().join("nowhere"))
        .env_remove("KUBERNETES_SERVICE_HOST");
    let end = PickerProcess::place(command).try_start().await.unwrap_err();
    assert_eq!(end.code, Some(1));
    assert!(
        end.log
            .contains("--metrics-endpoint-auth asks the API server"),
        "{}",
        end.log
    );
}
