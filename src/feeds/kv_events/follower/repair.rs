//! What is demanded of a follower, and what it gives up by itself when a source cannot be right.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::super::View;
use super::super::demands::Demand;
use super::super::socket::{Link, Lost};
use super::Follower;

/// How late a count of restarts may be: kubelets report within some ten seconds.
const LATEST_COUNT: Duration = Duration::from_secs(60);

/// How long a source of two publishers' batches is left alone.
pub(super) const QUARANTINE: Duration = Duration::from_secs(60);

/// How long a source is not asked for what cannot be read after its ring had it no better. An engine of another dialect
/// would be asked for each of its batches.
pub(super) const ILLEGIBLE_PAUSE: Duration = Duration::from_secs(30);

/// Restarts on one standing connection within [`QUARANTINE`] that are believed. A process that
/// ends closes its connections, so even one needs something between that keeps them.
const MAX_RESTARTS_ON_A_CONNECTION: u32 = 3;

/// Wait between the first two rebuilds. Each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(30);

/// Longest wait between two rebuilds: a view that is wrong again each time will not be mended by
/// the next replay, which the engine has to send all the same.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// When the next rebuild may begin.
#[derive(Debug)]
pub(super) struct Rebuilds {
    /// One is wanted since then.
    asked: Option<Instant>,
    not_before: Option<Instant>,
    wait: Duration,
}

impl Default for Rebuilds {
    fn default() -> Self {
        Self {
            asked: None,
            not_before: None,
            wait: FIRST_WAIT,
        }
    }
}

impl Rebuilds {
    pub(super) fn ask(&mut self, now: Instant) {
        if self.not_before.is_none_or(|at| at + self.wait <= now) {
            // It was right for long enough.
            self.wait = FIRST_WAIT;
        }
        self.asked.get_or_insert(now);
    }

    /// When it is time for the one that is wanted.
    pub(super) fn due(&self) -> Option<Instant> {
        let asked = self.asked?;
        Some(self.not_before.map_or(asked, |at| at.max(asked)))
    }

    pub(super) fn begun(&mut self, now: Instant) {
        self.asked = None;
        self.not_before = Some(now + self.wait);
        self.wait = (self.wait * 2).min(MAX_WAIT);
    }
}

/// Restarts seen on a connection that stands.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    first: Option<Instant>,
    count: u32,
}

impl Jumps {
    /// One more; whether they are too many to be restarts.
    pub(super) fn again(&mut self, now: Instant) -> bool {
        match self.first {
            Some(first) if now < first + QUARANTINE => self.count += 1,
            _ => {
                self.first = Some(now);
                self.count = 1;
            }
        }
        self.count > MAX_RESTARTS_ON_A_CONNECTION
    }
}

