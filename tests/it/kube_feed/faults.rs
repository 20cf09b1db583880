//! What the API server may do to us, and objects that are not as they should be.

use super::api::Mood;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_is_skipped_once_and_costs_nobody_else() {
    let (api, watched) = two_pods().await;
    api.put(PODS, pod("bad", "a", "10.0.0.256"));
    api.put(PODS, pod("w", "a", "10.0.0.4"));
    watched
        .shows("10.0.0.4:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
    assert_eq!(watched.counted("pods"), (1.0, 0.0, 1.0));
    // Listed again in the same version: not counted again.
    api.cut(PODS);
    eventually("watched again", || {
        watched.counted("pods").0 == 1.0 && api.watches(PODS) == 1
    })
    .await;
    assert_eq!(watched.counted("pods"), (1.0, 1.0, 1.0));
    watched
        .shows("10.0.0.4:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
    // A version that can be read is taken.
    api.put(PODS, pod("bad", "a", "10.0.0.9"));
    watched
        .shows("10.0.0.9:8000 10.0.0.4:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_an_address_yet_is_no_fault() {
    let (api, watched) = two_pods().await;
    let mut pending = pod("w", "a", "");
    pending["status"] = json!({"phase": "Pending"});
    api.put(PODS, pending);
    settled().await;
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
    assert_eq!(watched.counted("pods").2, 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_version_of_the_pool_that_cannot_be_read_leaves_the_former_one_in_force() {
    let (api, watched) = two_pods().await;
    api.put(POOLS, inference_pool("a", &[]));
    eventually("it is told", || {
        watched.degraded().contains("no port is named")
    })
    .await;
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
    assert_eq!(watched.counted("inferencepools").2, 1.0);
    // Also after a list that gives nothing else.
    api.cut(POOLS);
    eventually("watched again", || api.watches(POOLS) == 1).await;
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
    api.put(POOLS, inference_pool("b", &[8000]));
    watched.shows("10.0.0.3:8000").await;
    assert_eq!(watched.degraded(), "");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_no_json_is_survived_by_a_new_list() {
    let (api, watched) = two_pods().await;
    for line in [
        "{\"type\":\"ADDED\",\"obj",
        "[]",
        "",
        "{\"type\":7,\"object\":{}}",
    ] {
        let lists = api.asked(PODS).len();
        api.raw(PODS, line);
        eventually("listed and watched again", || {
            api.asked(PODS).len() >= lists + 2 && watched.counted("pods").0 == 1.0
        })
        .await;
    }
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
    // A kind of event that does not exist yet is passed over.
    api.raw(PODS, "{\"type\":\"RENAMED\",\"object\":{\"metadata\":{}}}");
    api.put(PODS, pod("w", "a", "10.0.0.4"));
    watched
        .shows("10.0.0.4:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
    assert_eq!(watched.counted("pods").1, 4.0);
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_while_a_watch_was_broken_is_caught_up() {
    let (api, watched) = two_pods().await;
    api.cut(PODS);
    api.put(PODS, pod("w", "a", "10.0.0.4"));
    api.delete(PODS, "x");
    watched.shows("10.0.0.4:8000 10.0.0.2:8000").await;
    assert_eq!(
        watched.degraded(),
        "",
        "a watch that breaks off is nothing to tell"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_in_order_goes_on_where_it_was_without_a_list() {
    let (api, watched) = two_pods().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let lists = |api: &Api| {
        api.asked(PODS)
            .iter()
            .filter(|(kind, _)| *kind == "list")
            .count()
    };
    assert_eq!(lists(&api), 1);
    // The bookmark is newer than what is forgotten, the last Pod is not.
    api.put(POOLS, inference_pool("a", &[8000]));
    api.forget(PODS);
    api.rotate(PODS);
    api.put(PODS, pod("w", "a", "10.0.0.4"));
    watched
        .shows("10.0.0.4:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
    assert_eq!(lists(&api), 1);
    assert_eq!(watched.counted("pods"), (1.0, 0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_is_listed_anew() {
    for as_event in [true, false] {
        let (api, watched) = two_pods().await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        api.set(PODS, Mood::Well, Mood::Well);
        if as_event {
            api.raw(PODS, &json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}).to_string());
            api.delete(PODS, "x");
        } else {
            api.end(PODS);
            api.delete(PODS, "x");
            api.forget(PODS);
        }
        watched.shows("10.0.0.2:8000").await;
        assert_eq!(watched.degraded(), "", "an ordinary thing");
    }
}

#[tokio::test(start_paused = true)]
async fn without_permission_the_known_is_kept_and_the_advice_given() {
    let (api, watched) = two_pods().await;
    let who = "pods is forbidden: User \"system:serviceaccount:prod:warmpath\" cannot list";
    api.set(PODS, Mood::Fails(403, who), Mood::Fails(403, who));
    api.cut(PODS);
    eventually("it is told", || {
        watched
            .degraded()
            .contains("system:serviceaccount:prod:warmpath")
    })
    .await;
    let told = watched.degraded();
    let advice = "pods: we may not list pods in namespace prod: grant the service account list and watch of pods there";
    assert!(told.contains(advice), "{told}");
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
    assert_eq!(watched.counted("pods").0, 0.0);
    api.delete(PODS, "x");
    api.set(PODS, Mood::Well, Mood::Well);
    watched.shows("10.0.0.2:8000").await;
    eventually("it is taken back", || watched.degraded().is_empty()).await;
    assert_eq!(watched.counted("pods").0, 1.0);
}

#[tokio::test(start_paused = true)]
async fn what_an_api_server_says_in_its_first_moments_is_counted_and_not_told() {
    let (api, watched) = two_pods().await;
    // It has not loaded the roles yet, then not the definitions.
    for (code, message) in [(403, "pods is forbidden"), (404, "not found")] {
        api.set_all(&Mood::Fails(code, message));
        let errors = watched.counted("pods").1;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(15)).await;
            assert_eq!(watched.degraded(), "");
        }
        assert!(watched.counted("pods").1 >= errors + 2.0, "{code}");
        assert_eq!(watched.counted("pods").0, 0.0);
        api.set_all(&Mood::Well);
        eventually("well again", || watched.counted("pods").0 == 1.0).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    // What lasts is told soon.
    api.set_all(&Mood::Fails(403, "pods is forbidden"));
    let begun = tokio::time::Instant::now();
    eventually("it is told", || watched.degraded().contains("we may not")).await;
    assert!(
        begun.elapsed() < Duration::from_secs(7),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn who_may_list_but_not_watch_is_told_so_and_still_served() {
    let (api, watched) = two_pods().await;
    api.set(PODS, Mood::Well, Mood::Fails(403, "no"));
    api.cut(PODS);
    eventually("it is told", || {
        watched.degraded().contains("we may not watch pods")
    })
    .await;
    api.delete(PODS, "x");
    watched.shows("10.0.0.2:8000").await;
    assert!(
        watched.degraded().contains("we may not watch pods"),
        "told while it lasts"
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_crd_we_live_and_wait_for_it() {
    let api = Api::new();
    api.put(PODS, pod("x", "a", "10.0.0.1"));
    let missing = Mood::Fails(404, "the server could not find the requested resource");
    api.set(POOLS, missing.clone(), missing);
    let watched = watch_pool(&api);
    eventually("it is told", || {
        watched.degraded().contains("install the CRDs")
    })
    .await;
    let told = watched.degraded();
    assert!(
        told.contains("has no inferencepools.inference.networking.k8s.io of version v1"),
        "{told}"
    );
    assert_eq!(watched.shown(), "gone");
    // Not asked more often than every few seconds.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = api.asked(POOLS).len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        (6..=13).contains(&(api.asked(POOLS).len() - before)),
        "{}",
        api.asked(POOLS).len() - before
    );
    api.set(POOLS, Mood::Well, Mood::Well);
    api.put(POOLS, inference_pool("a", &[8000]));
    watched.shows("10.0.0.1:8000").await;
    assert_eq!(watched.degraded(), "");
}

#[tokio::test(start_paused = true)]
async fn whatever_the_api_server_says_the_known_stays_in_force_until_it_is_well_again() {
    let (api, watched) = two_pods().await;
    let moods = [
        (
            Mood::Fails(500, "etcd is gone"),
            "the API server answers 500 to list: etcd is gone",
        ),
        (
            Mood::Fails(429, "later"),
            "the API server answers 429 to list: later",
        ),
        (
            Mood::Fails(401, "Unauthorized"),
            "does not accept our credentials",
        ),
        (Mood::Garbled, "what answers is no Kubernetes API server"),
        (
            Mood::Silent,
            "the API server does not answer to list within 20 s",
        ),
    ];
    for (mood, expected) in moods {
        api.set_all(&mood);
        eventually(expected, || {
            watched.degraded().matches(expected).count() == 2
        })
        .await;
        assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000", "{expected}");
        assert_eq!(
            (
                watched.counted("pods").0,
                watched.counted("inferencepools").0
            ),
            (0.0, 0.0)
        );
        api.set_all(&Mood::Well);
        eventually("well again", || watched.degraded().is_empty()).await;
        assert_eq!(
            (
                watched.counted("pods").0,
                watched.counted("inferencepools").0
            ),
            (1.0, 1.0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_without_a_word_is_noticed() {
    let (api, watched) = two_pods().await;
    // The watches stay open and say nothing; whoever asks again hears nothing either.
    api.set(PODS, Mood::Silent, Mood::Silent);
    let begun = tokio::time::Instant::now();
    eventually("it is told", || {
        watched.degraded().contains("does not answer")
    })
    .await;
    assert!(
        begun.elapsed() < Duration::from_secs(100),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
    api.delete(PODS, "x");
    api.set(PODS, Mood::Well, Mood::Well);
    watched.shows("10.0.0.2:8000").await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_watch_at_once_is_not_asked_without_pause() {
    let (api, watched) = two_pods().await;
    let before = api.asked(PODS).len();
    for _ in 0..600 {
        api.end(PODS);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let asked = api.asked(PODS).len() - before;
    assert!((5..40).contains(&asked), "{asked} times in a minute");
    assert_eq!(watched.shown(), "10.0.0.1:8000 10.0.0.2:8000");
}
