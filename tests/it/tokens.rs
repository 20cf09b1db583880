//! Token ids by the three ways: in process, by an engine's `/tokenize`, by an estimate.

mod parity;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warmpath::metrics::token_sources::TokenMetrics;
use warmpath::routing::block::Sequence;
use warmpath::routing::request::{Api, Request};
use warmpath::tokens::hub::HubAccess;
use warmpath::tokens::{ModelSource, Retry, ServedModel, Settings, TokenSource, Tokenized, Tokens};

use crate::support::waiting::{PATIENCE, eventually, until};

/// Byte-pair encoding of four symbols: `a` 0, `b` 1, `ab` 2, space 3.
pub(crate) const TINY_TOKENIZER: &str = r#"{
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}
}"#;

/// A server on a port of its own; it ends with the value.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    _server: JoinSet<()>,
}

impl Running {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            _server: server,
        }
    }
}

/// The background loading; it ends with the value.
pub(crate) struct Loading(#[expect(dead_code, reason = "held for its drop")] JoinSet<()>);

pub(crate) fn settings() -> Settings {
    Settings {
        models: std::collections::BTreeMap::new(),
        directory: None,
        hub: true,
        cache_directory: None,
        cache_bytes: 1 << 20,
        engine_timeout: Duration::from_secs(5),
        engine_concurrency: 8,
        bytes_per_token: 4.0,
        canary_interval: Duration::ZERO,
    }
}

/// No hub at all: a port on which nobody listens.
fn no_hub() -> HubAccess {
    HubAccess {
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        token: None,
        cache_directory: "/nonexistent".into(),
        offline: true,
    }
}

fn retry() -> Retry {
    Retry {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        unusable: Duration::from_millis(20),
    }
}

pub(crate) fn start(settings: Settings, hub: HubAccess, retry: Retry) -> (Arc<Tokens>, Loading) {
    let metrics = Arc::new(TokenMetrics::register(&Registry::new()).unwrap());
    let tokens = Tokens::with_hub(settings, hub, retry, metrics);
    let mut loading = JoinSet::new();
    loading.spawn(Arc::clone(&tokens).run(CancellationToken::new()));
    (tokens, Loading(loading))
}

/// Waits until `condition` holds.
pub(crate) async fn wait_for(what: &str, condition: impl AsyncFn() -> bool) {
    until(what, async || condition().await.then_some(())).await;
}

pub(crate) fn served(id: &str, root: &str) -> ServedModel {
    ServedModel {
        id: id.to_owned(),
        root: Some(root.to_owned()),
        parent: None,
        max_model_len: Some(1000),
    }
}

async fn tokenize(tokens: &Tokens, api: Api, body: &Value) -> Tokenized {
    let body = body.to_string();
    let request = Arc::new(Request::parse(api, body.as_bytes()).unwrap());
    tokens
        .tokenize(&request, body.as_bytes(), Some("Bearer client"))
        .await
}

pub(crate) async fn completion(tokens: &Tokens, model: &str, prompt: &str) -> Tokenized {
    let body = json!({"model": model, "prompt": prompt});
    tokenize(tokens, Api::Completions, &body).await
}

/// The ids of a completion's prompt if they are made in process.
pub(crate) async fn ids(tokens: &Tokens, model: &str, prompt: &str) -> Option<Vec<u32>> {
    let tokenized = completion(tokens, model, prompt).await;
    match (tokenized.source, tokenized.sequences.as_slice()) {
        (TokenSource::Local, [Sequence::Tokens(ids)]) => Some(ids.clone()),
        _ => None,
    }
}

fn write_model(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), TINY_TOKENIZER).unwrap();
}

#[tokio::test]
async fn a_folder_of_models_serves_what_engines_name() {
    let folder = tempfile::tempdir().unwrap();
    write_model(&folder.path().join("by-id"));
    write_model(&folder.path().join("last"));
    write_model(&folder.path().join("org--dashed"));
    let mut settings = settings();
    settings.directory = Some(folder.path().to_owned());
    let (tokens, _loading) = start(settings, no_hub(), retry());
    let models = vec![
        served("by-id", "/weights/x"),
        served("m2", "/weights/last"),
        served("m3", "org/dashed"),
        ServedModel {
            parent: Some("m2".to_owned()),
            ..served("lora", "/adapters/lora")
        },
        served("none", "/weights/none"),
    ];
    tokens.observe("127.0.0.1:1".parse().unwrap(), models, Some((0, 31)));
    for name in ["by-id", "m2", "m3", "lora"] {
        wait_for(name, async || {
            ids(&tokens, name, "ab").await == Some(vec![2])
        })
        .await;
    }
    let adapted = completion(&tokens, "lora", "ab").await;
    assert_eq!(adapted.adapter.as_deref(), Some("lora"));
    assert_eq!(adapted.degraded, None);
    wait_for("the search for the last one", async || {
        completion(&tokens, "none", "ab").await.degraded == Some("no_files")
    })
    .await;
}

