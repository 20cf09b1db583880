//! Lives of members, with the router that hears of them.

use std::time::Duration;

use futures_util::FutureExt as _;

use super::*;
use crate::routing::block::{Scope, Sequence};
use crate::routing::cost::Tiers;
use crate::routing::endpoint::Report;
use crate::routing::router::{Ask, Decision, EndpointView, Policy, Settings};

/// Those who hear, of a pool without endpoints.
pub(in crate::feeds) fn world() -> Audience {
    let settings = Settings {
        policy: Policy::LeastPrefill,
        kv_usage_limit: 0.95,
        report_age_limit: Duration::from_millis(500),
        idle_report_age_limit: Duration::from_secs(6),
        tiers: Tiers::default(),
    };
    let metrics = PickMetrics::register(&prometheus::Registry::new());
    Audience {
        router: Router::new(settings),
        waker: Arc::default(),
        profiles: Profiles::default(),
        pick_metrics: Arc::new(metrics.unwrap()),
    }
}

/// A ready member whose container was restarted so often.
pub(in crate::feeds) fn member(restarts: u32) -> Member {
    Member {
        endpoint: Endpoint {
            name: EndpointName::new("ns", "pod"),
            address: ([127, 0, 0, 1], 8000).into(),
            labels: BTreeMap::new(),
            incarnation: "uid".to_owned(),
            rank: None,
        },
        ready: true,
        restarts,
        events: EventHints::default(),
    }
}

/// The life of a member that joins.
pub(in crate::feeds) fn life(world: &Audience, member: Member) -> Arc<Life> {
    Life::begin(world.clone(), member)
}

fn views(world: &Audience) -> Vec<EndpointView> {
    let mut views = world.router.endpoints(Instant::now());
    views.sort_by_key(|view| view.endpoint.rank);
    views
}

fn names(world: &Audience) -> Vec<String> {
    let name = |view: &EndpointView| view.endpoint.name.to_string();
    views(world).iter().map(name).collect()
}

fn pick(world: &Audience, prompt: u32, now: Instant) -> Decision {
    let sequence = Sequence::Tokens((0..160).map(|n| prompt * 1000 + n).collect());
    let prepared = world.router.prepare(&[sequence], &Scope::default());
    let ask = Ask {
        subset: None,
        alternates: 0,
        now,
        chance: 1,
    };
    let mut decision = world.router.pick(&prepared, &ask).unwrap();
    // Only what was computed is taken to be cached.
    decision.reservation.prefilled(now);
    decision
}

fn finding(outcome: ReportOutcome) -> Finding {
    Finding::of(outcome)
}

fn fresh() -> Finding {
    finding(ReportOutcome::Fresh(Report::default()))
}

#[test]
fn ranks_join_before_the_whole_leaves_and_the_other_way_round() {
    let world = world();
    let life = life(&world, member(0));
    assert_eq!(names(&world), ["ns/pod"]);
    let profile = Profile {
        version: Some((0, 31)),
        ..Profile::default()
    };
    life.tell_profile(profile.clone());
    let divided = life.divide(&BTreeSet::from([0, 1]));
    assert_eq!(names(&world), ["ns/pod@0", "ns/pod@1"]);
    assert!(views(&world).iter().all(|view| view.ready));
    assert!(
        divided
            .values()
            .all(|id| world.profiles.lock()[id] == profile)
    );
    let more = life.divide(&BTreeSet::from([0, 1, 2]));
    assert_eq!(more[&Some(1)], divided[&Some(1)], "those it has stay");
    assert_eq!(names(&world), ["ns/pod@0", "ns/pod@1", "ns/pod@2"]);
    life.divide(&BTreeSet::new());
    assert_eq!(names(&world), ["ns/pod"]);
    assert_eq!(world.profiles.lock().len(), 1);
    Life::end(&[Arc::clone(&life)]);
    assert_eq!(names(&world), Vec::<String>::new());
    assert!(world.profiles.lock().is_empty());
    assert_eq!(life.divide(&BTreeSet::from([0, 1])), BTreeMap::new());
    life.tell_profile(profile);
    assert!(names(&world).is_empty() && world.profiles.lock().is_empty());
}

#[test]
fn what_discovery_changes_holds_for_all_ranks_those_that_come_later_too() {
    let world = world();
    let life = life(&world, member(0));
    life.divide(&BTreeSet::from([0, 1]));
    let mut changed = member(0);
    changed.ready = false;
    changed
        .endpoint
        .labels
        .insert("zone".to_owned(), "b".to_owned());
    changed.events.live_port = Some(7000);
    let mut hints = life.hints();
    life.change(&changed, Instant::now());
    life.divide(&BTreeSet::from([0, 1, 2]));
    for view in views(&world) {
        assert!(!view.ready);
        assert_eq!(view.endpoint.labels, changed.endpoint.labels);
    }
    assert_eq!(views(&world).len(), 3);
    assert_eq!(*hints.borrow_and_update(), changed.events);
}

#[test]
fn the_work_of_a_whole_server_is_not_taken_for_that_of_each_rank() {
    let world = world();
    let life = life(&world, member(0));
    let report = ReportOutcome::Fresh(Report {
        block_size: Some(64),
        computed: Some(50_000),
        fresh: Some(10_000),
        finished: Some(3),
        ..Report::default()
    });
    let now = Instant::now();
    life.report(&finding(report), now, now);
    assert!(life.demands(None).borrow().work.is_some());
    life.divide(&BTreeSet::from([0, 1]));
    life.report(&finding(report), now, now);
    for rank in [0, 1] {
        assert_eq!(life.demands(Some(rank)).borrow().work, None, "rank {rank}");
    }
}

