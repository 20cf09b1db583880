//! Model files from a stub of the hub.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use warmpath::tokens::hub::HubAccess;
use warmpath::tokens::{ModelSource, Retry, Tokens};

use crate::tokens::{self, Running, TINY_TOKENIZER, completion, ids, served, settings, wait_for};

/// What the stub holds and has seen.
#[derive(Default)]
struct Stub {
    files: BTreeMap<&'static str, &'static str>,
    /// Answers so many requests with 503 first.
    failures: Mutex<u32>,
    token: Option<&'static str>,
    /// `name@revision/file` of every request, in order.
    asked: Mutex<Vec<String>>,
}

/// The hub's download route, as far as the client relies on it: ranges, an entity tag and the commit.
async fn resolve(
    State(stub): State<Arc<Stub>>,
    UrlPath((org, name, revision, file)): UrlPath<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response {
    stub.asked
        .lock()
        .push(format!("{org}/{name}@{revision}/{file}"));
    {
        let mut failures = stub.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
    }
    let bearer = stub.token.map(|token| format!("Bearer {token}"));
    if bearer.is_some_and(|bearer| {
        headers
            .get("authorization")
            .is_none_or(|got| *got != bearer)
    }) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Some(content) = stub.files.get(file.as_str()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let range = headers.get(header::RANGE).unwrap().to_str().unwrap();
    let (first, last) = range
        .strip_prefix("bytes=")
        .unwrap()
        .split_once('-')
        .unwrap();
    let first: usize = first.parse().unwrap();
    let last = last.parse::<usize>().unwrap().min(content.len() - 1);
    (
        StatusCode::PARTIAL_CONTENT,
        [
            ("etag", format!("\"{}-{file}\"", content.len())),
            ("x-repo-commit", "c0ffee".to_owned()),
            (
                "content-range",
                format!("bytes {first}-{last}/{}", content.len()),
            ),
        ],
        content.as_bytes().get(first..=last).unwrap().to_owned(),
    )
        .into_response()
}

/// A stub that runs.
pub(crate) struct Hub {
    stub: Arc<Stub>,
    cache: tempfile::TempDir,
    server: Running,
}

impl Hub {
    /// A hub whose models are all the tiny one.
    pub(crate) async fn tiny() -> Self {
        let files = tiny();
        Self::start(Stub {
            files,
            ..Stub::default()
        })
        .await
    }

    /// The loopback port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.server.address.port()
    }

    async fn start(stub: Stub) -> Self {
        let stub = Arc::new(stub);
        let app = Router::new()
            .route(
                "/{org}/{name}/resolve/{revision}/{file}",
                axum::routing::get(resolve),
            )
            .with_state(Arc::clone(&stub));
        Self {
            stub,
            cache: tempfile::tempdir().unwrap(),
            server: Running::start(app).await,
        }
    }

    fn access(&self) -> HubAccess {
        HubAccess {
            endpoint: Some(format!("http://{}/", self.server.address)),
            token: None,
            cache_directory: self.cache.path().to_owned(),
            offline: false,
        }
    }

    fn asked(&self) -> Vec<String> {
        self.stub.asked.lock().clone()
    }
}

fn tiny() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([("tokenizer.json", TINY_TOKENIZER)])
}

fn soon() -> Retry {
    Retry {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        unusable: Duration::from_millis(20),
    }
}

fn start(hub: HubAccess) -> (Arc<Tokens>, tokens::Loading) {
    tokens::start(settings(), hub, soon())
}

#[tokio::test]
async fn a_root_that_an_engine_names_is_downloaded_once_and_used() {
    let hub = Hub::start(Stub {
        files: tiny(),
        ..Stub::default()
    })
    .await;
    let (tokens, _loading) = start(hub.access());
    let engine = "127.0.0.1:1".parse().unwrap();
    let models = vec![served("m", "org/tiny"), served("alias", "org/tiny")];
    tokens.observe(engine, models, Some((0, 31)));
    wait_for("the download", async || {
        ids(&tokens, "m", "ab b").await == Some(vec![2, 3, 1])
    })
    .await;
    assert_eq!(ids(&tokens, "alias", "ab").await, Some(vec![2]));
    let asked = hub.asked();
    assert!(
        asked.iter().all(|file| file.starts_with("org/tiny@main/")),
        "{asked:?}"
    );
    let weights = asked
        .iter()
        .filter(|file| !file.ends_with(".json") && !file.ends_with(".jinja"));
    assert_eq!(weights.count(), 0, "{asked:?}");
    let tokenizer = asked
        .iter()
        .filter(|file| file.ends_with("/tokenizer.json"));
    // One question for its size, one for its bytes.
    assert_eq!(tokenizer.count(), 2, "{asked:?}");
}

