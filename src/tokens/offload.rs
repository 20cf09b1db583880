//! Where CPU work of a request runs: at once when it is short, else on a bounded number of blocking threads.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;

/// Bytes of a body up to which its work is done inline.
///
/// The rule is that no request may hold a runtime thread for more than about 500 µs. Tokenizing is the
/// longest part; the figure is derived where it was measured, in `tests/it/tokens.rs`.
pub const INLINE_BYTES: usize = 32 * 1024;

/// The work was lost: it panicked, or the runtime is going down.
#[derive(Debug, thiserror::Error)]
#[error("the work on a blocking thread was lost")]
pub struct Lost(#[source] tokio::task::JoinError);

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
    /// Does `work` on a body of so many bytes. Dropping the future does not stop work that has begun,
    /// but it keeps its permit until it is done, so the bound holds.
    ///
    /// # Errors
    /// When the work panicked on a blocking thread or the runtime is going down.
    pub async fn run<T: Send + 'static>(
        &self,
        body_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        if body_bytes <= INLINE_BYTES {
            return Ok(work());
        }
        // The semaphore is never closed, so an error here cannot happen; without a permit the work
        // would merely be unbounded.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        tokio::task::spawn_blocking(move || {
            let _held = permit;
            work()
        })
        .await
        .map_err(Lost)
    }
}
