//! Does a real Envoy run the configuration that we ship, and every variation that other tests ask for?

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::envoy::Envoy;
use crate::support::envoy_config::{self, BodyMode, EnvoyConfig, Obeys, Subset};
use crate::support::http::{self, Raw};
use crate::support::ports;

/// Engines that say who they are and how long a body they got. They end with the test.
struct Engines {
    addresses: Vec<SocketAddr>,
    _tasks: JoinSet<()>,
}

impl Engines {
    async fn start(number: usize) -> Self {
        let (mut addresses, mut tasks) = (Vec::new(), JoinSet::new());
        for _ in 0..number {
            let (listener, address) = ports::listener().await;
            addresses.push(address);
            tasks.spawn(async move {
                axum::serve(listener, engine(address))
                    .await
                    .expect("an engine serves");
            });
        }
        Self {
            addresses,
            _tasks: tasks,
        }
    }
}

fn engine(me: SocketAddr) -> Router {
    let answer = move |headers: HeaderMap, body: Bytes| async move {
        let chunked = headers.contains_key("transfer-encoding");
        json!({ "engine": me, "body_bytes": body.len(), "chunked": chunked }).to_string()
    };
    let events = || async {
        Sse::new(stream::iter(
            ["one", "two"]
                .map(|data| Event::default().data(data))
                .map(Ok::<_, axum::Error>),
        ))
    };
    Router::new()
        .route("/who", get(answer).post(answer))
        .route("/events", post(events))
        .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
}

/// An answer of Envoy's own or an engine's must come; nothing here may hang.
async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), what)
        .await
        .expect("an answer within 30 s")
}

#[test]
fn shipped_files_name_the_same_engines() {
    let listed = envoy_config::shipped("endpoints.yaml");
    let listed = listed["endpoints"].as_array().unwrap().iter();
    let listed: Vec<_> = listed
        .map(|engine| [&engine["address"], &engine["port"]])
        .collect();
    let envoy = envoy_config::shipped("envoy.yaml");
    for cluster in ["engines", "engines-round-robin"] {
        let clusters = envoy["static_resources"]["clusters"].as_array().unwrap();
        let cluster = clusters
            .iter()
            .find(|candidate| candidate["name"] == cluster)
            .unwrap();
        let engines = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            .as_array()
            .unwrap();
        let sockets = engines
            .iter()
            .map(|engine| &engine["endpoint"]["address"]["socket_address"]);
        let known: Vec<_> = sockets
            .map(|socket| [&socket["address"], &socket["port_value"]])
            .collect();
        assert_eq!(listed, known);
    }
}

#[tokio::test]
async fn round_robin_listener_takes_the_engines_in_turn() {
    let engines = Engines::start(2).await;
    let picker = ports::Refusing::new();
    let Some(envoy) = Envoy::start(EnvoyConfig::new(
        picker.address(),
        engines.addresses.clone(),
    ))
    .await
    else {
        return;
    };
    let mut served = Vec::new();
    for _ in 0..4 {
        let answer = within(http::get(envoy.round_robin(), "/who")).await;
        assert_eq!(answer.status, 200);
        let engine: SocketAddr = serde_json::from_value(answer.json()["engine"].clone()).unwrap();
        assert_eq!(
            answer.header("x-served-by"),
            Some(engine.to_string().as_str())
        );
        served.push(engine);
    }
    assert_eq!(served[..2], served[2..]);
    assert_ne!(served[0], served[1]);
    assert_eq!(
        envoy
            .stat_reaches("cluster.engines-round-robin.upstream_rq_200", 4)
            .await,
        4
    );
    assert_eq!(envoy.stat("no.such.counter").await, 0);
}

#[tokio::test]
async fn without_a_picker_requests_are_refused_with_503() {
    let engines = Engines::start(1).await;
    let picker = ports::Refusing::new();
    let config = EnvoyConfig::new(picker.address(), engines.addresses.clone());
    let Some(envoy) = Envoy::start(config).await else {
        return;
    };
    assert_eq!(within(http::get(envoy.picked(), "/who")).await.status, 503);
    assert_eq!(
        within(http::post_json(
            envoy.picked(),
            "/who",
            &json!({ "model": "m" })
        ))
        .await
        .status,
        503
    );
    assert_eq!(envoy.stat("cluster.engines.upstream_rq_total").await, 0);
}