#[test]
fn a_count_before_anything_was_seen_ends_the_past_at_once_and_rings() {
    let world = world();
    let life = life(&world, member(3));
    let demands = life.demands(None);
    let proofs = || demands.borrow().proofs;
    let start = Instant::now();
    drop(pick(&world, 1, start));
    life.report(&fresh(), start, start);
    assert_eq!(pick(&world, 1, start).cached.get(), 144);
    let late = start + Duration::from_secs(5);
    life.change(&member(3), late);
    assert_eq!(proofs(), 0);
    life.change(&member(4), late);
    assert_eq!(proofs(), 1);
    let view = &views(&world)[0];
    assert!(view.report.is_none() && view.ready);
    assert_eq!(pick(&world, 1, late).cached.get(), 0);
    life.change(&member(2), late);
    assert_eq!(proofs(), 1, "counts do not fall");
}

#[test]
fn an_engine_that_was_away_is_cold_when_it_is_back_and_a_late_count_changes_nothing() {
    let world = world();
    let life = life(&world, member(0));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    life.report(&fresh(), at(0), at(0));
    drop(pick(&world, 1, at(0)));
    let bell = life.process_bell();
    // Another life may have had this address a moment ago.
    assert_eq!(bell.notified().now_or_never(), Some(()));
    life.report(&finding(ReportOutcome::Refused), at(2), at(2));
    assert_eq!(bell.notified().now_or_never(), None);
    life.report(&fresh(), at(4), at(4));
    assert_eq!(bell.notified().now_or_never(), Some(()));
    assert_eq!(
        pick(&world, 1, at(5)).cached.get(),
        0,
        "this fills it again"
    );
    life.change(&member(1), at(20));
    assert_eq!(pick(&world, 1, at(21)).cached.get(), 144);
    assert!(
        views(&world)[0].report.is_some(),
        "a report of the new life"
    );
}

#[test]
fn an_engine_that_becomes_ready_is_asked_for_its_report_and_its_ranks_at_once() {
    let world = world();
    let not_ready = Member {
        ready: false,
        ..member(0)
    };
    let life = life(&world, not_ready.clone());
    let bell = life.profile_bell();
    let rings = || {
        let report = life.report_wanted().now_or_never().is_some();
        (report, bell.notified().now_or_never().is_some())
    };
    life.change(&not_ready, Instant::now());
    assert_eq!(rings(), (false, false));
    life.change(&member(0), Instant::now());
    assert_eq!(rings(), (true, true));
    life.change(&member(0), Instant::now());
    assert_eq!(rings(), (false, false), "it was ready already");
}

#[test]
fn an_engine_asleep_has_nothing_cached_and_its_followers_hear_of_it_with_each_report() {
    let world = world();
    let life = life(&world, member(0));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let asleep = Report {
        asleep: true,
        ..Report::default()
    };
    life.report(&fresh(), at(0), at(0));
    drop(pick(&world, 1, at(0)));
    assert_eq!(pick(&world, 1, at(1)).cached.get(), 144);
    let mut demands = life.demands(None);
    demands.mark_unchanged();
    for (n, second) in [(1, 2), (2, 4)] {
        life.report(
            &finding(ReportOutcome::Fresh(asleep)),
            at(second),
            at(second),
        );
        assert!(demands.has_changed().unwrap());
        assert_eq!(demands.borrow_and_update().empties, n);
    }
    assert!(views(&world)[0].report.unwrap().0.asleep);
    life.report(&fresh(), at(6), at(6));
    assert!(!demands.has_changed().unwrap(), "it is awake");
    assert_eq!(pick(&world, 1, at(6)).cached.get(), 0);
    assert_eq!(pick(&world, 1, at(7)).cached.get(), 144);
}

#[test]
fn what_an_engine_computes_is_told_to_its_followers_without_waking_them() {
    let world = world();
    let life = life(&world, member(0));
    let mut demands = life.demands(None);
    demands.mark_unchanged();
    let computing = Report {
        computed: Some(7),
        fresh: Some(7),
        finished: Some(1),
        block_size: Some(16),
        ..Report::default()
    };
    let now = Instant::now();
    life.report(&finding(ReportOutcome::Fresh(computing)), now, now);
    assert!(demands.borrow().work.is_some() && !demands.has_changed().unwrap());
    life.report(&fresh(), now, now);
    assert!(demands.borrow().work.is_none());
}

#[test]
fn an_engine_that_is_back_is_to_be_proven_the_same_since_it_was_last_away() {
    let world = world();
    let life = life(&world, member(0));
    let demands = life.demands(None);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    life.report(&fresh(), at(0), at(0));
    assert_eq!(demands.borrow().away_at, None);
    life.report(&finding(ReportOutcome::Refused), at(2), at(2));
    life.report(&finding(ReportOutcome::Refused), at(4), at(4));
    life.report(&fresh(), at(6), at(6));
    assert_eq!(demands.borrow().away_at, Some(at(4).into()));
    life.came_back();
    assert_eq!(demands.borrow().reconnects, 1);
}

#[test]
fn a_rebuild_is_asked_of_the_followers_of_one_rank_alone() {
    let world = world();
    let life = life(&world, member(0));
    let ids = life.divide(&BTreeSet::from([0, 1]));
    let rebuilds = |rank| life.demands(Some(rank)).borrow().rebuilds;
    world.waker.rebuild(ids[&Some(1)]);
    assert_eq!((rebuilds(0), rebuilds(1)), (0, 1));
    life.divide(&BTreeSet::new());
    world.waker.rebuild(ids[&Some(1)]);
    let gone = life.demands(Some(1));
    assert!(gone.has_changed().is_err(), "nobody asks any more");
}
