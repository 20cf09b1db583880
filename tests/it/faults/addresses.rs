//! Event addresses that lead nowhere or to somebody else, as engines tell them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Case, impatient};
use crate::support::fleet::engine::Engine;
use crate::support::ports::own_loopback;
use crate::support::stage::{self, Stage};

/// Stands before an engine and tells what it is told to tell of the engine's event sources; all else passes through.
struct Liar {
    address: SocketAddr,
    _serving: JoinSet<std::io::Result<()>>,
}

impl Liar {
    async fn before(engine: &Engine, sources: Value) -> Self {
        let listener = TcpListener::bind((own_loopback(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = sources.to_string();
        let app = Router::new()
            .route("/kv_event_sources", get(async move || told))
            .fallback(pass)
            .with_state(Arc::new(format!("http://{}", engine.address())));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            _serving: serving,
        }
    }
}

async fn pass(State(engine): State<Arc<String>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let path = head.uri.path_and_query().unwrap();
    let mut asked = reqwest::Client::new().request(head.method, format!("{engine}{path}"));
    for name in ["content-type", "x-data-parallel-rank"] {
        if let Some(value) = head.headers.get(name) {
            asked = asked.header(name, value);
        }
    }
    let answer = asked.body(body).send().await.unwrap();
    let kind = [("content-type", "application/json")];
    (answer.status(), kind, answer.bytes().await.unwrap()).into_response()
}

/// One event source as an engine tells it.
fn source(live: &str, replay: Option<&str>) -> Value {
    json!({
        "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": live, "replay_endpoint": replay,
    })
}

/// A picker before `engine`, which tells `sources`.
async fn told(fault: &'static str, engine: Engine, sources: Value) -> (Case, Liar) {
    let liar = Liar::before(&engine, sources).await;
    let endpoints = [(engine.name.clone(), liar.address)];
    let stage = Stage::listing(&endpoints, vec![engine], impatient()).await;
    stage.settle().await;
    (Case::on(fault, stage), liar)
}

async fn engine(options: &[&'static str]) -> Engine {
    stage::engines(&[options]).await.remove(0)
}

/// vLLM binds only where an address has `*` or `::`; with this one it connects to itself, and nobody listens.
#[tokio::test]
async fn an_address_that_the_engine_does_not_bind_is_told_and_the_engine_served_all_the_same() {
    let fault = "tcp://0.0.0.0:5557, which is not bound";
    let sources = json!({ "0": source("tcp://0.0.0.0:5557", None) });
    let (mut case, _liar) = told(fault, engine(&[]).await, sources).await;
    case.meanwhile([1, 2]).await;
    case.ends_within([1, 2], "absent", "cannot connect to tcp://")
        .await;
}

/// With the usual ports the live socket of rank 1 and the replay socket of rank 0 are the same number.
#[tokio::test]
async fn a_rank_whose_live_port_is_anothers_replay_port_is_told_and_the_other_is_whole() {
    let engine = engine(&["--data-parallel-size", "2"]).await;
    let running = engine.running();
    let [live, replay] = [
        running.kv_events_of(0).unwrap(),
        running.kv_replay_of(0).unwrap(),
    ];
    let sources = json!({ "0": source(live, Some(replay)), "1": source(replay, None) });
    let fault = "rank 1's live port is rank 0's replay port";
    let (mut case, _liar) = told(fault, engine, sources).await;
    case.meanwhile([1, 2, 3, 4, 1, 2, 3, 4]).await;
    let second = case.stage.view("engine-0@1").await;
    assert!(second.is("absent"), "{}", second.page);
    case.ends_within([1, 2, 3, 4], "live", "").await;
}

/// The second rank could not bind its port, and who listens there is the first.
#[tokio::test]
async fn a_rank_that_is_told_to_publish_where_another_does_gets_no_phantoms() {
    let engine = engine(&["--data-parallel-size", "2"]).await;
    let running = engine.running();
    let [live, replay] = [
        running.kv_events_of(0).unwrap(),
        running.kv_replay_of(0).unwrap(),
    ];
    let first = source(live, Some(replay));
    let sources = json!({ "0": first, "1": first });
    let fault = "two ranks at one port";
    let (mut case, _liar) = told(fault, engine, sources).await;
    case.meanwhile([1, 2, 3, 4, 1, 2, 3, 4]).await;
    case.ends_within([1, 2, 3, 4], "live", "").await;
}

/// Two engines on one host at one port: who listens there is the first.
#[tokio::test]
async fn an_engine_that_names_the_socket_of_another_gets_none_of_its_blocks() {
    let engines = stage::engines(&[&[], &[]]).await;
    let [live, replay] = {
        let running = engines[0].running();
        [running.kv_events().unwrap(), running.kv_replay().unwrap()]
    };
    let sources = json!({ "0": source(live, Some(replay)) });
    let liars = [
        Liar::before(&engines[0], sources.clone()).await,
        Liar::before(&engines[1], sources).await,
    ];
    let endpoints = [0, 1].map(|at: usize| (engines[at].name.clone(), liars[at].address));
    let stage = Stage::listing(&endpoints, engines, impatient()).await;
    stage.picker.knows(2, 0).await;
    let mut case = Case::on("two engines name one socket", stage);
    case.says("absent", "").await;
    case.meanwhile([1, 2, 3, 4, 1, 2, 3, 4]).await;
    case.ends_within([1, 2, 3, 4], "absent", "").await;
}
