//! A source says nothing while its engine computes: a dead connection, or a publisher that is silent.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::*;
use crate::routing::endpoint::Report;

impl Following {
    /// A report: so many tokens that no cache held were computed so far, in one request.
    fn computed(&self, tokens: u64) {
        let report = Report {
            block_size: Some(16),
            computed: Some(tokens),
            fresh: Some(tokens),
            finished: Some(1),
            ..Report::default()
        };
        self.demands.send_if_modified(|demands| {
            demands.work = Work::of(&report, Instant::now());
            false
        });
    }

    /// Reports come in which the engine's work grows, until the view is as `wanted`.
    async fn computing_until(&mut self, wanted: impl FnMut(&Record) -> bool) -> Record {
        let mut record = self.record.clone();
        let reached = record.wait_for(wanted);
        let growing = async {
            for n in 0.. {
                self.computed(n * 1000);
                tokio::time::sleep(QUIET / 8).await;
            }
        };
        let reached = tokio::time::timeout(DEADLINE, async {
            tokio::select! {
                reached = reached => reached.expect("the source is followed").clone(),
                () = growing => unreachable!("reports never end"),
            }
        });
        reached.await.expect("it comes to that")
    }
}

/// A way to a publisher that can swallow what is on it without closing anything.
struct Way {
    address: String,
    swallow: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Way {
    async fn to(publisher: &str) -> Self {
        let target = publisher.trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = format!("tcp://{}", listener.local_addr().expect("address"));
        let (swallow, swallows) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut here, _)) = listener.accept().await {
                let (target, mut swallows) = (target.clone(), swallows.clone());
                swallows.mark_unchanged();
                connections.spawn(async move {
                    let mut there = TcpStream::connect(target).await.expect("connected");
                    tokio::select! {
                        _ended = copy_bidirectional(&mut here, &mut there) => {}
                        _changed = swallows.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self {
            address,
            swallow,
            _tasks: tasks,
        }
    }

    /// What is connected now hears nothing any more, and is not closed. New connections are as usual.
    fn swallows(&self) {
        self.swallow.send_replace(true);
    }
}

#[tokio::test]
async fn a_connection_that_died_without_saying_so_is_made_anew_and_what_was_missed_is_replayed() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let way = Way::to(&publisher.live).await;
    let mut following = Following::source(Source {
        live: way.address.clone(),
        ..publisher.source()
    });
    following.live_with(0..3).await;
    way.swallows();
    for seq in 3..6 {
        publisher.publish(batch(0, seq)).await;
    }
    let record = following
        .computing_until(|record| record.is_live() && record.held.len() == 6)
        .await;
    assert_eq!(record.clears, 0);
    assert_eq!(following.count("warmpath_kv_event_silences_total"), 1);
    publisher.publish(batch(0, 6)).await;
    following.live_with(0..7).await;
    following.end().await;
}

#[tokio::test]
async fn without_a_replay_socket_what_was_missed_on_a_dead_connection_costs_the_view() {
    let mut publisher = Publisher::start(Script::default()).await;
    let way = Way::to(&publisher.live).await;
    let mut following = Following::source(Source {
        live: way.address.clone(),
        replay: None,
        ..publisher.source()
    });
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    way.swallows();
    publisher.send_live(batch(0, 1)).await;
    let feeds = following.record.borrow().feeds.len();
    let record = following
        .computing_until(|record| record.feeds.len() >= feeds + 2)
        .await;
    assert_eq!(record.held, [0], "nothing is known of what was missed");
    publisher.subscribed_times(2).await;
    publisher.send_live(batch(0, 2)).await;
    let record = following.until(|record| record.held == [2]).await;
    assert_eq!(record.clears, 1);
    following.end().await;
}

#[tokio::test]
async fn a_publisher_that_fell_silent_is_absent_until_it_speaks_and_then_rebuilt() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    let record = following
        .computing_until(|record| record.absent().is_some())
        .await;
    let cause = record.absent().expect("cause");
    assert!(cause.contains("published no KV event"), "{cause}");
    assert_eq!(
        record.held,
        Vec::<u64>::new(),
        "what it evicted is not known"
    );
    // A connection lost and made anew changes nothing of that.
    let (live, replay) = publisher.stop().await;
    let publisher = Publisher::start_at(&live, &replay, Script::default()).await;
    publisher.asked_times(1).await;
    publisher.script(|script| script.ring = ring(0, 0..3).ring);
    publisher.publish(batch(0, 3)).await;
    following.live_with(0..4).await;
    following.end().await;
}

#[tokio::test]
async fn an_engine_whose_prompts_are_all_cached_may_be_quiet() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    let until = Instant::now() + 5 * QUIET;
    let mut report = Report {
        block_size: Some(16),
        fresh: Some(7),
        ..Report::default()
    };
    for n in 0_u64.. {
        if Instant::now() > until {
            break;
        }
        report.computed = Some(n * 5829);
        report.finished = Some(n);
        following.demands.send_modify(|demands| {
            demands.work = Work::of(&report, Instant::now());
        });
        tokio::time::sleep(QUIET / 8).await;
    }
    assert_eq!(following.count("warmpath_kv_event_silences_total"), 0);
    let record = following.live_with(0..3).await;
    assert!(
        record
            .feeds
            .iter()
            .all(|feed| !matches!(feed, FeedState::Absent(_)))
    );
    following.end().await;
}

#[tokio::test]
async fn a_rank_may_be_quiet_while_the_others_behind_its_endpoint_compute() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::source(Source {
        one_of_several: true,
        shares_reports: true,
        ..publisher.source()
    });
    following.live_with(0..3).await;
    let until = Instant::now() + 5 * QUIET;
    for n in 0_u64.. {
        if Instant::now() > until {
            break;
        }
        following.computed(n * 1000);
        tokio::time::sleep(QUIET / 8).await;
    }
    assert_eq!(following.count("warmpath_kv_event_silences_total"), 0);
    let record = following.live_with(0..3).await;
    assert_eq!(record.clears, 0);
    following.end().await;
}