#[tokio::test]
async fn failing_open_serves_a_request_without_a_body() {
    let engines = Engines::start(1).await;
    let picker = ports::Refusing::new();
    let mut config = EnvoyConfig::new(picker.address(), engines.addresses.clone());
    config.failure_mode_allow = true;
    let Some(envoy) = Envoy::start(config).await else {
        return;
    };
    let answer = within(http::get(envoy.picked(), "/who")).await;
    assert_eq!(
        (answer.status, &answer.json()["engine"]),
        (200, &json!(engines.addresses[0]))
    );
}

#[tokio::test]
async fn envoy_accepts_every_variation() {
    let engines = [ports::free()];
    let base = EnvoyConfig::new(ports::free(), engines);
    let modes = [
        BodyMode::None,
        BodyMode::Streamed,
        BodyMode::Buffered,
        BodyMode::BufferedPartial,
        BodyMode::FullDuplexStreamed,
    ];
    let mut configs: Vec<_> = modes
        .map(|mode| EnvoyConfig {
            request_body: mode,
            response_body: mode,
            ..base.clone()
        })
        .into();
    configs.push(EnvoyConfig {
        buffer_limit_bytes: Some(40 << 20),
        http1_trailers: true,
        retries: false,
        ..base.clone()
    });
    configs.push(EnvoyConfig {
        picker_tls: false,
        picker_health_checked: false,
        response_phase: false,
        ..base.clone()
    });
    configs.push(EnvoyConfig {
        obeys: Obeys::Header,
        subset: Subset::FromHeader,
        ..base.clone()
    });
    configs.push(EnvoyConfig {
        subset: Subset::List(vec!["127.0.0.1:1".to_owned()]),
        ..base
    });
    for config in configs {
        let Some(envoy) = within(Envoy::start(config.clone())).await else {
            return;
        };
        let dump = envoy.config_dump().await;
        let modes = find(&dump, "processing_mode").expect("ext_proc is configured");
        let expected = config.render();
        let expected = find(&expected, "processing_mode").expect("ext_proc is configured");
        for key in [
            "request_body_mode",
            "response_body_mode",
            "response_header_mode",
        ] {
            // Envoy leaves out what is its default.
            let running = modes.get(key).unwrap_or(&Value::Null);
            let defaults = [json!("NONE"), json!("DEFAULT")];
            assert!(
                *running == expected[key]
                    || (running.is_null() && defaults.contains(&expected[key])),
                "{key}: {modes}"
            );
        }
    }
}

/// The first value with this key, however deep.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(object) => object
            .get(key)
            .or_else(|| object.values().find_map(|inner| find(inner, key))),
        Value::Array(list) => list.iter().find_map(|inner| find(inner, key)),
        _ => None,
    }
}

#[tokio::test]
async fn requests_are_written_and_answers_read_down_to_the_bytes() {
    let engines = Engines::start(1).await;
    let engine = engines.addresses[0];
    let mut raw = Raw::post_chunked(engine, "/who", &[("content-type", "text/plain")]).await;
    raw.chunk(b"four").await;
    raw.chunk(b"more").await;
    raw.end(&[("x-trailer", "yes")]).await;
    let answer = within(raw.answer()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer
            .ends_with(&json!({ "engine": engine, "body_bytes": 8, "chunked": true }).to_string()),
        "{answer}"
    );

    let mut events = within(http::stream_json(engine, "/events", &Value::Null)).await;
    assert_eq!(events.status(), 200);
    assert_eq!(events.next().await.as_deref(), Some("one"));
    assert_eq!(events.next().await.as_deref(), Some("two"));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn refusing_address_refuses_until_it_listens() {
    let refusing = ports::Refusing::new();
    let address = refusing.address();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    let _listener = refusing.listen();
    assert!(tokio::net::TcpStream::connect(address).await.is_ok());
}
