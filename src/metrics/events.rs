//! Metrics of KV events: what arrived, what was lost, how late it was.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, core::Collector,
};

use crate::routing::cache::Applied;
use crate::routing::event::KvEvent;

/// How one replay (of up to several requests) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// The end marker came and what was held is proven to be of the same life.
    Complete,
    /// What was held is proven, but the end marker never came.
    Partial,
    /// No answer within the deadlines.
    Unanswered,
    /// The engine's ring no longer reached back to what was held: cleared and built anew.
    Overrun,
    /// The answer came from another life of the engine: cleared and built anew.
    Restarted,
}

impl ReplayOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Unanswered => "unanswered",
            Self::Overrun => "overrun",
            Self::Restarted => "restarted",
        }
    }
}

/// Seconds between an engine's clock and ours: from a healthy millisecond to a stuck reader.
const LAG_BUCKETS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0];

/// Handles that all sources share. Labels are closed sets, but for the endpoint's
/// name and rank, whose series go when the last source of that name ends.
pub struct EventMetrics {
    applied: AppliedCounters,
    skipped: IntCounterVec,
    replays: IntCounterVec,
    bytes: IntCounter,
    unreadable: IntCounter,
    duplicates: IntCounter,
    rank_mismatches: IntCounter,
    lag: Histogram,
    sources: SourceCounters,
    /// Sources alive by (endpoint, rank): an endpoint's next life may start before the
    /// last one's source has ended. Held for a map operation, by starting and ending sources.
    alive: Mutex<HashMap<(String, String), usize>>,
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    registered(registry, IntCounter::new(name, help)?)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// What applied events were, and what became of their blocks.
struct AppliedCounters {
    stored: IntCounter,
    removed: IntCounter,
    cleared: IntCounter,
    blocks_stored: IntCounter,
    blocks_removed: IntCounter,
    blocks_orphaned: IntCounter,
    blocks_skipped: IntCounter,
    blocks_forgotten: IntCounter,
}

impl AppliedCounters {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let events = counters(
            registry,
            "warmpath_kv_events_total",
            "KV-cache events applied, by kind",
            &["kind"],
        )?;
        let blocks = counters(
            registry,
            "warmpath_kv_event_blocks_total",
            "Blocks in applied events, by what became of them",
            &["outcome"],
        )?;
        Ok(Self {
            stored: events.with_label_values(&["stored"]),
            removed: events.with_label_values(&["removed"]),
            cleared: events.with_label_values(&["cleared"]),
            blocks_stored: blocks.with_label_values(&["stored"]),
            blocks_removed: blocks.with_label_values(&["removed"]),
            blocks_orphaned: blocks.with_label_values(&["orphaned"]),
            blocks_skipped: blocks.with_label_values(&["skipped"]),
            blocks_forgotten: blocks.with_label_values(&["forgotten"]),
        })
    }
}

/// What is counted for each source by itself.
struct SourceCounters {
    batches: IntCounterVec,
    gaps: IntCounterVec,
    restarts: IntCounterVec,
    clears: IntCounterVec,
    rebuilds: IntCounterVec,
    silences: IntCounterVec,
}

impl SourceCounters {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let source = |name, help| counters(registry, name, help, &["endpoint", "rank"]);
        Ok(Self {
            batches: source(
                "warmpath_kv_event_batches_total",
                "KV-event batches applied, live and replayed",
            )?,
            gaps: source(
                "warmpath_kv_event_gaps_total",
                "Times that batch numbers were missing",
            )?,
            restarts: source(
                "warmpath_kv_event_restarts_total",
                "Engine restarts recognised by batch numbers or content",
            )?,
            clears: source(
                "warmpath_kv_event_clears_total",
                "Times that all that was known of an engine's cache was dropped",
            )?,
            rebuilds: source(
                "warmpath_kv_event_rebuilds_total",
                "Replays from the beginning because an engine's answers contradicted what its events told",
            )?,
            silences: source(
                "warmpath_kv_event_silences_total",
                "Times that an engine computed new tokens and no batch told of them",
            )?,
        })
    }
}