impl<V: View> Follower<'_, V> {
    /// Does what is demanded on a connection made at `connected`.
    pub(super) fn obey(&mut self, demand: Demand, connected: Instant) -> Result<(), Lost> {
        match demand {
            // The engine's container was restarted, a moment or many seconds ago. The connection
            // may still be one to the former process, whose end it did not notice, so the proof
            // begins with a new one. Without a replay socket nothing could be proven, and all would
            // be forgotten: there a young connection counts, since it was made after the former
            // process had ended.
            Demand::Prove if self.source.replay.is_none() && connected.elapsed() < LATEST_COUNT => {
                Ok(())
            }
            Demand::Prove => Err(Lost::Unproven),
            Demand::ProveSince(away_at) if connected > away_at => Ok(()),
            Demand::ProveSince(_) => Err(Lost::Unproven),
            Demand::Reconnect => Err(Lost::Doubtful),
            Demand::Empty | Demand::Adapters | Demand::Rebuild => {
                self.obey_apart(demand);
                Ok(())
            }
        }
    }

    /// Does what is demanded while there is no connection: the next one begins with a proof anyway.
    pub(super) fn obey_apart(&mut self, demand: Demand) {
        match demand {
            Demand::Empty => self.empty(),
            Demand::Adapters => self.view.forget_replaced_adapters(),
            Demand::Rebuild => self.rebuilds.ask(Instant::now()),
            Demand::Prove | Demand::ProveSince(_) | Demand::Reconnect => {}
        }
    }

    /// The engine's cache is gone, but its numbers go on.
    fn empty(&mut self) {
        if self.base.take().is_some() {
            self.metrics.clear();
            info!(
                endpoint = self.endpoint,
                rank = self.source.rank,
                "KV cache is gone: what was known of it is forgotten"
            );
        }
        // What else was taken to be cached there goes as well, so even if nothing is held.
        self.view.clear();
    }

    /// The view was found to be wrong: it starts over from a replay of everything.
    pub(super) async fn rebuild(&mut self, link: &mut Link) -> Result<(), Lost> {
        self.rebuilds.begun(Instant::now());
        self.metrics.rebuild();
        info!(
            endpoint = self.endpoint,
            rank = self.source.rank,
            "KV events are replayed from the beginning, because the engine's answers contradict them"
        );
        self.forget();
        self.view.clear();
        self.join(link).await
    }

    /// Nobody could be connected to, so what was kept on a mere suspicion is no better than
    /// after any other loss.
    pub(super) fn let_go(&mut self) {
        if std::mem::take(&mut self.kept) {
            self.cursor.disconnected();
        }
    }

    /// Looks whether a batch is overdue. The first time the connection is blamed, and after that the publisher.
    pub(super) fn look(&mut self) -> Result<(), Lost> {
        if self.source.shares_reports {
            return Ok(());
        }
        let overdue = self.quiet.look(self.inbox.work(), Instant::now());
        let Some(overdue) = overdue.filter(|_| self.unusable.is_none()) else {
            return Ok(());
        };
        if !overdue.again {
            self.metrics.silence();
            return Err(Lost::Overdue(overdue.tokens));
        }
        self.forget();
        self.unusable = Some(format!(
            "the engine computed {} more tokens and published no KV event in {} s: is prefix caching on, and does \
             its log say why nothing is published from {}?",
            overdue.tokens,
            overdue.silence.as_secs(),
            self.source.live
        ));
        self.tell_standing();
        Ok(())
    }

    /// A batch that names another rank, where each rank has a source of its own: none of it is this one's.
    pub(super) fn foreign(&mut self, rank: u32) {
        if self.base.take().is_some() {
            self.metrics.clear();
            self.view.clear();
        }
        let Self { source, .. } = self;
        self.unusable = Some(format!(
            "the KV events at {} are those of rank {rank}, not of rank {}: each rank needs a port of its own, the \
             first one's plus its number",
            source.live, source.rank
        ));
    }

    /// A batch that cannot be read was perhaps spoilt on its way.
    pub(super) fn may_be_legible_in_the_ring(&self) -> bool {
        let paused = self
            .illegible_until
            .is_some_and(|until| Instant::now() < until);
        self.source.replay.is_some() && !self.unanswered && !paused
    }

    /// Numbers went backwards again and again: these are the batches of several publishers.
    pub(super) fn interleaved(&mut self) -> Lost {
        let cause = format!(
            "batch numbers at {} jump back and forth: several engines publish there, and each needs an address of \
             its own",
            self.source.live
        );
        warn!(
            endpoint = self.endpoint,
            rank = self.source.rank,
            cause,
            "KV events are of no use"
        );
        self.unusable = Some(cause);
        self.tell_standing();
        Lost::Interleaved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebuilds_wait_longer_each_time_and_are_forgiven_after_a_calm() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut rebuilds = Rebuilds::default();
        assert_eq!(rebuilds.due(), None);
        let mut now = 0;
        for wait in [0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
            rebuilds.ask(at(now));
            rebuilds.ask(at(now));
            assert_eq!(rebuilds.due(), Some(at(now + wait)));
            now += wait;
            rebuilds.begun(at(now));
            assert_eq!(rebuilds.due(), None);
        }
        now += 2 * 3600;
        rebuilds.ask(at(now));
        assert_eq!(rebuilds.due(), Some(at(now)));
        rebuilds.begun(at(now));
        rebuilds.ask(at(now + 1));
        assert_eq!(rebuilds.due(), Some(at(now + 30)));
    }

    #[test]
    fn more_than_three_restarts_within_a_minute_are_none() {
        let start = Instant::now();
        let mut jumps = Jumps::default();
        for n in 0..10 {
            assert!(!jumps.again(start + n * QUARANTINE));
        }
        let late = start + 9 * QUARANTINE;
        assert!(!jumps.again(late) && !jumps.again(late) && jumps.again(late));
    }
}
