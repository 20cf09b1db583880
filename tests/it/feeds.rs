//! The world coming in over real files and sockets: the endpoints file, probe and reports.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warmpath::config::Settings;
use warmpath::feeds::client::{Ask, AskError, Client};
use warmpath::feeds::pool::{Pool, Versions};
use warmpath::feeds::probe::{Events, ProbeLoop, Profile};
use warmpath::feeds::static_file::EndpointsFile;
use warmpath::feeds::supervisor::{Context, Profiles, Supervisor};
use warmpath::metrics::Metrics;
use warmpath::readiness::Readiness;
use warmpath::routing::endpoint::EndpointName;
use warmpath::routing::router::Router;
use warmpath::tokens::Tokens;

use crate::support::waiting::{PATIENCE, eventually};

fn one_endpoint(port: u16) -> String {
    format!("endpoints:\n  - {{name: a, address: 127.0.0.1, port: {port}}}\n")
}

fn ports(pool: &Option<Arc<Pool>>) -> Vec<u16> {
    let pool = pool.as_deref().expect("a pool");
    pool.members().map(|m| m.endpoint.address.port()).collect()
}

/// A watched file: its versions, readiness, and what keeps it watched.
struct Watched {
    versions: Versions,
    readiness: Readiness,
    metrics: Metrics,
    _tasks: JoinSet<()>,
}

fn watch_file(path: &Path) -> Watched {
    let file = EndpointsFile::open(path).unwrap();
    let (send, versions) = watch::channel(Some(file.pool()));
    let readiness = Readiness::new();
    let metrics = Metrics::register().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(file.watch(
        send,
        readiness.clone(),
        Arc::clone(&metrics.pool),
        CancellationToken::new(),
    ));
    Watched {
        versions,
        readiness,
        metrics,
        _tasks: tasks,
    }
}

fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

fn metrics_page(metrics: &Metrics) -> String {
    use prometheus::Encoder;
    let mut page = Vec::new();
    let encoder = prometheus::TextEncoder::new();
    encoder
        .encode(&metrics.registry.gather(), &mut page)
        .unwrap();
    String::from_utf8(page).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_renamed_file_is_a_new_version_and_a_broken_one_is_refused_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints.yaml");
    std::fs::write(&path, one_endpoint(8000)).unwrap();
    let watched = watch_file(&path);
    assert_eq!(ports(&watched.versions.borrow()), [8000]);

    replace(&path, &one_endpoint(8001));
    eventually("the new version", || {
        ports(&watched.versions.borrow()) == [8001]
    })
    .await;

    replace(&path, &one_endpoint(8002).replace("8002", "0"));
    eventually("the refusal", || {
        !watched.readiness.detail().degraded.is_empty()
    })
    .await;
    let told = watched.readiness.detail().degraded["endpoints file"].clone();
    assert!(
        told.contains("endpoints.yaml:2:41: endpoint default/a: port `0` is not"),
        "{told}"
    );
    assert_eq!(
        ports(&watched.versions.borrow()),
        [8001],
        "the old pool stays"
    );
    assert!(watched.readiness.detail().ready);
    let page = metrics_page(&watched.metrics);
    assert!(
        page.contains("warmpath_endpoints_file_loads_total{outcome=\"refused\"} 1\n"),
        "{page}"
    );
    assert!(
        page.contains("warmpath_endpoints_file_loads_total{outcome=\"accepted\"} 2\n"),
        "{page}"
    );

    std::fs::remove_file(&path).unwrap();
    eventually("the missing file", || {
        let detail = watched.readiness.detail();
        detail
            .degraded
            .get("endpoints file")
            .is_some_and(|told| told.contains("cannot read"))
    })
    .await;
    replace(&path, &one_endpoint(8003));
    eventually("the cure", || {
        watched.readiness.detail().degraded.is_empty()
    })
    .await;
    assert_eq!(ports(&watched.versions.borrow()), [8003]);
}

#[tokio::test]
async fn a_configmap_swap_of_symlinks_is_a_new_version() {
    let folder = tempfile::tempdir().unwrap();
    let write = |version: &str, port| {
        let data = folder.path().join(version);
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("endpoints.yaml"), one_endpoint(port)).unwrap();
        let link = folder.path().join("..data_tmp");
        std::os::unix::fs::symlink(version, &link).unwrap();
        std::fs::rename(link, folder.path().join("..data")).unwrap();
    };
    write("..v1", 8000);
    let path = folder.path().join("endpoints.yaml");
    std::os::unix::fs::symlink("..data/endpoints.yaml", &path).unwrap();
    let watched = watch_file(&path);
    write("..v2", 8001);
    eventually("the new version", || {
        ports(&watched.versions.borrow()) == [8001]
    })
    .await;
}

#[test]
fn a_missing_file_at_start_is_an_error_with_its_name() {
    let error = EndpointsFile::open(Path::new("/no/such/endpoints.yaml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the endpoints file /no/such/endpoints.yaml"
    );
}

/// Serves `routes` on a port of its own for as long as the set lives.
async fn engine(routes: axum::Router) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (address, tasks)
}