#[tokio::test]
async fn files_that_come_later_or_are_mended_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings();
    let source = ModelSource::Directory(folder.path().join("m"));
    settings.models.insert("m".to_owned(), source);
    let (tokens, _loading) = start(settings, no_hub(), retry());
    wait_for("the search", async || {
        completion(&tokens, "m", "ab").await.degraded == Some("no_files")
    })
    .await;
    std::fs::create_dir(folder.path().join("m")).unwrap();
    std::fs::write(folder.path().join("m/tokenizer.json"), "{").unwrap();
    wait_for("the broken file", async || {
        completion(&tokens, "m", "ab").await.degraded == Some("load_failed")
    })
    .await;
    write_model(&folder.path().join("m"));
    wait_for("the mended file", async || {
        ids(&tokens, "m", "ab").await.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_large_body_gives_the_same_ids_from_another_thread() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let mut settings = settings();
    let source = ModelSource::Directory(folder.path().to_owned());
    settings.models.insert("m".to_owned(), source);
    let (tokens, _loading) = start(settings, no_hub(), retry());
    wait_for("the load", async || ids(&tokens, "m", "ab").await.is_some()).await;
    // Twenty nanoseconds a byte are expected at first: this is ten times what is done at once.
    let prompt = "ab ".repeat(100_000);
    let made = ids(&tokens, "m", &prompt).await.unwrap();
    assert_eq!(made.len(), 200_000);
    assert!(made.chunks(2).all(|pair| pair == [2, 3]));
}

#[tokio::test(start_paused = true)]
async fn a_model_outlives_its_last_engine_for_some_minutes() {
    let folder = tempfile::tempdir().unwrap();
    write_model(&folder.path().join("m"));
    let mut settings = settings();
    settings.directory = Some(folder.path().to_owned());
    let (tokens, _loading) = start(settings, no_hub(), retry());
    let engine = "127.0.0.1:1".parse().unwrap();
    let join = || tokens.observe(engine, vec![served("m", "/weights/m")], None);
    join();
    wait_for("the load", async || ids(&tokens, "m", "ab").await.is_some()).await;
    tokens.forget(engine);
    tokio::time::sleep(Duration::from_secs(540)).await;
    join();
    assert_eq!(
        ids(&tokens, "m", "ab").await,
        Some(vec![2]),
        "unloaded too soon"
    );
    // The loader has to see that it is wanted again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokens.forget(engine);
    tokio::time::sleep(Duration::from_secs(660)).await;
    join();
    let made = completion(&tokens, "m", "ab").await;
    assert_eq!(made.degraded, Some("loading"), "never unloaded");
}

/// A double of an engine's `/tokenize`.
struct Engine {
    calls: Mutex<Vec<(Value, Option<String>)>>,
    answer: Mutex<Answer>,
}

#[derive(Clone)]
enum Answer {
    Tokens(Vec<u32>),
    Status(u16),
    Text(&'static str),
    /// Tokens made of the body.
    From(fn(&Value) -> Vec<u32>),
    Never,
}

async fn answer(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    let authorization = headers.get("authorization");
    let authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut answer = engine.answer.lock().clone();
    if let Answer::From(make) = answer {
        answer = Answer::Tokens(make(&body));
    }
    engine.calls.lock().push((body, authorization));
    match answer {
        Answer::Tokens(tokens) => {
            let count = tokens.len();
            axum::Json(json!({"count": count, "max_model_len": 1000, "tokens": tokens, "token_strs": null}))
                .into_response()
        }
        Answer::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Answer::Text(text) => text.into_response(),
        Answer::Never | Answer::From(_) => std::future::pending().await,
    }
}

/// One that runs.
async fn double(first: Answer) -> (Arc<Engine>, Running) {
    let engine = Arc::new(Engine {
        calls: Mutex::default(),
        answer: Mutex::new(first),
    });
    let app = Router::new()
        .route("/tokenize", axum::routing::post(answer))
        .with_state(Arc::clone(&engine));
    (engine, Running::start(app).await)
}

/// An engine that serves `m`, whose tokenizer cannot be had here.
async fn with_engine(
    first: Answer,
    settings: Settings,
) -> (Arc<Tokens>, Arc<Engine>, Running, Loading) {
    let (engine, running) = double(first).await;
    let (tokens, loading) = start(settings, no_hub(), retry());
    let models = vec![
        ServedModel {
            root: None,
            ..served("m", "")
        },
        ServedModel {
            parent: Some("m".to_owned()),
            ..served("lora", "/adapters/lora")
        },
    ];
    tokens.observe(running.address, models, Some((0, 31)));
    (tokens, engine, running, loading)
}

#[tokio::test]
async fn without_files_the_engine_is_asked_with_the_clients_authorization() {
    let (tokens, engine, _running, _loading) =
        with_engine(Answer::Tokens(vec![7, 8]), settings()).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"model": "lora", "messages": messages, "stream": true});
    let made = tokenize(&tokens, Api::Chat, &chat).await;
    assert_eq!(made.source, TokenSource::Engine);
    assert_eq!(made.sequences, [Sequence::Tokens(vec![7, 8])]);
    assert_eq!(made.adapter.as_deref(), Some("lora"));
    assert_eq!(made.degraded, Some("no_source"));
    completion(&tokens, "m", "x").await;
    let asked = engine.calls.lock().clone();
    let client = Some("Bearer client".to_owned());
    let expected = [
        (json!({"model": "m", "messages": messages}), client.clone()),
        (json!({"model": "m", "prompt": "x"}), client),
    ];
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn the_same_prompt_is_asked_for_once() {
    let (tokens, engine, _running, _loading) =
        with_engine(Answer::Tokens(vec![7]), settings()).await;
    for (temperature, prompt) in [(0, "x"), (1, "x"), (1, "y"), (0, "y")] {
        let body = json!({"model": "m", "prompt": prompt, "temperature": temperature});
        let made = tokenize(&tokens, Api::Completions, &body).await;
        assert_eq!(made.source, TokenSource::Engine);
    }
    assert_eq!(engine.calls.lock().len(), 2);
}

#[tokio::test]
async fn whatever_the_engine_does_the_request_gets_its_estimate() {
    let never = Settings {
        engine_timeout: Duration::from_millis(30),
        ..settings()
    };
    for (answer, settings) in [
        (Answer::Status(400), settings()),
        (Answer::Status(404), settings()),
        (Answer::Status(302), settings()),
        (Answer::Status(503), settings()),
        (Answer::Text("tokens"), settings()),
        (Answer::Text(r#"{"tokens":[-1]}"#), settings()),
        (Answer::Never, never),
    ] {
        let (tokens, _engine, _running, _loading) = with_engine(answer, settings).await;
        let made = completion(&tokens, "m", "12345678").await;
        assert_eq!(made.source, TokenSource::Estimate);
        let [Sequence::Estimate { tokens, text }] = made.sequences.as_slice() else {
            panic!("not one estimate: {:?}", made.sequences);
        };
        assert_eq!((tokens.get(), text.as_slice()), (2, b"12345678".as_slice()));
    }
}

#[tokio::test]
async fn an_engine_that_failed_is_left_alone_and_one_that_refused_is_not() {
    let (tokens, engine, _running, _loading) = with_engine(Answer::Status(400), settings()).await;
    completion(&tokens, "m", "a").await;
    completion(&tokens, "m", "b").await;
    assert_eq!(engine.calls.lock().len(), 2);
    *engine.answer.lock() = Answer::Status(500);
    completion(&tokens, "m", "c").await;
    *engine.answer.lock() = Answer::Tokens(vec![1]);
    assert_eq!(
        completion(&tokens, "m", "d").await.source,
        TokenSource::Estimate
    );
    assert_eq!(engine.calls.lock().len(), 3);
}

#[tokio::test]
async fn calls_at_once_are_bounded() {
    let settings = Settings {
        engine_concurrency: 1,
        engine_timeout: PATIENCE,
        ..settings()
    };
    let (tokens, engine, _running, _loading) = with_engine(Answer::Never, settings).await;
    let calls = || engine.calls.lock().len();
    let mut first = Box::pin(completion(&tokens, "m", "a"));
    tokio::select! {
        made = &mut first => panic!("an answer: {made:?}"),
        () = eventually("the first call", || calls() == 1) => {}
    }
    // Unbounded it would be made within milliseconds.
    let mut second = Box::pin(completion(&tokens, "m", "b"));
    let waited = tokio::time::timeout(Duration::from_millis(200), &mut second).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(calls(), 1);
    drop(first);
    tokio::select! {
        made = &mut second => panic!("an answer: {made:?}"),
        () = eventually("the second call", || calls() == 2) => {}
    }
}

#[tokio::test]
async fn an_engine_that_left_is_not_asked() {
    let (tokens, engine, running, _loading) =
        with_engine(Answer::Tokens(vec![1]), settings()).await;
    tokens.forget(running.address);
    let made = completion(&tokens, "m", "a").await;
    assert_eq!(
        (made.source, made.degraded),
        (TokenSource::Estimate, Some("unknown_model"))
    );
    assert_eq!(engine.calls.lock().len(), 0);
}

#[tokio::test]
async fn estimates_of_prompts_that_begin_alike_begin_alike() {
    let (tokens, _loading) = start(settings(), no_hub(), retry());
    let text = async |content: &str| {
        let messages = json!([{"role": "system", "content": "You are terse."}, {"role": "user", "content": content}]);
        let made = tokenize(
            &tokens,
            Api::Chat,
            &json!({"messages": messages, "seed": 1}),
        )
        .await;
        match made.sequences.as_slice() {
            [Sequence::Estimate { text, .. }] => text.clone(),
            other => panic!("not one estimate: {other:?}"),
        }
    };
    let (one, two) = (text("say one").await, text("say two").await);
    let common = one.iter().zip(&two).take_while(|(a, b)| a == b).count();
    assert!(
        common >= "You are terse.say ".len(),
        "{common} bytes in common"
    );
    assert_ne!(one, two);
}
