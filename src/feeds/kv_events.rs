//! One subscriber per event source: connect, replay from 0, follow, mend gaps.
//!
//! The order is what makes it right: first the subscription, then a replay of what the
//! engine still remembers, then the live batches, each number once. After a lost
//! connection the replay is asked from the last batch held, and that very batch must
//! come back, byte for byte (it carries the engine's clock): only then is it the same
//! life of the engine, with nothing missed, and the view is kept. An engine that
//! restarted and reached the old number again cannot pass for its former self. The same proof
//! is asked for when the orchestrator says that the engine's container was restarted, and when the
//! engine is back after it was away.
//!
//! Others may demand more: that the view starts over (it was found to be wrong), that it is emptied (the engine
//! sleeps). And a source that says nothing while its engine computes is not believed (`quiet.rs`).

mod demands;
mod follower;
mod quiet;
mod replay;
mod socket;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::metrics::events::EventMetrics;
use crate::routing::cache::{Applied, CacheView, FeedState};
use crate::routing::event::KvEvent;

pub use demands::Demands;
pub use quiet::{QUIET_TIMEOUT, Work};

/// Where one source of events is to be found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The data-parallel rank whose cache it tells of.
    pub rank: u32,
    /// `tcp://ip:port` of the live PUB socket.
    pub live: String,
    /// `tcp://ip:port` of the replay ROUTER socket, if there is one.
    pub replay: Option<String>,
    /// The addresses were told by the engine or the configuration, not guessed: silence is then a fault.
    pub known: bool,
    /// Other ranks of the same server have sources of their own, so that a batch which names
    /// another rank is not this one's.
    pub one_of_several: bool,
    /// The endpoint's reports are of other sources' work as well: nothing follows from them for this one's silence.
    pub shares_reports: bool,
    /// What is wrong with the engine's configuration, if that alone can explain that this source
    /// cannot be followed, and what to set instead.
    pub advice: Option<String>,
}

/// How sources are followed. Clones share the limit on replays.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Port of the live socket when it has to be guessed.
    pub live_port: u16,
    /// Port of the replay socket when it has to be guessed.
    pub replay_port: u16,
    /// Longest wait for the next message of a replay.
    pub replay_timeout: Duration,
    /// How long a guessed source may stay silent and unconnected before the endpoint is called one without events.
    pub guess_timeout: Duration,
    /// How long a source may say nothing while its engine computes what has to be told of.
    pub quiet_timeout: Duration,
    /// Blocks of unknown parents kept aside for each source.
    pub max_orphans: usize,
    /// Replays at once over all sources: many at a time delay the engines' own publishing.
    pub replays: Arc<Semaphore>,
}

/// What a source keeps right. [`CacheView`] is the one that serves.
pub trait View: Send {
    /// Applies the events of one batch, in order.
    fn apply(&mut self, events: &[KvEvent]) -> Applied;
    /// Forgets everything: what is cached cannot be known any more.
    fn clear(&mut self);
    /// Forgets everything: the engine is another process, and nothing of before is cached.
    fn restarted(&mut self) {
        self.clear();
    }
    /// Says how far the view can be trusted.
    fn set_feed(&mut self, state: FeedState);
    /// Forgets the blocks of adapters that were replaced, for one who knows which.
    fn forget_replaced_adapters(&mut self) {}
}

impl View for CacheView {
    fn apply(&mut self, events: &[KvEvent]) -> Applied {
        Self::apply(self, events)
    }

    fn clear(&mut self) {
        Self::clear(self);
    }

    fn restarted(&mut self) {
        Self::restarted(self);
    }

    fn set_feed(&mut self, state: FeedState) {
        Self::set_feed(self, state);
    }
}

/// Follows one source until `stop`: keeps `view` right, or says in it why it is not, and does what is demanded.
/// `endpoint` names it in logs and metrics. Never returns by itself; dropping it is safe.
pub async fn follow<V: View>(
    endpoint: &str,
    source: Source,
    view: V,
    demands: watch::Receiver<Demands>,
    settings: Settings,
    metrics: Arc<EventMetrics>,
    stop: CancellationToken,
) {
    let metrics = metrics.source(endpoint, source.rank);
    let follower = follower::Follower::new(endpoint, source, view, demands, settings, metrics);
    stop.run_until_cancelled(follower.run()).await;
}
