//! Nothing is heard: how long that is all right, what is said then, and when to try again.

use std::error::Error;
use std::time::Duration;

use tracing::warn;

use super::super::View;
use super::Follower;
use crate::routing::cache::FeedState;

/// First wait before connecting anew.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Longest wait for a source that is known or was heard before: an engine that comes back
/// must be found at once, and a refused connection costs next to nothing.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Longest wait for a guess that never proved right: many endpoints have no events at all.
const MAX_WAIT_GUESSED: Duration = Duration::from_secs(15);

/// When a replay socket that did not answer is asked again, in times a source may be silent:
/// soon enough that a busy engine's view does not stay incomplete, seldom enough for one that
/// has no such socket. Jittered, for all sources are asked at once when the picker starts.
pub(super) fn ask_again_after(guess_timeout: Duration) -> Duration {
    guess_timeout.mul_f64(2.0 + 2.0 * fastrand::f64())
}

/// When something is written to the connection again, to notice that its other end is gone. Connection tables on
/// the way forget silent ones after minutes.
pub(super) fn nudge_after() -> Duration {
    Duration::from_secs(30).mul_f64(0.8 + 0.4 * fastrand::f64())
}

/// Waits that double up to a cap, with the upper half of each left to chance.
#[derive(Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(super) fn next(&mut self, cap: Duration) -> Duration {
        let wait = FIRST_WAIT
            .saturating_mul(1 << self.attempts.min(16))
            .min(cap);
        self.attempts = self.attempts.saturating_add(1);
        wait.mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

impl<V: View> Follower<'_, V> {
    /// The longest wait before the next attempt to connect.
    pub(super) fn cap(&self) -> Duration {
        let given_up = matches!(self.told, Some(FeedState::Absent(_)));
        if given_up && !self.source.known && !self.ever_heard {
            MAX_WAIT_GUESSED
        } else {
            MAX_WAIT
        }
    }

    /// The time that silence was allowed is over.
    pub(super) fn silence(&mut self) {
        self.silent_by = None;
        if self.source.known && !self.warned {
            self.warned = true;
            warn!(
                endpoint = self.endpoint,
                rank = self.source.rank,
                live = self.source.live,
                replay = self.source.replay,
                connected = self.connected,
                error = self.trouble.as_ref().map(|error| error as &dyn Error),
                advice = self.source.advice,
                "an engine said to publish KV events is silent. Likely causes: its publisher connects instead of \
                 binding (only endpoints with `*` or `::` are bound: `tcp://*:5557`, not `tcp://0.0.0.0:5557`); \
                 another port (with data parallelism each rank has its own); a network policy between picker and \
                 engine; prefix caching or `enable_kv_cache_events` off; no `replay_endpoint` and no traffic yet"
            );
        }
        if self.connected && self.source.known {
            // It may just be idle. What was said at the join stands.
            return;
        }
        let live = &self.source.live;
        let replay = match &self.source.replay {
            Some(replay) => format!("no replay answer from {replay}"),
            None => "no replay socket".to_owned(),
        };
        let reason = if self.connected {
            format!("connected to {live}, but no KV event came; {replay}")
        } else {
            let trouble = match &self.trouble {
                Some(error) => format!(" ({error})"),
                None => String::new(),
            };
            format!("cannot connect to {live} for KV events{trouble}; {replay}")
        };
        let reason = self.advised(reason);
        self.tell(FeedState::Absent(reason));
    }

    /// A reason, and what to do about it where that is known.
    pub(super) fn advised(&self, reason: String) -> String {
        match &self.source.advice {
            Some(advice) => format!("{reason}; {advice}"),
            None => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_cap_and_stay_there() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..40).map(|_| backoff.next(MAX_WAIT)).collect();
        assert!(waits[0] >= FIRST_WAIT / 2 && waits[0] <= FIRST_WAIT);
        for wait in &waits[4..] {
            assert!(*wait >= MAX_WAIT / 2 && *wait <= MAX_WAIT, "{wait:?}");
        }
    }
}
