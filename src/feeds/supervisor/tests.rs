//! Members come, change and go, with simulated engines at their addresses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::super::pool::{EventHints, PoolBuilder};
use super::*;
use crate::engine::{self, Running, Settings as Engine};
use crate::metrics::Metrics;
use crate::routing::block::{Scope, Sequence};
use crate::routing::cache::FeedState;
use crate::routing::endpoint::Endpoint;
use crate::routing::router::{Ask, EndpointView, Exclusion};

/// Longest wait for anything; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// A supervised pool of one member, and what keeps it running.
struct World {
    router: Arc<Router>,
    member: Member,
    pool: watch::Sender<Option<Arc<Pool>>>,
    readiness: Readiness,
    _tasks: JoinSet<Result<(), SupervisorError>>,
}

impl World {
    fn new(address: SocketAddr, events: EventHints) -> Self {
        let settings = crate::config::Settings::default();
        let metrics = Metrics::register().unwrap();
        let router = Router::new(settings.router);
        let context = Context {
            router: Arc::clone(&router),
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
        let member = Member {
            endpoint: Endpoint {
                name: EndpointName::new("ns", "pod"),
                address,
                labels: BTreeMap::new(),
                incarnation: "uid".to_owned(),
                rank: None,
            },
            ready: true,
            restarts: 0,
            events,
        };
        let (pool, versions) = watch::channel(None);
        let readiness = Readiness::new();
        let started = readiness.wait_for("pool");
        let mut tasks = JoinSet::new();
        let supervisor = Supervisor::new(context);
        let stop = CancellationToken::new();
        tasks.spawn(supervisor.run(versions, readiness.clone(), started, stop));
        let world = Self {
            router,
            member,
            pool,
            readiness,
            _tasks: tasks,
        };
        world.tell();
        world
    }

    /// The member as it is now is the pool's next version.
    fn tell(&self) {
        let mut pool = PoolBuilder::default();
        pool.add(self.member.clone()).unwrap();
        self.pool.send_replace(Some(Arc::new(pool.finish())));
    }

    /// Another member beside it, at this address, is in the next version too.
    fn tell_of(&self, address: SocketAddr, events: EventHints) {
        let mut other = self.member.clone();
        other.endpoint.name = EndpointName::new("ns", "other");
        other.endpoint.address = address;
        other.events = events;
        let mut pool = PoolBuilder::default();
        pool.add(self.member.clone()).unwrap();
        pool.add(other).unwrap();
        self.pool.send_replace(Some(Arc::new(pool.finish())));
    }

    /// Waits until we are ready.
    async fn ready(&self, patience: Duration) {
        let mut ready = self.readiness.watch();
        let waited = tokio::time::timeout(patience, ready.wait_for(|ready| *ready));
        waited
            .await
            .expect("ready in time")
            .expect("somebody tells");
    }

    fn views(&self) -> Vec<EndpointView> {
        let mut views = self.router.endpoints(Instant::now());
        views.sort_by_key(|view| view.endpoint.rank);
        views
    }

    /// Waits until the endpoints are as `holds` wants them.
    async fn sees(&self, what: &str, mut holds: impl FnMut(&[EndpointView]) -> bool) {
        let waiting = async {
            while !holds(&self.views()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "{what}: {:#?}", self.views());
    }

    /// Waits until exactly these endpoints are there, each with one live feed, that of this rank.
    async fn live(&self, expected: &[(&str, u32)]) {
        self.sees("live feeds", |views| {
            let seen = views.iter().map(|view| {
                let feeds: Vec<_> = view
                    .feeds
                    .iter()
                    .map(|(rank, feed)| (*rank, feed))
                    .collect();
                (view.endpoint.name.as_str(), feeds)
            });
            seen.eq(expected
                .iter()
                .map(|&(name, rank)| (name, vec![(rank, &FeedState::Live)])))
        })
        .await;
    }
}

/// A loopback address of its own for each test, whose ports stay free when its engine restarts.
fn own_address() -> Ipv4Addr {
    static TAKEN: AtomicU8 = AtomicU8::new(1);
    let [run, ..] = (1 + std::process::id() % 250).to_le_bytes();
    Ipv4Addr::new(127, run, 77, TAKEN.fetch_add(1, Ordering::Relaxed))
}

async fn start(settings: &Engine) -> Running {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match engine::start(settings.clone()).await {
            Ok(running) => return running,
            // The kernel may need a moment until a port is free again.
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An engine with these options at an address of its own.
async fn engine(options: &[&str]) -> Running {
    let address = own_address().to_string();
    let (live, replay) = (
        format!("tcp://{address}:5557"),
        format!("tcp://{address}:5600"),
    );
    let mut all = vec![
        "--address",
        &address,
        "--kv-events",
        &live,
        "--kv-replay",
        &replay,
    ];
    all.extend(options);
    start(&Engine::local(&all).unwrap()).await
}

fn hints(live_port: Option<u16>, replay_port: Option<u16>, rank: Option<u32>) -> EventHints {
    EventHints {
        live_port,
        replay_port,
        rank,
    }
}

#[tokio::test]
async fn ranks_behind_one_server_are_endpoints_until_it_has_them_no_more() {
    let engine = engine(&["--data-parallel-size", "2"]).await;
    let world = World::new(engine.http(), EventHints::default());
    world.live(&[("ns/pod@0", 0), ("ns/pod@1", 1)]).await;
    world
        .sees("reports of both", |views| {
            views.iter().all(|view| view.report.is_some())
        })
        .await;
    let mut settings = engine.settings().clone();
    engine.kill().await;
    settings.ranks.count = 3;
    let engine = start(&settings).await;
    let three = [("ns/pod@0", 0), ("ns/pod@1", 1), ("ns/pod@2", 2)];
    world.live(&three).await;
    engine.kill().await;
    settings.ranks.count = 1;
    let _engine = start(&settings).await;
    world.live(&[("ns/pod", 0)]).await;
    world.pool.send_replace(None);
    world.sees("nobody", <[_]>::is_empty).await;
}

#[tokio::test]
async fn one_rank_behind_a_balancer_of_its_own_stays_one_endpoint() {
    let engine = engine(&["--data-parallel-rank", "1"]).await;
    let world = World::new(engine.http(), EventHints::default());
    world.live(&[("ns/pod", 1)]).await;
}

#[tokio::test]
async fn hints_say_where_the_events_are_of_an_engine_that_does_not() {
    let engine = engine(&["--version", "0.20.0", "--data-parallel-rank", "1"]).await;
    let mut world = World::new(engine.http(), hints(Some(6000), Some(6100), Some(1)));
    world
        .sees("a wrong guess", |views| {
            views
                .iter()
                .any(|view| matches!(view.feeds[..], [(1, FeedState::Absent(_))]))
        })
        .await;
    // The annotation is mended.
    world.member.events = hints(Some(5557), Some(5600), Some(1));
    world.tell();
    world.live(&[("ns/pod", 1)]).await;
}

#[tokio::test]
async fn the_metrics_page_tells_of_ranks_where_nothing_else_does() {
    let engine = engine(&["--version", "0.20.0", "--data-parallel-size", "2"]).await;
    let world = World::new(engine.http(), hints(None, Some(5600), None));
    world.live(&[("ns/pod@0", 0), ("ns/pod@1", 1)]).await;
}

#[tokio::test]
async fn readiness_and_labels_change_within_a_life() {
    let engine = engine(&[]).await;
    let mut world = World::new(engine.http(), EventHints::default());
    world.live(&[("ns/pod", 0)]).await;
    let id = world.views()[0].id;
    world.member.ready = false;
    world.member.endpoint.labels = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
    world.tell();
    world
        .sees("the change", |views| {
            !views[0].ready && views[0].endpoint.labels == world.member.endpoint.labels
        })
        .await;
    let view = &world.views()[0];
    assert_eq!((view.id, &view.feeds[0].1), (id, &FeedState::Live));
}

/// Sends a prompt's worth of tokens there, and tells how many were foreseen to be cached.
fn send(world: &World) -> u64 {
    let sequence = Sequence::Tokens((0..160).collect());
    let prepared = world.router.prepare(&[sequence], &Scope::default());
    let ask = Ask {
        subset: None,
        alternates: 0,
        now: Instant::now(),
        chance: 1,
    };
    let mut decision = world.router.pick(&prepared, &ask).unwrap();
    decision.reservation.prefilled(ask.now);
    decision.cached.get()
}

#[tokio::test]
async fn without_events_a_restart_is_seen_and_its_count_wipes_nothing_that_came_since() {
    let engine = engine(&["--kv-events", "none"]).await;
    let mut world = World::new(engine.http(), EventHints::default());
    world
        .sees("a report", |views| {
            views.iter().any(|view| view.report.is_some())
        })
        .await;
    assert_eq!((send(&world), send(&world)), (0, 144));
    let settings = engine.settings().clone();
    engine.kill().await;
    let reported = |world: &World| world.views()[0].report.map(|(_, age)| age);
    world
        .sees("the absence", |views| {
            views[0].excluded == Some(Exclusion::Unreachable)
        })
        .await;
    let _engine = start(&settings).await;
    world
        .sees("a report of the new life", |views| {
            views[0]
                .report
                .is_some_and(|(_, age)| age < Duration::from_millis(500))
        })
        .await;
    assert_eq!((send(&world), send(&world)), (0, 144));
    assert!(reported(&world).is_some());
    world.member.restarts = 1;
    world.member.ready = false;
    world.tell();
    world.sees("the count", |views| !views[0].ready).await;
    world.member.ready = true;
    world.tell();
    world.sees("readiness", |views| views[0].ready).await;
    assert_eq!(send(&world), 144);
}

#[tokio::test]
async fn another_reason_for_having_no_events_does_not_wipe_what_was_sent() {
    let engine = engine(&["--version", "0.20.0", "--kv-events", "none"]).await;
    let mut world = World::new(engine.http(), hints(Some(65_535), None, Some(1)));
    let without_port = |views: &[EndpointView], rank| {
        views.iter().any(|view| match &view.feeds[..] {
            [(at, FeedState::Absent(why))] => *at == rank && why.starts_with("there is no port"),
            _ => false,
        })
    };
    world.sees("no port", |views| without_port(views, 1)).await;
    assert_eq!((send(&world), send(&world)), (0, 144));
    world.member.events.rank = Some(2);
    world.tell();
    world
        .sees("another rank", |views| without_port(views, 2))
        .await;
    assert_eq!(send(&world), 144);
}

#[tokio::test]
async fn somebody_can_be_picked_at_any_moment_while_all_endpoints_are_replaced() {
    let mut world = World::new(([127, 0, 0, 1], 1).into(), EventHints::default());
    world.sees("the first", |views| views.len() == 1).await;
    let router = Arc::clone(&world.router);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let picking = std::thread::spawn(move || {
        let prepared = router.prepare(&[], &Scope::default());
        let mut refused = 0_u32;
        while !stopped.is_cancelled() {
            let ask = Ask {
                subset: None,
                alternates: 0,
                now: Instant::now(),
                chance: 1,
            };
            refused += u32::from(router.pick(&prepared, &ask).is_err());
        }
        refused
    });
    for port in 2..200 {
        world.member.endpoint.address.set_port(port);
        if port % 2 == 0 {
            world.member.endpoint.name = EndpointName::new("ns", &format!("pod-{port}"));
        }
        world.tell();
        world
            .sees("the next", |views| {
                views.len() == 1 && views[0].endpoint.address.port() == port
            })
            .await;
    }
    stop.cancel();
    assert_eq!(picking.join().unwrap(), 0);
}

#[tokio::test]
async fn a_picker_is_ready_once_the_first_replays_are_in() {
    let engine = engine(&[]).await;
    let world = World::new(engine.http(), EventHints::default());
    world.ready(PATIENCE).await;
    assert_eq!(world.views()[0].feeds, [(0, FeedState::Live)]);
}

#[tokio::test]
async fn an_engine_that_is_not_there_holds_up_nobody() {
    let world = World::new((own_address(), 1).into(), EventHints::default());
    world.ready(Duration::from_secs(4)).await;
}

#[tokio::test]
async fn a_guess_that_would_be_another_engines_events_is_not_followed() {
    let publishing = engine(&[]).await;
    let address = publishing.http().ip().to_string();
    let options = [
        "--address",
        &address,
        "--kv-events",
        "none",
        "--version",
        "0.20.0",
    ];
    let silent = start(&Engine::local(&options).unwrap()).await;
    let world = World::new(publishing.http(), EventHints::default());
    world.live(&[("ns/pod", 0)]).await;
    world.tell_of(silent.http(), EventHints::default());
    let settled = |views: &[EndpointView]| {
        let feed_of = |name: &str| {
            let view = views
                .iter()
                .find(|view| view.endpoint.name.as_str() == name)?;
            Some(view.feeds.first()?.1.clone())
        };
        let refused = match feed_of("ns/other") {
            Some(FeedState::Absent(why)) => why.contains("may be those of ns/pod"),
            _ => false,
        };
        refused && feed_of("ns/pod") == Some(FeedState::Live)
    };
    world.sees("a guess that yields", settled).await;
    // Both are said to be there now, and one of them is not.
    world.tell_of(silent.http(), hints(Some(5557), None, None));
    world
        .sees("neither believed", |views| {
            views.len() == 2
                && views
                    .iter()
                    .all(|view| matches!(&view.feeds[..], [(_, FeedState::Absent(_))]))
        })
        .await;
    world.tell();
    world.live(&[("ns/pod", 0)]).await;
}