impl EventMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let lag = Histogram::with_opts(
            HistogramOpts::new(
                "warmpath_kv_event_lag_seconds",
                "Seconds between an engine making a live batch (its clock) and the batch being applied (ours)",
            )
            .buckets(LAG_BUCKETS.to_vec()),
        )?;
        let single = |name, help| counter(registry, name, help);
        Ok(Self {
            applied: AppliedCounters::register(registry)?,
            skipped: counters(
                registry,
                "warmpath_kv_events_skipped_total",
                "KV-cache events passed over, by reason",
                &["reason"],
            )?,
            replays: counters(
                registry,
                "warmpath_kv_event_replays_total",
                "Replays asked of engines, by outcome",
                &["outcome"],
            )?,
            bytes: single(
                "warmpath_kv_event_bytes_total",
                "Bytes of KV-event payloads applied, live and replayed",
            )?,
            unreadable: single(
                "warmpath_kv_event_batches_unreadable_total",
                "KV-event messages that are no batch at all",
            )?,
            duplicates: single(
                "warmpath_kv_event_batches_duplicate_total",
                "Live batches that a replay had already covered",
            )?,
            rank_mismatches: single(
                "warmpath_kv_event_rank_mismatches_total",
                "Batches that name another data-parallel rank than their source was taken for",
            )?,
            lag: registered(registry, lag)?,
            sources: SourceCounters::register(registry)?,
            alive: Mutex::new(HashMap::new()),
        })
    }

    /// The handles of one source, resolved once; its series go with the last handle.
    pub fn source(self: &Arc<Self>, endpoint: &str, rank: u32) -> SourceMetrics {
        let labels = (endpoint.to_owned(), rank.to_string());
        *self.alive.lock().entry(labels.clone()).or_default() += 1;
        let values = [labels.0.as_str(), labels.1.as_str()];
        SourceMetrics {
            batches: self.sources.batches.with_label_values(&values),
            gaps: self.sources.gaps.with_label_values(&values),
            restarts: self.sources.restarts.with_label_values(&values),
            clears: self.sources.clears.with_label_values(&values),
            rebuilds: self.sources.rebuilds.with_label_values(&values),
            silences: self.sources.silences.with_label_values(&values),
            all: Arc::clone(self),
            labels,
        }
    }

    fn forget(&self, labels: &(String, String)) {
        let mut alive = self.alive.lock();
        let Some(count) = alive.get_mut(labels) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        alive.remove(labels);
        let values = [labels.0.as_str(), labels.1.as_str()];
        let SourceCounters {
            batches,
            gaps,
            restarts,
            clears,
            rebuilds,
            silences,
        } = &self.sources;
        for vec in [batches, gaps, restarts, clears, rebuilds, silences] {
            // An error says that the series is gone, which is what is wanted.
            drop(vec.remove_label_values(&values));
        }
    }
}

/// What one source counts.
pub struct SourceMetrics {
    all: Arc<EventMetrics>,
    labels: (String, String),
    batches: IntCounter,
    gaps: IntCounter,
    restarts: IntCounter,
    clears: IntCounter,
    rebuilds: IntCounter,
    silences: IntCounter,
}

impl SourceMetrics {
    /// A batch's events were applied. `lag` in seconds, for live ones.
    pub fn applied(&self, events: &[KvEvent], applied: Applied, lag: Option<f64>) {
        self.batches.inc();
        for event in events {
            match event {
                KvEvent::Stored(_) => self.all.applied.stored.inc(),
                KvEvent::Removed(_) => self.all.applied.removed.inc(),
                KvEvent::Cleared => self.all.applied.cleared.inc(),
            }
        }
        let counters = &self.all.applied;
        counters.blocks_stored.inc_by(applied.stored);
        counters.blocks_removed.inc_by(applied.removed);
        counters.blocks_orphaned.inc_by(applied.orphaned);
        counters.blocks_skipped.inc_by(applied.skipped);
        counters.blocks_forgotten.inc_by(applied.forgotten);
        if let Some(lag) = lag {
            self.all.lag.observe(lag);
        }
    }

    /// `n` events were passed over; `reason` is of a closed set.
    pub fn skipped(&self, reason: &'static str, n: u64) {
        self.all.skipped.with_label_values(&[reason]).inc_by(n);
    }

    /// A payload of this many bytes is to be applied.
    pub fn received(&self, bytes: usize) {
        self.all.bytes.inc_by(bytes as u64);
    }

    /// A message was no batch.
    pub fn unreadable(&self) {
        self.all.unreadable.inc();
    }

    /// A live batch was covered already.
    pub fn duplicate(&self) {
        self.all.duplicates.inc();
    }

    /// A batch names another rank.
    pub fn rank_mismatch(&self) {
        self.all.rank_mismatches.inc();
    }

    /// Numbers are missing.
    pub fn gap(&self) {
        self.gaps.inc();
    }

    /// The engine restarted.
    pub fn restart(&self) {
        self.restarts.inc();
    }

    /// The view was cleared.
    pub fn clear(&self) {
        self.clears.inc();
    }

    /// The view starts over because it was found to be wrong.
    pub fn rebuild(&self) {
        self.rebuilds.inc();
    }

    /// Batches are overdue.
    pub fn silence(&self) {
        self.silences.inc();
    }

    /// A replay ended.
    pub fn replay(&self, outcome: ReplayOutcome) {
        self.all
            .replays
            .with_label_values(&[outcome.as_str()])
            .inc();
    }
}

impl Drop for SourceMetrics {
    fn drop(&mut self) {
        self.all.forget(&self.labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(registry: &Registry, name: &str) -> usize {
        let families = registry.gather();
        families
            .iter()
            .find(|family| family.name() == name)
            .map_or(0, |family| family.get_metric().len())
    }

    #[test]
    fn series_of_a_source_stay_until_its_last_life_ends() {
        let registry = Registry::new();
        let metrics = Arc::new(EventMetrics::register(&registry).expect("free names"));
        let name = "warmpath_kv_event_batches_total";
        let old = metrics.source("ns/a", 0);
        let new = metrics.source("ns/a", 0);
        let other = metrics.source("ns/a", 1);
        assert_eq!(series(&registry, name), 2);
        drop(old);
        assert_eq!(series(&registry, name), 2);
        drop((new, other));
        assert_eq!(series(&registry, name), 0);
    }

    #[test]
    fn registering_twice_is_refused() {
        let registry = Registry::new();
        assert!(EventMetrics::register(&registry).is_ok());
        assert!(EventMetrics::register(&registry).is_err());
    }
}
