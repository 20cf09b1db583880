//! Our ids against an engine's, without the rest of the way: what proves something, what does not, and what follows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warmpath::routing::block::{Scope, Sequence};
use warmpath::routing::cache::{CacheView, FeedState};
use warmpath::routing::cost::Tiers;
use warmpath::routing::endpoint::{Endpoint, EndpointName, ReportOutcome};
use warmpath::routing::event::{EngineHash, KvEvent, Medium, Stored};
use warmpath::routing::model::{Model, ModelFiles};
use warmpath::routing::router::{self, Ask, Decision, Policy, Router};
use warmpath::tokens::{Provenance, Settings, TokenSource, Tokens};

use super::{Answer, Duration, ModelSource, TINY_TOKENIZER, completion, ids, no_hub, retry};
use super::{ServedModel, double, served, settings, start, wait_for, write_model};
use crate::support::waiting::until;

/// A model `m` that is loaded here, with its watch over parity.
struct Watched {
    tokens: Arc<Tokens>,
    _loading: super::Loading,
    _watch: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Watched {
    async fn start(canary_interval: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let mut settings = Settings {
            canary_interval,
            ..settings()
        };
        let source = ModelSource::Directory(folder.path().to_owned());
        settings.models.insert("m".to_owned(), source);
        let (tokens, loading) = start(settings, no_hub(), retry());
        let mut watch = JoinSet::new();
        watch.spawn(Arc::clone(&tokens).watch_parity(CancellationToken::new()));
        wait_for("the load", async || ids(&tokens, "m", "ab").await.is_some()).await;
        Self {
            tokens,
            _loading: loading,
            _watch: watch,
            _folder: folder,
        }
    }

    fn observe(&self, engine: SocketAddr) {
        let model = ServedModel {
            max_model_len: None,
            ..served("m", "/weights/m")
        };
        self.tokens.observe(engine, vec![model], Some((0, 33)));
    }

    fn page(&self) -> Value {
        self.tokens.to_json()[0].clone()
    }

    async fn parity_is(&self, word: &str) -> Value {
        until(&format!("parity is {word}"), async || {
            let page = self.page();
            (page["parity"] == word).then_some(page)
        })
        .await
    }

    async fn source(&self) -> (TokenSource, Option<&'static str>) {
        let made = completion(&self.tokens, "m", "ab ab").await;
        (made.source, made.degraded)
    }
}

/// The ids that the model really has.
fn right(body: &Value) -> Vec<u32> {
    let model = Model::load(&ModelFiles {
        tokenizer: TINY_TOKENIZER.into(),
        ..ModelFiles::default()
    });
    let prompt = body["prompt"].as_str().unwrap_or_default();
    model.unwrap().encode(prompt, true)
}

#[tokio::test]
async fn canaries_that_differ_hand_the_model_to_its_engine_and_back() {
    let watched = Watched::start(Duration::from_millis(200)).await;
    let (engine, running) = double(Answer::Tokens(vec![7])).await;
    watched.observe(running.address);
    let page = watched.parity_is("differs").await;
    assert_eq!(page["difference"]["canary"], "text");
    assert_eq!(page["difference"]["theirs"], 7);
    let by_engine = (TokenSource::Engine, Some("parity"));
    assert_eq!(watched.source().await, by_engine);
    // It can no longer be asked: what it said stands.
    *engine.answer.lock() = Answer::Status(500);
    until("it could not be asked", async || {
        let page = watched.page();
        (page["not_asked"][0]["reason"] == "engine_failed").then_some(())
    })
    .await;
    assert_eq!(watched.page()["parity"], "differs");
    *engine.answer.lock() = Answer::From(right);
    watched.parity_is("agrees").await;
    assert_eq!(watched.source().await, (TokenSource::Local, None));
}

#[tokio::test]
async fn an_engine_that_cannot_be_asked_is_no_mismatch() {
    for (status, reason) in [
        (404, "engine_without_tokenize"),
        (401, "engine_denied"),
        (429, "engine_failed"),
        (503, "engine_failed"),
        (400, "engine_refused"),
    ] {
        let watched = Watched::start(Duration::from_millis(200)).await;
        let (_engine, running) = double(Answer::Status(status)).await;
        watched.observe(running.address);
        until(reason, async || {
            (watched.page()["not_asked"][0]["reason"] == reason).then_some(())
        })
        .await;
        assert_eq!(watched.page()["parity"], "unknown");
        assert_eq!(watched.source().await, (TokenSource::Local, None));
    }
}

#[tokio::test]
async fn engines_replaced_by_others_start_afresh() {
    let watched = Watched::start(Duration::from_secs(3_600)).await;
    let (_wrong, wrong) = double(Answer::Tokens(vec![7])).await;
    watched.observe(wrong.address);
    watched.parity_is("differs").await;
    let (_right, right) = double(Answer::From(right)).await;
    watched.observe(right.address);
    watched.tokens.forget(wrong.address);
    // An hour's interval has not passed.
    watched.parity_is("agrees").await;
}

/// An endpoint whose events a test plays.
struct Played {
    router: Arc<Router>,
    view: CacheView,
    stored: u64,
}

impl Played {
    fn new(address: SocketAddr) -> Self {
        let router = Router::new(router::Settings {
            tiers: Tiers::default(),
            policy: Policy::LeastPrefill,
            kv_usage_limit: 0.95,
            report_age_limit: Duration::from_secs(600),
            idle_report_age_limit: Duration::from_secs(600),
        });
        let id = router.join(Endpoint {
            name: EndpointName::new("ns", "e"),
            address,
            labels: std::collections::BTreeMap::new(),
            incarnation: String::new(),
            rank: None,
        });
        let mut view = router.cache_view(id, 0);
        view.set_feed(FeedState::Live);
        router.set_ready(id, true);
        router.report(id, ReportOutcome::NoPage, Instant::now());
        let mut played = Self {
            router,
            view,
            stored: 0,
        };
        played.store(&[9; 16]);
        played
    }

