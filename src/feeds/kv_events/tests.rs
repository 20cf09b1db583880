//! Sources followed over real sockets on loopback, against a scripted publisher.

mod joining;
mod losing;
mod proving;
mod publisher;
mod quiet;
mod repairing;

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;
use bytes::Bytes;
use publisher::{DEADLINE, Publisher, Script, batch, clear_batch};

/// What a view was made to do.
#[derive(Clone, Debug, Default)]
struct Record {
    /// Hashes stored since the last clear, in order.
    held: Vec<u64>,
    clears: usize,
    feeds: Vec<FeedState>,
}

impl Record {
    fn feed(&self) -> Option<&FeedState> {
        self.feeds.last()
    }

    fn is_live(&self) -> bool {
        self.feed() == Some(&FeedState::Live)
    }

    fn incomplete(&self) -> Option<&str> {
        match self.feed() {
            Some(FeedState::Incomplete(cause)) => Some(cause),
            _ => None,
        }
    }

    fn absent(&self) -> Option<&str> {
        match self.feed() {
            Some(FeedState::Absent(cause)) => Some(cause),
            _ => None,
        }
    }
}

struct Recorder(watch::Sender<Record>);

impl View for Recorder {
    fn apply(&mut self, events: &[KvEvent]) -> Applied {
        self.0.send_modify(|record| {
            for event in events {
                match event {
                    KvEvent::Stored(stored) => {
                        record.held.extend(stored.hashes.iter().map(|h| h.0));
                    }
                    KvEvent::Removed(_) => {}
                    KvEvent::Cleared => record.held.clear(),
                }
            }
        });
        Applied::default()
    }

    fn clear(&mut self) {
        self.0.send_modify(|record| {
            record.held.clear();
            record.clears += 1;
        });
    }

    fn set_feed(&mut self, state: FeedState) {
        self.0.send_modify(|record| record.feeds.push(state));
    }
}

/// How long a source may be quiet here while its engine computes.
const QUIET: Duration = Duration::from_millis(200);

/// A source being followed.
struct Following {
    record: watch::Receiver<Record>,
    demands: watch::Sender<Demands>,
    registry: Registry,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Following {
    fn of(publisher: &Publisher) -> Self {
        Self::source(Source {
            known: false,
            ..publisher.source()
        })
    }

    fn without_replay(publisher: &Publisher) -> Self {
        Self::source(Source {
            replay: None,
            ..publisher.source()
        })
    }

    fn source(source: Source) -> Self {
        Self::with_guess_timeout(source, DEADLINE)
    }

    fn with_guess_timeout(source: Source, guess_timeout: Duration) -> Self {
        Self::with_timeouts(source, guess_timeout, Duration::from_millis(300))
    }

    fn with_timeouts(source: Source, guess_timeout: Duration, replay_timeout: Duration) -> Self {
        let (sender, record) = watch::channel(Record::default());
        let (demands, demanded) = watch::channel(Demands::default());
        let registry = Registry::new();
        let metrics = Arc::new(EventMetrics::register(&registry).expect("free names"));
        let settings = Settings {
            live_port: 5557,
            replay_port: 5558,
            replay_timeout,
            guess_timeout,
            quiet_timeout: QUIET,
            max_orphans: 100,
            replays: Arc::new(Semaphore::new(1)),
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move {
            follow(
                "ns/pod",
                source,
                Recorder(sender),
                demanded,
                settings,
                metrics,
                stopped,
            )
            .await;
        });
        Self {
            record,
            demands,
            registry,
            stop,
            tasks,
        }
    }

    /// Waits until the view is as `wanted`.
    async fn until(&mut self, wanted: impl FnMut(&Record) -> bool) -> Record {
        let reached = tokio::time::timeout(DEADLINE, self.record.wait_for(wanted))
            .await
            .map(|record| record.expect("the source is followed").clone());
        match reached {
            Ok(record) => record,
            Err(_) => panic!("it never came to that: {:?}", *self.record.borrow()),
        }
    }

    /// Waits until exactly these hashes are held and the feed is live.
    async fn live_with(&mut self, hashes: impl IntoIterator<Item = u64>) -> Record {
        let hashes: Vec<_> = hashes.into_iter().collect();
        self.until(|record| record.is_live() && record.held == hashes)
            .await
    }

    /// Asks something of the follower.
    fn demand(&self, what: impl FnOnce(&mut Demands)) {
        self.demands.send_modify(what);
    }

    /// The sum over all series of a counter.
    fn count(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let series = family.map_or(&[][..], |family| family.get_metric());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small counts"
        )]
        series
            .iter()
            .map(|metric| metric.get_counter().get_value() as u64)
            .sum()
    }

    /// Stops and waits for the end.
    async fn end(mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(DEADLINE, self.tasks.join_next()).await;
        ended
            .expect("it stops when told")
            .expect("there is a task")
            .expect("no panic");
    }
}

fn ring(life: u64, numbers: impl IntoIterator<Item = u64>) -> Script {
    Script {
        ring: numbers.into_iter().map(|seq| batch(life, seq)).collect(),
        ..Script::default()
    }
}
