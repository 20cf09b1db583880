//! The keys of the settings file with their defaults, and how each becomes a module's setting.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::units::{Port, Positive, Share, Size, Span, Switch, UrlPath, Whole};
use crate::extproc::{exchange, server};
use crate::feeds::kv_events;
use crate::routing::{cost, router};
use crate::tokens;

/// The whole file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    pub(super) policy: Policy,
    pub(super) alternates: Whole<0, 16>,
    pub(super) decisions: Whole<0, 100_000>,
    pub(super) default_body_mode: BodyMode,
    pub(super) guards: Guards,
    pub(super) tiers: Tiers,
    pub(super) reports: Reports,
    pub(super) kv_events: KvEvents,
    pub(super) tokenizers: Tokenizers,
    pub(super) limits: Limits,
}

impl Default for File {
    fn default() -> Self {
        Self {
            policy: Policy::LeastPrefill,
            alternates: Whole::of::<0>(),
            decisions: Whole::of::<1_000>(),
            default_body_mode: BodyMode::FullDuplexStreamed,
            guards: Guards::default(),
            tiers: Tiers::default(),
            reports: Reports::default(),
            kv_events: KvEvents::default(),
            tokenizers: Tokenizers::default(),
            limits: Limits::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Policy {
    LeastPrefill,
    LeastQueued,
}

impl From<Policy> for router::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::LeastPrefill => Self::LeastPrefill,
            Policy::LeastQueued => Self::LeastQueued,
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BodyMode {
    None,
    Streamed,
    Buffered,
    BufferedPartial,
    FullDuplexStreamed,
}

impl From<BodyMode> for exchange::BodyMode {
    fn from(mode: BodyMode) -> Self {
        match mode {
            BodyMode::None => Self::None,
            BodyMode::Streamed => Self::Streamed,
            BodyMode::Buffered => Self::Buffered,
            BodyMode::BufferedPartial => Self::BufferedPartial,
            BodyMode::FullDuplexStreamed => Self::FullDuplexStreamed,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Guards {
    pub(super) kv_usage_limit: Share,
    pub(super) report_age_limit: Span,
}

impl Default for Guards {
    fn default() -> Self {
        Self {
            kv_usage_limit: Share(0.95),
            report_age_limit: Span(Duration::from_millis(500)),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tiers {
    cpu: Share,
    storage: Share,
}

impl Default for Tiers {
    fn default() -> Self {
        let tiers = cost::Tiers::default();
        Self {
            cpu: Share(tiers.cpu),
            storage: Share(tiers.storage),
        }
    }
}

impl From<Tiers> for cost::Tiers {
    fn from(file: Tiers) -> Self {
        Self {
            cpu: file.cpu.0,
            storage: file.storage.0,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Reports {
    pub(super) path: UrlPath,
    pub(super) idle_interval: Span,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            path: UrlPath("/metrics".to_owned()),
            idle_interval: Span(Duration::from_secs(2)),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct KvEvents {
    live_port: Port,
    replay_port: Port,
    replay_timeout: Span,
    guess_timeout: Span,
    max_orphans: Whole<0, 100_000_000>,
}

impl Default for KvEvents {
    fn default() -> Self {
        Self {
            live_port: Port::of::<5557>(),
            replay_port: Port::of::<5558>(),
            replay_timeout: Span(Duration::from_secs(2)),
            guess_timeout: Span(Duration::from_secs(10)),
            max_orphans: Whole::of::<65_536>(),
        }
    }
}

/// Replays at once after a start: each may be 10,000 batches, and live events must not wait behind them.
const REPLAYS: usize = 8;

impl From<KvEvents> for kv_events::Settings {
    fn from(file: KvEvents) -> Self {
        Self {
            live_port: file.live_port.port(),
            replay_port: file.replay_port.port(),
            replay_timeout: file.replay_timeout.0,
            guess_timeout: file.guess_timeout.0,
            quiet_timeout: kv_events::QUIET_TIMEOUT,
            max_orphans: file.max_orphans.as_usize(),
            replays: Arc::new(Semaphore::new(REPLAYS)),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tokenizers {
    models: BTreeMap<String, ModelSource>,
    directory: Option<PathBuf>,
    hub: Switch,
    cache_directory: Option<PathBuf>,
    cache_size: Size,
    engine_timeout: Span,
    engine_concurrency: Whole<1, 10_000>,
    bytes_per_token: Positive,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModelSource {
    Directory(PathBuf),
    Hub(String),
}

impl Default for Tokenizers {
    fn default() -> Self {
        Self {
            models: BTreeMap::new(),
            directory: None,
            hub: Switch(true),
            cache_directory: None,
            cache_size: Size(128 << 20),
            engine_timeout: Span(Duration::from_millis(300)),
            engine_concurrency: Whole::of::<32>(),
            bytes_per_token: Positive(4.0),
        }
    }
}

impl From<Tokenizers> for tokens::Settings {
    fn from(file: Tokenizers) -> Self {
        let source = |source| match source {
            ModelSource::Directory(path) => tokens::ModelSource::Directory(path),
            ModelSource::Hub(id) => tokens::ModelSource::Hub(id),
        };
        Self {
            models: file
                .models
                .into_iter()
                .map(|(name, place)| (name, source(place)))
                .collect(),
            directory: file.directory,
            hub: file.hub.0,
            cache_directory: file.cache_directory,
            cache_bytes: file.cache_size.0,
            engine_timeout: file.engine_timeout.0,
            engine_concurrency: file.engine_concurrency.as_usize(),
            bytes_per_token: file.bytes_per_token.0,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limits {
    max_body: Size,
    max_exchanges: Whole<1, 10_000_000>,
    max_buffered: Size,
    pick_timeout: Span,
    body_timeout: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body: Size(32 << 20),
            max_exchanges: Whole::of::<16_384>(),
            max_buffered: Size(1 << 30),
            pick_timeout: Span(Duration::from_millis(500)),
            body_timeout: Span(Duration::from_secs(60)),
        }
    }
}

impl File {
    pub(super) fn wire(&self) -> server::Settings {
        server::Settings {
            max_body_bytes: self.limits.max_body.0,
            max_exchanges: self.limits.max_exchanges.as_usize(),
            max_buffered_bytes: self.limits.max_buffered.0,
            default_body_mode: self.default_body_mode.into(),
            pick_timeout: self.limits.pick_timeout.0,
            body_timeout: self.limits.body_timeout.0,
            // A test's wish is a flag: no settings file may carry it into production.
            test_headers: exchange::TestHeaders::Ignored,
        }
    }
}
