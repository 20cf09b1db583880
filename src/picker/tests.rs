use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::json;

use super::*;
use crate::extproc::pick::{Flight, Usage};
use crate::metrics::token_sources::TokenMetrics;
use crate::routing::cost::Tiers;
use crate::routing::endpoint::{Endpoint, EndpointName, Report, ReportOutcome};
use crate::routing::router::{EndpointView, Policy, Settings, SubsetEntry};
use crate::tokens::hub::HubAccess;
use crate::tokens::{Retry, TokenSource};

struct World {
    picker: Picker,
    router: Arc<Router>,
    decisions: Arc<Decisions>,
    registry: Registry,
    woken: Arc<Mutex<Vec<EndpointId>>>,
}

fn token_settings() -> crate::tokens::Settings {
    crate::tokens::Settings {
        models: BTreeMap::new(),
        directory: None,
        hub: false,
        cache_directory: None,
        cache_bytes: 0,
        engine_timeout: Duration::from_secs(1),
        engine_concurrency: 1,
        bytes_per_token: 1.0,
    }
}

/// A picker for so many ready endpoints at 10.0.0.1, 10.0.0.2, …; tokens are estimated, one a byte.
fn world(endpoints: u8, alternates: usize) -> World {
    let registry = Registry::new();
    let router = Router::new(Settings {
        policy: Policy::LeastPrefill,
        kv_usage_limit: 0.95,
        report_age_limit: Duration::from_secs(600),
        idle_report_age_limit: Duration::from_secs(600),
        tiers: Tiers::default(),
    });
    let metrics = Arc::new(PickMetrics::register(&registry).unwrap());
    for number in 1..=endpoints {
        let name = EndpointName::new("ns", &format!("e{number}"));
        let id = router.join(Endpoint {
            name: name.clone(),
            address: address(number),
            labels: BTreeMap::new(),
            incarnation: String::new(),
            rank: None,
        });
        metrics.meet(id, &name);
        router.report(id, ReportOutcome::Fresh(Report::default()), Instant::now());
        router.set_ready(id, true);
    }
    let hub = HubAccess {
        endpoint: None,
        token: None,
        cache_directory: "/nonexistent".into(),
        offline: true,
    };
    let token_metrics = Arc::new(TokenMetrics::register(&registry).unwrap());
    let tokens = Tokens::with_hub(token_settings(), hub, Retry::default(), token_metrics);
    let decisions = Arc::new(Decisions::new(16));
    let woken = Arc::new(Mutex::new(Vec::new()));
    let wakes = Arc::clone(&woken);
    let picker = Picker::new(
        tokens,
        Arc::clone(&router),
        Arc::clone(&decisions),
        metrics,
        Arc::new(move |id| wakes.lock().push(id)),
        alternates,
    );
    World {
        picker,
        router,
        decisions,
        registry,
        woken,
    }
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 8000))
}

fn head(path: &str) -> RequestHead {
    RequestHead {
        method: "POST".to_owned(),
        path: path.to_owned(),
        content_type: Some("application/json".to_owned()),
        request_id: Some("r-1".to_owned()),
        ..RequestHead::default()
    }
}

fn prompt(text: &str) -> RequestBody {
    RequestBody::Whole(json!({"model": "m", "prompt": text}).to_string().into())
}

impl World {
    async fn pick(&self, text: &str) -> PickedFlight {
        let picked = self
            .picker
            .pick(head("/v1/completions"), prompt(text))
            .await;
        picked
            .map_err(|rejection| format!("{rejection:?}"))
            .unwrap()
    }

    fn view(&self, number: u8) -> EndpointView {
        let mut views = self.router.endpoints(Instant::now()).into_iter();
        views
            .find(|view| view.endpoint.address == address(number))
            .unwrap()
    }

    /// The value of the one series of a counter, or of that with a label value.
    fn counter(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let series = family.and_then(|family| {
            let mut series = family.get_metric().iter();
            series.find(|one| label.is_none_or(|label| one.get_label()[0].value() == label))
        });
        series.map_or(0.0, |one| one.get_counter().get_value())
    }