#[tokio::test]
async fn a_hub_that_fails_is_asked_again() {
    let hub = Hub::start(Stub {
        files: tiny(),
        failures: Mutex::new(3),
        ..Stub::default()
    })
    .await;
    let (tokens, _loading) = start(hub.access());
    tokens.observe(
        "127.0.0.1:1".parse().unwrap(),
        vec![served("m", "org/tiny")],
        None,
    );
    wait_for("the retries", async || {
        ids(&tokens, "m", "a").await.is_some()
    })
    .await;
    assert!(hub.asked().len() > 3);
}

#[tokio::test]
async fn a_gated_model_needs_the_token_and_its_absence_is_a_failed_load() {
    let stub = || Stub {
        files: tiny(),
        token: Some("secret"),
        ..Stub::default()
    };
    let hub = Hub::start(stub()).await;
    let (tokens, _loading) = start(hub.access());
    tokens.observe(
        "127.0.0.1:1".parse().unwrap(),
        vec![served("m", "org/tiny")],
        None,
    );
    wait_for("the refusal", async || {
        completion(&tokens, "m", "a").await.degraded == Some("load_failed")
    })
    .await;

    let mut access = hub.access();
    access.token = Some("secret".to_owned());
    let (tokens, _loading) = start(access);
    tokens.observe(
        "127.0.0.1:1".parse().unwrap(),
        vec![served("m", "org/tiny")],
        None,
    );
    wait_for("the download", async || {
        ids(&tokens, "m", "a").await.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_clients_model_never_starts_a_download() {
    let hub = Hub::start(Stub {
        files: tiny(),
        ..Stub::default()
    })
    .await;
    let (tokens, _loading) = start(hub.access());
    let engine = "127.0.0.1:1".parse().unwrap();
    tokens.observe(
        engine,
        vec![served("m", "org/tiny"), served("n", "org/other")],
        None,
    );
    wait_for("the download", async || {
        ids(&tokens, "m", "a").await.is_some()
    })
    .await;
    let odd = completion(&tokens, "org/secret", "a").await;
    assert_eq!(odd.degraded, Some("unknown_model"));
    // Another model is downloaded to its end after the odd request, so a download of its would have begun.
    tokens.observe(engine, vec![served("k", "org/third")], None);
    wait_for("the third model", async || {
        ids(&tokens, "k", "a").await.is_some()
    })
    .await;
    let asked = hub.asked();
    assert!(
        asked.iter().all(|file| !file.contains("secret")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_configured_id_has_its_revision_and_needs_no_engine() {
    let hub = Hub::start(Stub {
        files: tiny(),
        ..Stub::default()
    })
    .await;
    let mut settings = settings();
    settings.hub = false;
    let source = ModelSource::Hub("org/tiny@v2".to_owned());
    settings.models.insert("mine".to_owned(), source);
    let (tokens, _loading) = tokens::start(settings, hub.access(), soon());
    wait_for("the download", async || {
        ids(&tokens, "mine", "a").await.is_some()
    })
    .await;
    let asked = hub.asked();
    assert!(
        asked.iter().all(|file| file.starts_with("org/tiny@v2/")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn offline_only_the_cache_is_used() {
    let hub = Hub::start(Stub {
        files: tiny(),
        ..Stub::default()
    })
    .await;
    let models = || vec![served("m", "org/tiny")];
    let engine = "127.0.0.1:1".parse().unwrap();
    {
        let (tokens, _loading) = start(hub.access());
        tokens.observe(engine, models(), None);
        wait_for("the download", async || {
            ids(&tokens, "m", "a").await.is_some()
        })
        .await;
    }
    let before = hub.asked().len();
    let mut access = hub.access();
    access.offline = true;
    let (tokens, _loading) = start(access.clone());
    tokens.observe(engine, models(), None);
    wait_for("the cache", async || ids(&tokens, "m", "a").await.is_some()).await;

    access.cache_directory = Path::new("/nonexistent").to_owned();
    let (tokens, _loading) = start(access);
    tokens.observe(engine, models(), None);
    wait_for("the empty cache", async || {
        completion(&tokens, "m", "a").await.degraded == Some("no_files")
    })
    .await;
    assert_eq!(hub.asked().len(), before);
}