    fn store(&mut self, tokens: &[u32]) {
        self.stored += 1;
        let first = tokens[..16].to_vec();
        self.view.apply(&[KvEvent::Stored(Stored {
            hashes: vec![EngineHash(self.stored)],
            parent: None,
            tokens: first,
            opaque_tokens: false,
            block_size: 16,
            lora_name: None,
            extras: Vec::new(),
            medium: Medium::Gpu,
            group: None,
            indexable_group: true,
        })]);
    }

    fn pick(&self, sequences: &[Sequence]) -> Decision {
        let prepared = self.router.prepare(sequences, &Scope::default());
        let ask = Ask {
            subset: None,
            alternates: 0,
            now: Instant::now(),
            chance: 0,
        };
        self.router.pick(&prepared, &ask).unwrap()
    }
}

/// A request of its own; the engine stores what `as_stored` makes of its ids. Says by whom its ids were made.
async fn request(
    watched: &Watched,
    played: &mut Played,
    n: usize,
    as_stored: fn(&mut Vec<u32>),
) -> TokenSource {
    // No two numbers begin with the same sixteen tokens.
    let prompt: String = (0..40)
        .map(|bit| if n >> (bit % 6) & 1 == 1 { "ab " } else { "a " })
        .collect();
    let made = completion(&watched.tokens, "m", &prompt).await;
    let decision = played.pick(&made.sequences);
    let mut ids = right(&json!({ "prompt": prompt }));
    as_stored(&mut ids);
    played.store(&ids);
    let proof: Option<(Provenance, _)> =
        made.provenance.zip(decision.reservation.first_block(None));
    if let Some((provenance, block)) = proof {
        watched.tokens.ended(provenance, block);
    }
    made.source
}

#[tokio::test]
async fn without_tokenize_first_blocks_lead_to_estimates_and_trials_back() {
    // A trial a tenth of a second; the engine has no `/tokenize`.
    let watched = Watched::start(Duration::from_secs(6)).await;
    let (_engine, running) = double(Answer::Status(404)).await;
    watched.observe(running.address);
    let mut played = Played::new(running.address);
    let other = |ids: &mut Vec<u32>| ids.insert(0, 3);
    for n in 0..4 {
        let source = request(&watched, &mut played, n, other).await;
        assert_eq!(source, TokenSource::Local);
    }
    let page = watched.parity_is("unstored").await;
    assert_ne!(page["not_stored"]["ours"], page["not_stored"]["stored"]);
    let mut sources = Vec::new();
    for n in 4..10 {
        sources.push(request(&watched, &mut played, n, other).await);
    }
    let trials = sources
        .iter()
        .filter(|&&source| source == TokenSource::Local);
    assert!(trials.count() <= 2, "{sources:?}");
    assert!(sources.contains(&TokenSource::Estimate), "{sources:?}");
    // From now on it stores what we send.
    let mut n = 10;
    until("three trials were stored", async || {
        n += 1;
        request(&watched, &mut played, n % 64, |_| ()).await;
        (watched.page()["parity"] == "unknown").then_some(())
    })
    .await;
    assert_eq!(watched.source().await, (TokenSource::Local, None));
}