    fn last(&self) -> Arc<crate::decisions::Record> {
        self.decisions.latest(1)[0].clone()
    }
}

#[tokio::test]
async fn a_pick_books_its_tokens_until_the_flight_is_dropped() {
    let world = world(1, 0);
    let flight = world.pick("twelve bytes").await;
    assert_eq!(flight.destination(), "10.0.0.1:8000");
    assert_eq!(world.view(1).queued.get(), 12);
    assert_eq!(world.view(1).in_flight, 1);
    drop(flight);
    assert_eq!(world.view(1).queued.get(), 0);
    assert_eq!(world.view(1).in_flight, 0);
    assert_eq!(
        world.counter("warmpath_requests_ended_total", Some("cut")),
        1.0
    );
}

#[tokio::test]
async fn first_data_ends_the_prefill_and_completion_the_request() {
    let world = world(1, 0);
    let mut flight = world.pick("twelve bytes").await;
    flight.response_started(200);
    assert_eq!(world.view(1).queued.get(), 12);
    flight.first_data();
    flight.first_data();
    assert_eq!(
        (world.view(1).queued.get(), world.view(1).in_flight),
        (0, 1)
    );
    flight.completed();
    drop(flight);
    assert_eq!(world.view(1).in_flight, 0);
    let outcome = world.last().outcome();
    assert_eq!(outcome.status, Some(200));
    assert!(outcome.first_data.is_some());
    assert_eq!(outcome.ended, Some(crate::metrics::picks::Ended::Completed));
    assert_eq!(world.counter("warmpath_responses_total", Some("2xx")), 1.0);
}

#[tokio::test]
async fn what_the_wire_tells_of_a_refusal_leaves_the_endpoint_out() {
    let world = world(2, 0);
    let mut flight = world.pick("twelve bytes").await;
    let refusing = if flight.destination().starts_with("10.0.0.1") {
        1
    } else {
        2
    };
    flight.refused(None);
    flight.response_started(503);
    let view = world.view(refusing);
    assert_eq!(
        (view.queued.get(), view.in_flight),
        (0, 0),
        "before the stream ends"
    );
    assert_eq!(view.excluded.map(|guard| guard.as_str()), Some("refusing"));
    for _ in 0..10 {
        let other = world.pick("twelve bytes").await;
        assert_ne!(other.destination(), flight.destination());
    }
    flight.completed();
    drop(flight);
    assert_eq!(
        world.counter("warmpath_guard_exclusions_total", Some("refusing")),
        10.0
    );
    assert_eq!(world.counter("warmpath_responses_total", Some("5xx")), 1.0);
}

#[tokio::test]
async fn one_request_id_twice_at_once_is_two_bookings() {
    let world = world(1, 0);
    let twins = (
        world.pick("twelve bytes").await,
        world.pick("twelve bytes").await,
    );
    let ids = world.decisions.latest(2);
    assert!(
        ids.iter()
            .all(|one| one.picked.request_id.as_deref() == Some("r-1"))
    );
    assert_eq!(world.view(1).in_flight, 2);
    drop(twins.0);
    assert_eq!(world.view(1).in_flight, 1);
    assert!(world.view(1).queued.get() > 0);
    drop(twins.1);
    assert_eq!(
        (world.view(1).queued.get(), world.view(1).in_flight),
        (0, 0)
    );
}

#[tokio::test]
async fn a_detached_flight_leaves_its_booking() {
    let world = world(1, 0);
    // Long enough not to be prefilled, by the time that is assumed, before it is looked at.
    let prompt = "twelve bytes".repeat(10_000);
    world.pick(&prompt).await.no_response_phase();
    assert_eq!(world.view(1).queued.get(), 120_000);
    assert_eq!(
        world.counter("warmpath_requests_ended_total", Some("unseen")),
        1.0
    );
}

