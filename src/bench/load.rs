//! When are requests sent? In an open loop at a rate, whatever the picker does, or in a closed loop of so many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::Connections;
use super::exchange::{Failure, Script, play};
use super::tally::Tally;
use super::workload::Workload;

/// What requests are made of and where they go.
pub(super) struct Generator {
    pub(super) connections: Connections,
    pub(super) workload: Workload,
    pub(super) script: Script,
    /// Longest time of one exchange up to its answer.
    pub(super) timeout: Duration,
    pub(super) tally: Tally,
    pub(super) numbers: AtomicU64,
    pub(super) seed: u64,
}

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// So many a second, at random moments (a Poisson process); 0: none.
    Rate(f64),
    /// So many at once, each followed by the next.
    Loops(usize),
}

/// Sends requests until `stop`, and waits for those under way.
pub(super) async fn run(generator: Arc<Generator>, pace: Pace, stop: CancellationToken) {
    match pace {
        Pace::Rate(rate) if rate > 0.0 => open_loop(generator, rate, stop).await,
        Pace::Rate(_) => stop.cancelled().await,
        Pace::Loops(loops) => closed_loop(generator, loops, stop).await,
    }
}

/// Sends every shared part once, so that caches are as they are in the midst of a day. The answers are short.
pub(super) async fn warm_up(generator: &Arc<Generator>, loops: usize) {
    let prefixes = generator.workload.prefixes();
    let mut tasks = JoinSet::new();
    for first in 0..loops {
        let generator = Arc::clone(generator);
        tasks.spawn(async move {
            let mut rng = generator.rng(first as u64);
            for prefix in (first..prefixes).step_by(loops) {
                let script = generator.script.without_events();
                generator
                    .request(script, prefix, &mut rng, Duration::ZERO)
                    .await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

async fn open_loop(generator: Arc<Generator>, rate: f64, stop: CancellationToken) {
    let mut rng = generator.rng(u64::MAX);
    let mut under_way = JoinSet::new();
    let mut due = Instant::now();
    loop {
        // Gaps of a Poisson process; 1 − f64() is never 0.
        due += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate);
        tokio::select! {
            () = sleep_until(due) => {}
            () = stop.cancelled() => break,
        }
        while under_way.try_join_next().is_some() {}
        let generator = Arc::clone(&generator);
        let mut rng = rng.fork();
        under_way.spawn(async move {
            let prefix = rng.usize(..generator.workload.prefixes());
            let lateness = due.elapsed();
            let script = generator.script;
            generator.request(script, prefix, &mut rng, lateness).await;
        });
    }
    while under_way.join_next().await.is_some() {}
}

async fn closed_loop(generator: Arc<Generator>, loops: usize, stop: CancellationToken) {
    let mut tasks = JoinSet::new();
    for loop_number in 0..loops {
        let generator = Arc::clone(&generator);
        let stop = stop.clone();
        tasks.spawn(async move {
            let mut rng = generator.rng(loop_number as u64);
            while !stop.is_cancelled() {
                let prefix = rng.usize(..generator.workload.prefixes());
                let script = generator.script;
                generator
                    .request(script, prefix, &mut rng, Duration::ZERO)
                    .await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

impl Generator {
    fn rng(&self, stream: u64) -> Rng {
        Rng::with_seed(self.seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    async fn request(&self, script: Script, prefix: usize, rng: &mut Rng, lateness: Duration) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("{:016x}-{number:016x}", self.seed);
        let body = self.workload.body(prefix, number, rng);
        let playing = play(&self.connections, script, &request_id, &body);
        let limit = self.timeout + script.answer_time();
        let result = timeout(limit, playing).await;
        let result = result.unwrap_or(Err(Failure::TimedOut));
        let failed = result.is_err();
        self.tally.ended(result, lateness);
        if failed {
            // A picker that refuses at once is not to be hammered.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
