//! The pool from Kubernetes, against a double of its API server: what is seen, and what is survived.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warmpath::feeds::kube::{Kubernetes, LabelSelector, Pace, Target, TargetPorts, WatchError};
use warmpath::feeds::pool::{Pool, Versions};
use warmpath::metrics::Metrics;
use warmpath::readiness::Readiness;

mod api;
mod faults;
mod startup;

use api::{Api, PODS, POOLS};

/// Longest wait for something that must happen. Mostly virtual.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `holds`, looking often; fails after [`PATIENCE`].
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "not in {PATIENCE:?}: {what}");
}

/// Longer than changes are gathered, so that whatever was going to be sent has been.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

fn inference_pool(app: &str, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({ "number": port })).collect();
    json!({
        "metadata": {"name": "vllm", "namespace": "prod", "uid": "pool-1"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": ports},
    })
}

fn pod(name: &str, app: &str, ip: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "prod", "uid": format!("uid-{name}"), "labels": {"app": app},
            "creationTimestamp": "2026-11-29T10:00:00Z",
        },
        "spec": {"containers": [{"name": "vllm", "ports": [{"containerPort": 8000}]}]},
        "status": {
            "phase": "Running", "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "vllm", "restartCount": 0}],
        },
    })
}

/// A pool that is watched, and what keeps it watched.
struct Watched {
    versions: Versions,
    readiness: Readiness,
    metrics: Metrics,
    stop: CancellationToken,
    tasks: JoinSet<Result<(), WatchError>>,
}

fn watch_with(client: kube::Client, target: Target, pace: Pace) -> Watched {
    let kubernetes = Kubernetes::new(client, target, Some("prod"), pace).unwrap();
    let (send, versions) = watch::channel(None);
    let readiness = Readiness::new();
    let metrics = Metrics::register().unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let watching = kubernetes.watch(
        send,
        readiness.clone(),
        Arc::clone(&metrics.kube),
        stop.clone(),
    );
    tasks.spawn(watching);
    Watched {
        versions,
        readiness,
        metrics,
        stop,
        tasks,
    }
}

fn pool_target() -> Target {
    Target::Pool {
        name: "vllm".to_owned(),
        group: "inference.networking.k8s.io".to_owned(),
    }
}

/// Watches the pool `vllm` of `api`, without sockets, so that time can be virtual.
fn watch_pool(api: &Api) -> Watched {
    let client = kube::Client::new(api.router(), "default");
    watch_with(client, pool_target(), Pace::default())
}

impl Watched {
    fn pool(&self) -> Option<Arc<Pool>> {
        self.versions.borrow().clone()
    }