#[tokio::test]
async fn the_load_moves_to_whoever_served() {
    let world = world(2, 1);
    let mut flight = world.pick("twelve bytes").await;
    let (first, second) = flight.destination().split_once(',').unwrap();
    let (first, second): (SocketAddr, SocketAddr) =
        (first.parse().unwrap(), second.parse().unwrap());
    assert_ne!(first, second);
    let number = |address: SocketAddr| if address == self::address(1) { 1 } else { 2 };
    flight.served_by(first);
    assert_eq!(world.counter("warmpath_served_elsewhere_total", None), 0.0);
    flight.served_by(second);
    flight.served_by(second);
    assert_eq!(world.counter("warmpath_served_elsewhere_total", None), 1.0);
    assert_eq!(world.view(number(first)).queued.get(), 0);
    assert_eq!(world.view(number(second)).queued.get(), 12);
    assert_eq!(world.last().outcome().served_by, Some(second));
}

#[tokio::test]
async fn an_idle_endpoint_that_gets_a_request_is_woken() {
    let world = world(1, 0);
    let first = world.pick("a").await;
    let second = world.pick("b").await;
    assert_eq!(*world.woken.lock(), [world.view(1).id]);
    drop((first, second));
}

#[tokio::test]
async fn what_cannot_be_read_is_routed_on_load_and_the_reason_counted() {
    let world = world(1, 0);
    let path = "/v1/completions";
    let with = |change: fn(&mut RequestHead)| {
        let mut head = head(path);
        change(&mut head);
        head
    };
    let cases = [
        (
            "method",
            with(|head| head.method = "GET".into()),
            prompt("a"),
        ),
        (
            "path",
            with(|head| head.path = "/v1/models".into()),
            prompt("a"),
        ),
        (
            "encoding",
            with(|head| head.content_encoding = Some("gzip".into())),
            prompt("a"),
        ),
        (
            "content_type",
            with(|head| head.content_type = Some("text/plain".into())),
            prompt("a"),
        ),
        ("body_unseen", head(path), RequestBody::Unseen),
        (
            "body_partial",
            head(path),
            RequestBody::Partial("{\"pro".into()),
        ),
    ];
    for (reason, head, body) in cases {
        let flight = world.picker.pick(head, body).await.ok().unwrap();
        assert_eq!(flight.destination(), "10.0.0.1:8000");
        assert_eq!(
            world.counter("warmpath_load_only_picks_total", Some(reason)),
            1.0,
            "{reason}"
        );
        assert_eq!(world.last().picked.prompt.get(), 0);
    }
}

#[tokio::test]
async fn json_by_other_names_and_plain_encodings_are_read() {
    let world = world(1, 0);
    for kind in [
        None,
        Some("application/json"),
        Some("application/vnd.api+json"),
    ] {
        for encoding in [None, Some("identity")] {
            let mut head = head("/v1/completions?x=1");
            head.content_type = kind.map(str::to_owned);
            head.content_encoding = encoding.map(str::to_owned);
            let flight = world.picker.pick(head, prompt("abc")).await;
            assert!(flight.is_ok());
            assert_eq!(world.last().picked.prompt.get(), 3);
        }
    }
}

#[tokio::test]
async fn malformed_json_on_a_known_path_is_the_clients_fault() {
    let world = world(1, 0);
    let pick = world
        .picker
        .pick(head("/v1/chat/completions"), RequestBody::Whole("{".into()));
    let Err(Rejection::Malformed(text)) = pick.await else {
        panic!("not malformed");
    };
    assert!(text.contains("JSON"), "{text}");
    assert_eq!(
        world.counter("warmpath_rejected_requests_total", Some("malformed")),
        1.0
    );
    assert_eq!(world.view(1).in_flight, 0);
}