fn vllm() -> axum::Router {
    axum::Router::new()
        .route(
            "/v1/models",
            get(async || r#"{"data":[{"id":"qwen3","root":"/m"}]}"#),
        )
        .route("/version", get(async || r#"{"version":"0.31.0"}"#))
        .route("/kv_event_sources", get(async || "{}"))
        .route(
            "/metrics/",
            get(async |RawQuery(query): RawQuery| {
                assert!(query.unwrap().contains("name[]=vllm:num_requests_running"));
                "vllm:num_requests_running{engine=\"0\"} 0\n"
            }),
        )
}

#[tokio::test]
async fn a_probe_learns_models_version_and_sources_over_http() {
    let (address, _engine) = engine(vllm()).await;
    let (profile, mut told) = watch::channel(Profile::default());
    let probe = ProbeLoop {
        name: EndpointName::new("default", "a"),
        address,
        engine: Client::new().unwrap().engine(address),
        came_back: Arc::new(Notify::new()),
        profile,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(probe.run(|| ()));
    tokio::time::timeout(PATIENCE, told.changed())
        .await
        .unwrap()
        .unwrap();
    let profile = told.borrow().clone();
    assert_eq!(profile.models[0].id, "qwen3");
    assert_eq!(
        (profile.version, profile.events),
        (Some((0, 31)), Some(Events::Off))
    );
}

#[tokio::test]
async fn answers_are_bounded_in_size_time_and_place() {
    let routes = axum::Router::new()
        .route("/endless", get(async || "x".repeat(5 << 20)))
        .route("/never", get(async || std::future::pending::<&str>().await))
        .route(
            "/moved",
            get(async || axum::response::Redirect::temporary("/here/")),
        )
        .route("/here/", get(async || "here"))
        .route(
            "/away",
            get(async || axum::response::Redirect::temporary("http://127.0.0.9:1/")),
        );
    let (address, _engine) = engine(routes).await;
    let engine = Client::new().unwrap().engine(address);
    let deadline = Duration::from_secs(5);
    assert!(matches!(
        engine.get("/endless", deadline).await,
        Err(AskError::TooLarge { .. })
    ));
    let late = engine
        .get("/never", Duration::from_millis(50))
        .await
        .unwrap_err();
    assert_eq!(
        late.to_string(),
        format!("no answer from http://{address}/never within 50 ms")
    );
    assert_eq!(engine.get("/moved", deadline).await.unwrap().body, "here");
    assert_eq!(
        engine.get("/away", deadline).await.unwrap().status,
        StatusCode::TEMPORARY_REDIRECT
    );
}

#[tokio::test]
async fn a_refused_connection_says_so_in_a_few_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let engine = Client::new().unwrap().engine(address);
    let told = engine
        .get("/metrics", Duration::from_secs(5))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        told.starts_with(&format!(
            "no answer from http://{address}/metrics: Connection refused"
        )),
        "{told}"
    );
}

fn context() -> (Context, Metrics) {
    let settings = Settings::default();
    let metrics = Metrics::register().unwrap();
    let context = Context {
        router: Router::new(settings.router),
        tokens: Tokens::new(settings.tokens, Arc::clone(&metrics.tokens)),
        waker: Arc::default(),
        client: Client::new().unwrap(),
        reports: settings.reports,
        kv_events: settings.kv_events,
        profiles: Profiles::default(),
        report_metrics: Arc::clone(&metrics.reports),
        event_metrics: Arc::clone(&metrics.events),
        pick_metrics: Arc::clone(&metrics.picks),
    };
    (context, metrics)
}

#[tokio::test]
async fn a_pool_whose_source_ends_is_an_error_and_a_stop_is_none() {
    for stopped in [false, true] {
        let (context, _metrics) = context();
        let readiness = Readiness::new();
        let started = readiness.wait_for("pool");
        let (send, versions) = watch::channel(Some(Arc::default()));
        let stop = CancellationToken::new();
        if stopped {
            stop.cancel();
        }
        drop(send);
        let ended = Supervisor::new(context)
            .run(versions, readiness, started, stop)
            .await;
        assert_eq!(ended.is_ok(), stopped, "{ended:?}");
    }
}

#[tokio::test]
async fn the_supervisor_asks_who_joins_and_forgets_who_leaves() {
    let (address, _engine) = engine(vllm()).await;
    let (context, metrics) = context();
    let profiles = Arc::clone(&context.profiles);
    let readiness = Readiness::new();
    let file = one_endpoint(address.port());
    let pool = warmpath::feeds::static_file::parse(&file, Path::new("f")).unwrap();
    let (send, versions) = watch::channel(Some(Arc::new(pool)));
    let started = readiness.wait_for("pool x");
    assert!(!readiness.detail().ready);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let supervisor = Supervisor::new(context);
    tasks.spawn(supervisor.run(versions, readiness.clone(), started, stop.clone()));

    eventually("readiness", || readiness.detail().ready).await;
    eventually("a profile", || {
        profiles
            .lock()
            .values()
            .any(|profile| profile.models.len() == 1 && profile.events.is_some())
    })
    .await;
    eventually("a report", || metrics.reports.fresh() >= 1).await;
    send.send_replace(None);
    eventually("forgetting", || profiles.lock().is_empty()).await;
    let detail = readiness.detail();
    assert!(!detail.ready, "without a pool nobody is ready");
    assert_eq!(detail.awaited, ["pool x"], "by the name it had at first");
    send.send_replace(Some(Arc::default()));
    eventually("readiness with an empty pool", || readiness.detail().ready).await;
    stop.cancel();
    let ended = tokio::time::timeout(PATIENCE, tasks.join_next())
        .await
        .unwrap();
    ended.unwrap().unwrap().unwrap();
}
