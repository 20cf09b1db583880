//! Where CPU work of a request runs: at once when it is short, else on a bounded number of blocking threads.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Semaphore;

/// Work expected to be longer than this leaves the runtime's threads, on which other streams wait. A hop to a
/// blocking thread and back costs some tens of microseconds.
pub const INLINE: Duration = Duration::from_micros(500);

/// The work was lost: it panicked (a library met an input it did not foresee), or the runtime is going down.
/// The request goes on without its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked or was given up")]
pub struct Lost;

/// Runs work inline or on blocking threads. Clones share one bound.
#[derive(Clone, Debug)]
pub struct Offload {
    permits: Arc<Semaphore>,
}

impl Default for Offload {
    /// As many at once as there are cores: more would only wait for one another.
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            permits: Arc::new(Semaphore::new(cores)),
        }
    }
}

impl Offload {
    /// Does `work`, which is expected to take so long. Dropping the future does not stop work that has begun,
    /// but it keeps its permit until it is done, so the bound holds.
    ///
    /// # Errors
    /// When the work panicked or the runtime is going down.
    pub async fn run<T: Send + 'static>(
        &self,
        expected: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        if expected <= INLINE {
            return catch_unwind(AssertUnwindSafe(work)).map_err(|_panic| Lost);
        }
        // The semaphore is never closed, so an error here cannot happen; without a permit the work
        // would merely be unbounded.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        tokio::task::spawn_blocking(move || {
            let _held = permit;
            work()
        })
        .await
        .map_err(|_join_error| Lost)
    }
}

/// How fast a model makes token ids, learnt as it goes.
///
/// It differs a thousandfold: measured on real agent prompts (Qwen3, rendering included) 2.5 ns a byte when
/// the text is new and 0.4 ns when it was seen before, with the fast tokenizer; the reference tokenizer, which
/// some models need, takes 200 to 600 ns a byte. So the same 32 KiB are 80 µs here and 20 ms there.
#[derive(Debug)]
pub(super) struct Pace {
    ns_per_kib: AtomicU64,
}

impl Default for Pace {
    /// 20 ns a byte: 25 KB go inline until something is known.
    fn default() -> Self {
        Self {
            ns_per_kib: AtomicU64::new(20 << 10),
        }
    }
}

impl Pace {
    /// Shorter bodies say more of the fixed cost of a request than of the pace.
    const MIN_BYTES: usize = 4096;

    /// How long a body of so many bytes will take.
    pub(super) fn expected(&self, bytes: usize) -> Duration {
        let pace = self.ns_per_kib.load(Ordering::Relaxed);
        Duration::from_nanos((bytes as u64).saturating_mul(pace) >> 10)
    }

    /// A body took so long. Each one counts for an eighth; one that is lost in a race does not matter.
    pub(super) fn learn(&self, bytes: usize, took: Duration) {
        if bytes < Self::MIN_BYTES {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let sample = nanos.saturating_mul(1024) / bytes as u64;
        let pace = self.ns_per_kib.load(Ordering::Relaxed);
        let learnt = (pace / 8).saturating_mul(7).saturating_add(sample / 8);
        self.ns_per_kib.store(learnt, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::current;

    use super::*;

    #[tokio::test]
    async fn long_work_leaves_the_runtime_thread_and_short_work_does_not() {
        let offload = Offload::default();
        let here = current().id();
        let short = offload.run(INLINE, || current().id()).await.unwrap();
        assert_eq!(short, here);
        let long = offload.run(INLINE * 2, || current().id()).await.unwrap();
        assert_ne!(long, here);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_wherever_it_runs() {
        let offload = Offload::default();
        for expected in [INLINE, INLINE * 2] {
            let lost = offload.run(expected, || panic!("on purpose"));
            assert_eq!(lost.await, Err::<(), _>(Lost));
        }
    }

    #[test]
    fn a_slow_model_soon_works_elsewhere_and_a_fast_one_at_once() {
        let body = 32 << 10;
        let slow = Pace::default();
        slow.learn(body, Duration::from_millis(20));
        assert!(slow.expected(body) > INLINE);
        let fast = Pace::default();
        for _ in 0..20 {
            fast.learn(body, Duration::from_micros(80));
        }
        assert!(fast.expected(body) < INLINE);
        assert!(fast.expected(4 * body) < INLINE);
        assert!(fast.expected(40 * body) > INLINE);
        // A tiny body's fixed cost is not taken for the pace.
        fast.learn(10, Duration::from_millis(1));
        assert!(fast.expected(body) < INLINE);
    }
}