#[tokio::test]
async fn with_nobody_to_serve_the_request_is_refused_by_reason() {
    let nobody = world(0, 0);
    let refused = nobody
        .picker
        .pick(head("/v1/completions"), prompt("a"))
        .await;
    let Err(Rejection::Unavailable(text)) = refused else {
        panic!("not refused");
    };
    assert_eq!(text, "no endpoint of the pool is ready");

    let world = world(1, 0);
    let mut elsewhere = head("/v1/completions");
    elsewhere.subset = Some(vec![SubsetEntry::Endpoint(address(9))]);
    let refused = world.picker.pick(elsewhere, prompt("a")).await;
    assert!(matches!(refused, Err(Rejection::Unavailable(_))));
    assert_eq!(
        world.counter("warmpath_rejected_requests_total", Some("empty_subset")),
        1.0
    );
}

#[tokio::test]
async fn the_decision_log_has_the_figures_and_what_the_engine_reported() {
    let world = world(1, 0);
    let mut flight = world.pick("twelve bytes").await;
    flight.response_started(200);
    flight.usage(Usage {
        prompt_tokens: Some(4),
        cached_tokens: Some(3),
        completion_tokens: Some(1),
    });
    flight.usage(Usage::default());
    flight.completed();
    drop(flight);
    let record = world.last();
    assert_eq!(record.picked.request_id.as_deref(), Some("r-1"));
    assert_eq!(record.picked.prompt.get(), 12);
    assert_eq!(record.picked.considered.len(), 1);
    let Understood::Content {
        model,
        source,
        degraded,
        ..
    } = &record.picked.understood
    else {
        panic!("routed on load");
    };
    assert_eq!(model.as_deref(), Some("m"));
    assert_eq!(
        (*source, *degraded),
        (TokenSource::Estimate, Some("unknown_model"))
    );
    let outcome = record.outcome();
    assert_eq!(
        (outcome.reported_prompt, outcome.reported_cached),
        (Some(4), Some(3))
    );
    assert_eq!(
        world.counter("warmpath_predictions_total", Some("estimated")),
        1.0
    );
}

#[tokio::test]
async fn token_ids_of_the_client_are_compared_with_the_engines_report() {
    let world = world(1, 0);
    // Nothing is known of the model, so these ids come by the engine's way, without a call.
    let models = vec![crate::tokens::ServedModel {
        id: "m".to_owned(),
        root: None,
        parent: None,
        max_model_len: None,
    }];
    world.picker.tokens.observe(address(1), models, None);
    for (reported, result) in [(0, "equal"), (2, "too_low")] {
        let body = json!({"model": "m", "prompt": [1, 2, 3]}).to_string();
        let pick = world
            .picker
            .pick(head("/v1/completions"), RequestBody::Whole(body.into()));
        let mut flight = pick.await.ok().unwrap();
        assert_eq!(world.last().picked.prompt.get(), 3);
        flight.response_started(200);
        flight.usage(Usage {
            cached_tokens: Some(reported),
            ..Usage::default()
        });
        flight.completed();
        drop(flight);
        assert_eq!(
            world.counter("warmpath_predictions_total", Some(result)),
            1.0
        );
    }
    assert_eq!(
        world.counter("warmpath_reported_cached_tokens_total", Some("ns/e1")),
        2.0
    );
    assert_eq!(
        world.counter("warmpath_predicted_cached_tokens_total", Some("ns/e1")),
        0.0
    );
}

#[tokio::test]
async fn a_request_that_bypasses_the_cache_is_not_compared() {
    let world = world(1, 0);
    let body = json!({"model": "m", "prompt": "abc", "prompt_logprobs": 1}).to_string();
    let pick = world
        .picker
        .pick(head("/v1/completions"), RequestBody::Whole(body.into()));
    let mut flight = pick.await.ok().unwrap();
    assert_eq!(world.last().picked.prompt.get(), 3);
    flight.response_started(200);
    flight.completed();
    drop(flight);
    assert_eq!(
        world.counter("warmpath_predictions_total", Some("cache_not_read")),
        1.0
    );
}
