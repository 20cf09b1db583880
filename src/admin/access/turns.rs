//! When may the API server be asked? A few questions at once, one after a while: whoever sends made-up tokens must not
//! become its load, nor keep those out whom it knows.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// Reviews at once.
const AT_ONCE: usize = 4;

/// Between the beginnings of two reviews: at most 40 a second. Scrapers need one or two a minute.
const BETWEEN: Duration = Duration::from_millis(25);

/// Whoever would have to wait longer than this is told so at once: 80 questions may wait.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A queue for one kind of askers.
///
/// The lock guards the time of the next turn; it is held for a moment, never while waiting.
pub(super) struct Turns {
    at_once: Semaphore,
    next: Mutex<Instant>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            at_once: Semaphore::new(AT_ONCE),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a turn, which lasts until what is returned is dropped; `None` when too many wait already.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        let turn = {
            let mut next = self.next.lock();
            let now = Instant::now();
            let turn = (*next).max(now);
            if turn - now > LONGEST_WAIT {
                return None;
            }
            *next = turn + BETWEEN;
            turn
        };
        sleep_until(turn).await;
        // Nobody closes it, so there is always a permit in the end.
        self.at_once.acquire().await.ok()
    }
}
