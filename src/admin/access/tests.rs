//! Against a double of the API server that is called in this process, so that time can be paused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::http::HeaderValue;
use axum::routing::post;
use futures_util::future::join_all;
use prometheus::Registry;
use serde_json::{Value, json};

use super::*;

/// What the double was asked, and whether it answers.
#[derive(Default)]
struct ApiServer {
    token_reviews: AtomicUsize,
    access_reviews: AtomicUsize,
    hangs: AtomicBool,
    forbids: AtomicBool,
    talks_nonsense: AtomicBool,
    /// Rights of prometheus are taken back.
    revoked: AtomicBool,
}

type Server = State<Arc<ApiServer>>;

impl ApiServer {
    async fn trouble(&self) -> Option<Response> {
        // Reviews take time, so that those which come meanwhile find one under way.
        tokio::time::sleep(Duration::from_millis(10)).await;
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.forbids.load(Ordering::Relaxed) {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "warmpath cannot create resource", "reason": "Forbidden", "code": 403 });
            return Some((StatusCode::FORBIDDEN, Json(status)).into_response());
        }
        let nonsense = self.talks_nonsense.load(Ordering::Relaxed);
        nonsense.then(|| "<html>".into_response())
    }

    fn asked(&self) -> (usize, usize) {
        (
            self.token_reviews.load(Ordering::Relaxed),
            self.access_reviews.load(Ordering::Relaxed),
        )
    }
}

async fn token_review(State(server): Server, Json(review): Json<Value>) -> Response {
    server.token_reviews.fetch_add(1, Ordering::Relaxed);
    if let Some(trouble) = server.trouble().await {
        return trouble;
    }
    let status = match review["spec"]["token"].as_str().unwrap() {
        "nobody" => json!({ "authenticated": true }),
        token if token.starts_with("made-up") => json!({ "error": "invalid bearer token" }),
        user => {
            json!({ "authenticated": true, "user": { "username": user, "uid": "7", "groups": ["readers"],
            "extra": { "pod": ["p"] } } })
        }
    };
    let (kind, version) = ("TokenReview", "authentication.k8s.io/v1");
    Json(json!({ "kind": kind, "apiVersion": version, "metadata": {}, "spec": review["spec"], "status": status }))
        .into_response()
}

async fn access_review(State(server): Server, Json(review): Json<Value>) -> Response {
    server.access_reviews.fetch_add(1, Ordering::Relaxed);
    if let Some(trouble) = server.trouble().await {
        return trouble;
    }
    let spec = &review["spec"];
    // All that is known of the user goes on to the question of what it may do.
    assert_eq!(
        (&spec["uid"], &spec["groups"], &spec["extra"]),
        (&json!("7"), &json!(["readers"]), &json!({ "pod": ["p"] }))
    );
    let asked = &spec["nonResourceAttributes"];
    let is =
        |user, verb, path| spec["user"] == user && asked["verb"] == verb && asked["path"] == path;
    let revoked = server.revoked.load(Ordering::Relaxed);
    let allowed =
        is("prometheus", "get", "/metrics") && !revoked || is("admin", "put", "/log-level");
    let (kind, version) = ("SubjectAccessReview", "authorization.k8s.io/v1");
    let status = json!({ "allowed": allowed });
    Json(json!({ "kind": kind, "apiVersion": version, "metadata": {}, "spec": spec, "status": status }))
        .into_response()
}

fn start() -> (Arc<ApiServer>, Access) {
    let server = Arc::new(ApiServer::default());
    let routes = axum::Router::new()
        .route(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            post(token_review),
        )
        .route(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            post(access_review),
        )
        .with_state(Arc::clone(&server));
    let metrics = Arc::new(AccessMetrics::register(&Registry::new()).unwrap());
    let access = Access::new(kube::Client::new(routes, "default"), metrics);
    (server, access)
}

fn headers(authorization: &str) -> HeaderMap {
    let value = HeaderValue::from_str(authorization).unwrap();
    HeaderMap::from_iter([(header::AUTHORIZATION, value)])
}

impl Access {
    async fn get(&self, token: &str) -> Result<(), Refusal> {
        let headers = headers(&format!("Bearer {token}"));
        self.check(&Method::GET, "/metrics", &headers).await
    }

    /// The status that an HTTP client sees; 200 for a page.
    async fn status(&self, token: &str) -> u16 {
        let refused = self.get(token).await.err();
        refused.map_or(200, |refusal| refusal.into_response().status().as_u16())
    }
}

