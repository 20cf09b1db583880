//! One subscriber per event source: connect, replay from 0, follow, mend gaps.

/// Where one source of events is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The data-parallel rank whose cache it tells of.
    pub rank: u32,
    /// `tcp://ip:port` of the live PUB socket.
    pub live: String,
    /// `tcp://ip:port` of the replay ROUTER socket, if there is one.
    pub replay: Option<String>,
    /// The addresses were told by the engine or the configuration, not guessed: silence is then a fault.
    pub known: bool,
}

/// How sources are followed. Clones share the limit on replays.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Port of the live socket when it has to be guessed.
    pub live_port: u16,
    /// Port of the replay socket when it has to be guessed.
    pub replay_port: u16,
    /// Longest wait for the next message of a replay.
    pub replay_timeout: std::time::Duration,
    /// How long a guessed source may stay silent and unconnected before the endpoint is called one without events.
    pub guess_timeout: std::time::Duration,
    /// Blocks of unknown parents kept aside for each source.
    pub max_orphans: usize,
    /// Replays at once over all sources: many at a time delay the engines' own publishing.
    pub replays: std::sync::Arc<tokio::sync::Semaphore>,
}

/// Follows one source until `stop`: keeps `view` right, or says in it why it is not.
/// `endpoint` names it in logs and metrics.
pub async fn follow(
    _endpoint: &str,
    _source: Source,
    _view: crate::routing::cache::CacheView,
    _settings: Settings,
    _metrics: std::sync::Arc<crate::metrics::events::EventMetrics>,
    stop: tokio_util::sync::CancellationToken,
) {
    stop.cancelled().await;
}
