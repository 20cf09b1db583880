//! Starting: over real sockets without an API server, and with flags that mean nothing.

use std::process::Command;

use tokio::net::TcpListener;

use super::*;

fn over_sockets(port: u16) -> kube::Client {
    let url = format!("http://127.0.0.1:{port}").parse().unwrap();
    let mut config = kube::Config::new(url);
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

/// Serves `api` until what is returned is dropped.
fn serve(api: &Api, listener: TcpListener) -> JoinSet<()> {
    let router = api.router();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    tasks
}

#[tokio::test]
async fn the_api_server_may_come_go_and_come_back_at_any_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let pace = Pace {
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        ..Pace::default()
    };
    let watched = watch_with(over_sockets(address.port()), pool_target(), pace);
    eventually("it is told", || {
        watched.degraded().contains("cannot reach the API server")
    })
    .await;
    assert!(
        watched.degraded().contains("Connection refused"),
        "{}",
        watched.degraded()
    );

    let api = Api::new();
    api.put(POOLS, inference_pool("a", &[8000]));
    api.put(PODS, pod("x", "a", "10.0.0.1"));
    let serving = serve(&api, TcpListener::bind(address).await.unwrap());
    watched.shows("10.0.0.1:8000").await;
    eventually("all is well", || watched.degraded().is_empty()).await;

    drop(serving);
    api.set_all(&api::Mood::Silent);
    eventually("it is told again", || {
        watched.degraded().contains("cannot reach the API server")
    })
    .await;
    assert_eq!(watched.shown(), "10.0.0.1:8000");

    api.put(PODS, pod("y", "a", "10.0.0.2"));
    api.set_all(&api::Mood::Well);
    let _serving = serve(&api, TcpListener::bind(address).await.unwrap());
    watched.shows("10.0.0.1:8000 10.0.0.2:8000").await;
    eventually("all is well again", || watched.degraded().is_empty()).await;
}

#[tokio::test]
async fn a_server_that_takes_connections_and_says_nothing_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let mut config = kube::Config::new(url.parse().unwrap());
    config.connect_timeout = Some(Duration::from_millis(50));
    let client = kube::Client::try_from(config).unwrap();
    let watched = watch_with(client, pool_target(), Pace::default());
    let expected = "cannot reach the API server: no connection in time";
    eventually(expected, || watched.degraded().contains(expected)).await;
}

/// What the program says when it does not start.
fn refusal(flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command
        .arg("serve")
        .args(flags)
        .env_clear()
        .env("HOME", folder.path());
    let ports = [
        "--grpc-port",
        "0",
        "--grpc-health-port",
        "0",
        "--metrics-port",
        "0",
    ];
    let output = command.args(ports).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn without_a_cluster_the_refusal_names_the_way_without_one() {
    let refusal = refusal(&["--pool-name", "vllm"]);
    assert!(
        refusal.contains("no Kubernetes API server is known"),
        "{refusal}"
    );
    assert!(
        refusal.contains("list the endpoints in an --endpoints-file"),
        "{refusal}"
    );
}

#[test]
fn flags_that_mean_nothing_are_refused_before_anything_is_asked() {
    let cases: [(&[&str], &str); 4] = [
        (
            &[
                "--endpoint-selector",
                "app in vllm",
                "--endpoint-target-ports",
                "8000",
            ],
            "--endpoint-selector: `app in` needs values in parentheses",
        ),
        (
            &["--endpoint-selector", "", "--endpoint-target-ports", "8000"],
            "--endpoint-selector: an empty selector would select every Pod",
        ),
        (
            &[
                "--endpoint-selector",
                "app=a",
                "--endpoint-target-ports",
                "8000,8000",
            ],
            "--endpoint-target-ports: port 8000 is named twice",
        ),
        (
            &[
                "--endpoint-selector",
                "app=a",
                "--endpoint-target-ports",
                "1,2,3,4,5,6,7,8,9",
            ],
            "--endpoint-target-ports: 9 ports are named, at most 8",
        ),
    ];
    for (flags, expected) in cases {
        let refusal = refusal(flags);
        assert!(refusal.contains(expected), "{flags:?}: {refusal}");
    }
}

#[tokio::test]
async fn names_that_would_lead_elsewhere_are_refused() {
    let api = Api::new();
    let target = |name: &str, group: &str| Target::Pool {
        name: name.to_owned(),
        group: group.to_owned(),
    };
    let cases = [
        (
            target("a/b", "g.io"),
            "prod",
            "the InferencePool `a/b` is no name of Kubernetes",
        ),
        (
            target("", "g.io"),
            "prod",
            "the InferencePool `` is no name",
        ),
        (
            target("vllm", "../v1"),
            "prod",
            "the API group `../v1` is no name",
        ),
        (
            target("vllm", "g.io"),
            "Prod",
            "the namespace `Prod` is no name",
        ),
    ];
    for (target, namespace, expected) in cases {
        let client = kube::Client::new(api.router(), "default");
        let refused = Kubernetes::new(client, target, Some(namespace), Pace::default());
        let refusal = refused.map(|_| ()).unwrap_err().to_string();
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[tokio::test]
async fn the_namespace_is_that_of_the_client_where_none_is_named() {
    for namespace in [None, Some("")] {
        let client = kube::Client::new(Api::new().router(), "ours");
        let kubernetes =
            Kubernetes::new(client, pool_target(), namespace, Pace::default()).unwrap();
        assert_eq!(
            kubernetes.describe(),
            "InferencePool vllm in namespace ours"
        );
    }
}