#[tokio::test(start_paused = true)]
async fn a_known_user_with_the_right_sees_the_page_and_others_do_not() {
    let (server, access) = start();
    assert_eq!(access.status("prometheus").await, 200);
    assert_eq!(access.status("grafana").await, 403);
    assert_eq!(access.status("made-up").await, 401);
    // The API server says yes and not to whom: that is no yes.
    assert_eq!(access.status("nobody").await, 503);
    assert_eq!(server.asked(), (4, 2));
    let refused = access.get("grafana").await.unwrap_err().to_string();
    assert!(
        refused.starts_with("grafana may not get /metrics"),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_bearer_token_nobody_is_asked() {
    let (server, access) = start();
    for bad in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer   ",
        "Basic cHJvbWV0aGV1cw==",
        "prometheus",
    ] {
        let refused = access.check(&Method::GET, "/metrics", &headers(bad)).await;
        assert!(matches!(refused, Err(Refusal::NoToken)), "{bad}");
    }
    let refused = access
        .check(&Method::GET, "/metrics", &HeaderMap::new())
        .await;
    let response = refused.unwrap_err().into_response();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    assert_eq!(server.asked(), (0, 0));
    // Of two headers the first counts: what stands behind it opens nothing.
    let mut two = headers("Basic eA==");
    two.append(
        header::AUTHORIZATION,
        HeaderValue::from_static("Bearer prometheus"),
    );
    let refused = access.check(&Method::GET, "/metrics", &two).await;
    assert!(matches!(refused, Err(Refusal::NoToken)));
    let lower = headers("bearer prometheus");
    access
        .check(&Method::GET, "/metrics", &lower)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_verb_and_path_is_a_right_of_its_own() {
    let (_, access) = start();
    let admin = headers("Bearer admin");
    access
        .check(&Method::PUT, "/log-level", &admin)
        .await
        .unwrap();
    let reading = access.check(&Method::GET, "/log-level", &admin).await;
    assert!(matches!(
        reading,
        Err(Refusal::Forbidden { verb: "get", .. })
    ));
    let posting = access.check(&Method::POST, "/log-level", &admin).await;
    assert!(matches!(posting, Err(Refusal::NoSuchVerb)));
}

#[tokio::test(start_paused = true)]
async fn requests_at_once_with_one_token_ask_once() {
    let (server, access) = start();
    let statuses = join_all((0..100).map(|_| access.status("prometheus"))).await;
    assert_eq!(statuses, [200; 100]);
    assert_eq!(server.asked(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_right_taken_back_works_for_a_minute_and_one_given_is_seen_in_ten_seconds() {
    let (server, access) = start();
    assert_eq!(access.status("prometheus").await, 200);
    server.revoked.store(true, Ordering::Relaxed);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(access.status("prometheus").await, 200);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(access.status("prometheus").await, 403);
    assert_eq!(server.asked(), (2, 2));
    server.revoked.store(false, Ordering::Relaxed);
    assert_eq!(access.status("prometheus").await, 403);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(access.status("prometheus").await, 200);
    assert_eq!(server.asked(), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_shuts_the_page_in_time_and_opens_it_when_it_is_back() {
    let (server, access) = start();
    server.hangs.store(true, Ordering::Relaxed);
    let began = tokio::time::Instant::now();
    let statuses = join_all((0..100).map(|_| access.status("prometheus"))).await;
    assert_eq!(statuses, [503; 100]);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(server.asked(), (1, 0));
    server.hangs.store(false, Ordering::Relaxed);
    tokio::time::advance(Duration::from_millis(1100)).await;
    assert_eq!(access.status("prometheus").await, 200);
}

#[tokio::test(start_paused = true)]
async fn made_up_tokens_reach_the_api_server_four_at_a_time() {
    let (server, access) = start();
    server.hangs.store(true, Ordering::Relaxed);
    let tokens = (0..1000).map(|n| format!("made-up-{n}"));
    let statuses = join_all(tokens.map(|token| {
        let access = &access;
        async move { access.status(&token).await }
    }));
    assert!(statuses.await.iter().all(|status| *status == 503));
    assert_eq!(server.asked(), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_made_up_tokens_is_little_work_and_keeps_no_scraper_out() {
    let (server, access) = start();
    assert_eq!(access.status("prometheus").await, 200);
    let access = &access;
    let flood = (0..48_000_u64).map(|n| async move {
        tokio::time::sleep(Duration::from_millis(n / 100 * 250)).await;
        access.status(&format!("made-up-{n}")).await
    });
    let scrapes = async {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_secs(15)).await;
            assert_eq!(access.status("prometheus").await, 200);
        }
    };
    let (statuses, ()) = tokio::join!(join_all(flood), scrapes);
    assert!(statuses.iter().all(|status| [401, 503].contains(status)));
    let (asked, _) = server.asked();
    assert!((1_000..5_000).contains(&asked), "{asked} in two minutes");
}

#[tokio::test(start_paused = true)]
async fn a_token_longer_than_any_is_not_asked_about() {
    let (server, access) = start();
    assert_eq!(access.status(&"x".repeat(16_384)).await, 403);
    let asked = server.asked();
    assert_eq!(access.status(&"x".repeat(16_385)).await, 401);
    assert_eq!(server.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn a_picker_without_rights_of_its_own_says_so() {
    let (server, access) = start();
    server.forbids.store(true, Ordering::Relaxed);
    assert_eq!(access.status("prometheus").await, 500);
    let refused = access.get("prometheus").await.unwrap_err().to_string();
    assert!(
        refused.contains("does not let the picker create a TokenReview: warmpath cannot"),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_none_opens_nothing() {
    let (server, access) = start();
    server.talks_nonsense.store(true, Ordering::Relaxed);
    assert_eq!(access.status("prometheus").await, 503);
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_an_api_server_that_is_away_is_503() {
    let refuse = async || StatusCode::BAD_GATEWAY;
    let routes = axum::Router::new().fallback(refuse);
    let metrics = Arc::new(AccessMetrics::register(&Registry::new()).unwrap());
    let access = Access::new(kube::Client::new(routes, "default"), metrics);
    assert_eq!(access.status("prometheus").await, 503);
}
