//! A picker that starts in a warm fleet: how long is it held not ready, so that it knows what is cached?
//!
//! Until the first replays are in, every endpoint looks cold, and requests would go where their
//! prefixes are not. A replay of 10,000 batches takes a fraction of a second, so waiting costs little; but
//! an engine that does not answer must not keep the picker from serving the others.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::info;

use crate::readiness::{Awaited, Readiness};

/// Longest wait. Gateways ask every few seconds whether a picker is ready, and another may be serving meanwhile.
const LONGEST: Duration = Duration::from_secs(5);

/// Waits for the sources of the first members.
#[derive(Debug)]
pub(super) struct Warming {
    _awaited: Awaited,
    /// Ends when nobody holds on any more.
    holders: mpsc::Receiver<Infallible>,
    until: Instant,
}

/// Something that is waited for, until it is dropped.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    _holds: mpsc::Sender<Infallible>,
}

/// A member's hold: its engine is asked where its events are, and the sources then hold on by themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberHold(Arc<Mutex<Option<Hold>>>);

impl Warming {
    /// Begins to wait for whoever gets a copy of the hold.
    pub(super) fn begin(readiness: &Readiness) -> (Self, Hold) {
        // Nothing is ever sent.
        let (holds, holders) = mpsc::channel(1);
        let warming = Self {
            _awaited: readiness.wait_for("the first replays of KV events"),
            holders,
            until: Instant::now() + LONGEST,
        };
        (warming, Hold { _holds: holds })
    }

    /// Waits until all that was waited for is there, but not too long. May be dropped without loss.
    pub(super) async fn over(&mut self) {
        tokio::select! {
            _nothing = self.holders.recv() => {}
            () = tokio::time::sleep_until(self.until) => {
                info!(
                    "not all KV events are caught up with after {LONGEST:?}: picks begin all the same, and requests may \
                     miss what is cached"
                );
            }
        }
    }
}

impl MemberHold {
    pub(super) fn new(hold: Option<Hold>) -> Self {
        Self(Arc::new(Mutex::new(hold)))
    }

    /// One for a source that is to be waited for.
    pub(super) fn share(&self) -> Option<Hold> {
        self.0.lock().clone()
    }

    /// The member itself is no longer waited for.
    pub(super) fn release(&self) {
        self.0.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_over_when_the_last_source_let_go() {
        let readiness = Readiness::new();
        let (mut warming, hold) = Warming::begin(&readiness);
        assert!(!*readiness.watch().borrow());
        let member = MemberHold::new(Some(hold.clone()));
        drop(hold);
        let source = member.share();
        member.release();
        assert!(warming.over().now_or_never().is_none());
        drop(source);
        assert!(warming.over().now_or_never().is_some());
        drop(warming);
        assert!(*readiness.watch().borrow());
        assert!(
            member.share().is_none(),
            "whoever comes later is not waited for"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_wait_longer_than_five_seconds() {
        let (mut warming, _hold) = Warming::begin(&Readiness::new());
        let began = Instant::now();
        warming.over().await;
        assert_eq!(began.elapsed(), LONGEST);
    }
}