    /// Addresses, those that are not ready with a `-` before them; `gone` without a pool.
    fn shown(&self) -> String {
        let Some(pool) = self.pool() else {
            return "gone".to_owned();
        };
        let shown = pool.members().map(|member| match member.ready {
            true => member.endpoint.address.to_string(),
            false => format!("-{}", member.endpoint.address),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    async fn shows(&self, expected: &str) {
        eventually(expected, || self.shown() == expected).await;
    }

    fn degraded(&self) -> String {
        let detail = self.readiness.detail();
        detail
            .degraded
            .values()
            .cloned()
            .collect::<Vec<_>>()
            .join(" | ")
    }

    /// `connected`, `errors` and `refused` of a resource.
    fn counted(&self, resource: &str) -> (f64, f64, f64) {
        let value = |name: &str| {
            let families = self.metrics.registry.gather();
            let family = families.iter().find(|family| family.name() == name)?;
            let mut series = family.get_metric().iter();
            let metric = series.find(|metric| metric.get_label()[0].value() == resource)?;
            Some(metric.get_gauge().get_value() + metric.get_counter().get_value())
        };
        let value = |name| value(name).unwrap_or(-1.0);
        (
            value("warmpath_kubernetes_watch_connected"),
            value("warmpath_kubernetes_watch_errors_total"),
            value("warmpath_kubernetes_objects_refused_total"),
        )
    }
}

/// An API with the pool and two Pods, watched.
async fn two_pods() -> (Api, Watched) {
    let api = Api::new();
    api.put(POOLS, inference_pool("a", &[8000]));
    api.put(PODS, pod("x", "a", "10.0.0.1"));
    api.put(PODS, pod("y", "a", "10.0.0.2"));
    api.put(PODS, pod("z", "b", "10.0.0.3"));
    let watched = watch_pool(&api);
    watched.shows("10.0.0.1:8000 10.0.0.2:8000").await;
    eventually("both watches are open", || {
        api.watches(POOLS) == 1 && api.watches(PODS) == 1
    })
    .await;
    (api, watched)
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_pool_are_its_endpoints_as_they_come_change_and_go() {
    let (api, watched) = two_pods().await;
    api.put(PODS, pod("w", "a", "fd00::4"));
    watched
        .shows("[fd00::4]:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
    let mut ending = pod("w", "a", "fd00::4");
    ending["metadata"]["deletionTimestamp"] = json!("2026-11-29T11:00:00Z");
    api.put(PODS, ending);
    watched
        .shows("-[fd00::4]:8000 10.0.0.1:8000 10.0.0.2:8000")
        .await;
    api.delete(PODS, "w");
    watched.shows("10.0.0.1:8000 10.0.0.2:8000").await;
    assert_eq!(watched.counted("pods"), (1.0, 0.0, 0.0));
    assert_eq!(watched.counted("inferencepools"), (1.0, 0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn only_the_one_pool_and_its_pods_are_asked_for() {
    let (api, _watched) = two_pods().await;
    for (kind, parameters) in api.asked(POOLS) {
        assert_eq!(parameters["fieldSelector"], "metadata.name=vllm", "{kind}");
    }
    let asked = api.asked(PODS);
    for (kind, parameters) in &asked {
        assert_eq!(parameters["labelSelector"], "app=a", "{kind}");
    }
    let (kind, parameters) = &asked[1];
    assert_eq!(
        (*kind, parameters["allowWatchBookmarks"].as_str()),
        ("watch", "true")
    );
    assert!(parameters["timeoutSeconds"].parse::<u32>().unwrap() < 300);
}

#[tokio::test(start_paused = true)]
async fn without_the_pool_we_wait_for_it_and_after_it_for_its_return() {
    let api = Api::new();
    api.put(PODS, pod("x", "a", "10.0.0.1"));
    let mut other = inference_pool("a", &[8000]);
    other["metadata"]["name"] = json!("other");
    api.put(POOLS, other);
    let watched = watch_pool(&api);
    settled().await;
    assert_eq!(watched.shown(), "gone");
    for _twice in 0..2 {
        api.put(POOLS, inference_pool("a", &[8000]));
        watched.shows("10.0.0.1:8000").await;
        api.delete(POOLS, "vllm");
        watched.shows("gone").await;
        eventually("the Pods are no longer watched", || api.watches(PODS) == 0).await;
        assert_eq!(
            watched.counted("pods").0,
            -1.0,
            "nor is it an alarm that they are not"
        );
    }
    let mut terminating = inference_pool("a", &[8000]);
    terminating["metadata"]["deletionTimestamp"] = json!("2026-11-29T11:00:00Z");
    api.put(POOLS, terminating);
    settled().await;
    assert_eq!(watched.shown(), "gone");
    assert_eq!(watched.degraded(), "");
}

#[tokio::test(start_paused = true)]
async fn another_selector_is_a_new_list_and_endpoints_that_stay_never_leave() {
    let (api, mut watched) = two_pods().await;
    let mut both = pod("x", "a", "10.0.0.1");
    both["metadata"]["labels"]["tier"] = json!("b");
    api.put(PODS, both);
    settled().await;
    watched.versions.borrow_and_update();
    api.set(PODS, api::Mood::Silent, api::Mood::Well);
    let mut pool = inference_pool("a", &[8000]);
    pool["spec"]["selector"]["matchLabels"] = json!({"tier": "b"});
    api.put(POOLS, pool);
    settled().await;
    assert!(
        !watched.versions.has_changed().unwrap(),
        "nothing is known yet of the new selector's Pods"
    );
    api.set(PODS, api::Mood::Well, api::Mood::Well);
    watched.shows("10.0.0.1:8000").await;
    assert_eq!(api.watches(PODS), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_former_selector_are_followed_until_those_of_the_new_one_are_listed() {
    let (api, watched) = two_pods().await;
    api.set(PODS, api::Mood::Silent, api::Mood::Well);
    api.put(POOLS, inference_pool("b", &[8000]));
    eventually("the new list is asked for", || {
        api.asked(PODS).last().unwrap().1["labelSelector"] == "app=b"
    })
    .await;
    let mut unready = pod("y", "a", "10.0.0.2");
    unready["status"]["conditions"][0]["status"] = json!("False");
    api.put(PODS, unready);
    watched.shows("10.0.0.1:8000 -10.0.0.2:8000").await;
    eventually("the list is missed", || {
        watched.degraded().contains("does not answer to list")
    })
    .await;
    api.delete(PODS, "x");
    watched.shows("-10.0.0.2:8000").await;
    api.set(PODS, api::Mood::Well, api::Mood::Well);
    watched.shows("10.0.0.3:8000").await;
    eventually("one watch is left", || api.watches(PODS) == 1).await;
    assert_eq!(watched.degraded(), "");
    // The selector is taken back before the list of another is there.
    api.set(PODS, api::Mood::Silent, api::Mood::Well);
    api.put(POOLS, inference_pool("a", &[8000]));
    settled().await;
    api.put(POOLS, inference_pool("b", &[8001]));
    settled().await;
    api.set(PODS, api::Mood::Well, api::Mood::Well);
    watched.shows("10.0.0.3:8001").await;
    eventually("one watch is left", || api.watches(PODS) == 1).await;
    eventually("all is well", || watched.counted("pods").0 == 1.0).await;
}

#[tokio::test(start_paused = true)]
async fn other_target_ports_count_at_once() {
    let (api, watched) = two_pods().await;
    let lists = api.asked(PODS).len();
    api.put(POOLS, inference_pool("a", &[8001, 8002]));
    watched
        .shows("10.0.0.1:8001 10.0.0.1:8002 10.0.0.2:8001 10.0.0.2:8002")
        .await;
    assert_eq!(api.asked(PODS).len(), lists);
}

#[tokio::test(start_paused = true)]
async fn a_selector_and_ports_do_without_an_inference_pool() {
    let api = Api::new();
    for n in 1..=3 {
        api.put(PODS, pod(&format!("p{n}"), "a", &format!("10.0.0.{n}")));
    }
    let target = Target::Pods {
        selector: LabelSelector::parse("app = a").unwrap(),
        ports: TargetPorts::new(vec![8000]).unwrap(),
    };
    let client = kube::Client::new(api.router(), "default");
    let watched = watch_with(client, target, Pace::default());
    assert_eq!(watched.shown(), "gone");
    watched
        .shows("10.0.0.1:8000 10.0.0.2:8000 10.0.0.3:8000")
        .await;
    assert_eq!(api.asked(POOLS).len(), 0);
    assert_eq!(watched.counted("inferencepools").0, -1.0);
}

#[tokio::test(start_paused = true)]
async fn three_hundred_pods_at_once_are_a_few_versions() {
    let (api, mut watched) = two_pods().await;
    let (mut versions, mut wanted) = (0, 2);
    for n in 0..300 {
        api.put(
            PODS,
            pod(
                &format!("p{n}"),
                "a",
                &format!("10.1.{}.{}", n / 200, n % 200),
            ),
        );
        wanted += 1;
        tokio::task::yield_now().await;
    }
    while watched.pool().unwrap().members().len() < wanted {
        watched.versions.changed().await.unwrap();
        watched.versions.borrow_and_update();
        versions += 1;
    }
    assert!((1..=3).contains(&versions), "{versions} versions");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_several_pages_gives_all_of_them() {
    let (api, watched) = two_pods().await;
    api.cut(PODS);
    for n in 0..700 {
        let ip = format!("10.1.{}.{}", n / 200, n % 200);
        api.put(PODS, pod(&format!("p{n}"), "a", &ip));
    }
    let endpoints = || watched.pool().unwrap().members().len();
    eventually("702 endpoints", || endpoints() == 702).await;
    let asked = api.asked(PODS);
    let continued = |(_, parameters): &&(_, api::Parameters)| parameters.contains_key("continue");
    assert_eq!(asked.iter().filter(continued).count(), 1);
    // The store forgets the list's version before its second page is asked for.
    api.refuse_next_page(PODS);
    api.cut(PODS);
    api.put(PODS, pod("late", "a", "10.2.0.1"));
    eventually("703 endpoints", || {
        assert_eq!(watched.degraded(), "", "an ordinary thing");
        endpoints() == 703
    })
    .await;
    let asked = api.asked(PODS);
    assert_eq!(asked.iter().filter(continued).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_changed_elsewhere_in_a_pod_is_no_new_version() {
    let (api, mut watched) = two_pods().await;
    watched.versions.borrow_and_update();
    let mut beaten = pod("x", "a", "10.0.0.1");
    beaten["status"]["conditions"][0]["lastProbeTime"] = json!("2026-11-29T12:00:00Z");
    api.put(PODS, beaten);
    settled().await;
    assert!(!watched.versions.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_told_to_and_closes_its_watches() {
    let (api, mut watched) = two_pods().await;
    watched.stop.cancel();
    let ended = watched.tasks.join_next().await.unwrap().unwrap();
    assert!(ended.is_ok());
    eventually("no watch is open", || {
        api.watches(POOLS) + api.watches(PODS) == 0
    })
    .await;
}
