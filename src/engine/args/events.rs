//! What is the engine told of its KV events?

use super::{ArgsError, RankSettings};
use crate::engine::kv_encode::{Encoding, HashForm};
use crate::engine::publish::EventSettings;

/// The options that begin with `--kv-`, without the pool's own.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct EventArgs {
    /// Where KV events are published, each rank at this port plus its number; "none" for an engine without them.
    #[arg(long, default_value = "tcp://*:5557")]
    kv_events: String,
    /// Where KV events can be asked for again, each rank at this port plus its number; "none" for no replay. With
    /// several ranks it must be clear of their ports for KV events.
    #[arg(long, default_value = "tcp://*:5558")]
    kv_replay: String,
    /// Dialect of the events.
    #[arg(long, value_enum, default_value = "map")]
    kv_events_encoding: Encoding,
    /// Form of the hashes in events.
    #[arg(long, value_enum, default_value = "int")]
    kv_events_hashes: HashForm,
    /// Cache groups that events tell of: beyond the first, sliding windows that hold the same hashes, as hybrid models
    /// have them.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16))]
    kv_groups: u32,
    /// Topic of the events.
    #[arg(long, default_value = "")]
    kv_topic: String,
    /// Batches kept for replay.
    #[arg(long, default_value_t = 10_000)]
    kv_buffer_steps: usize,
    /// Batches that may wait to be sent; with so many the engine stops.
    #[arg(long, default_value_t = 100_000)]
    kv_max_queue_size: usize,
}

impl EventArgs {
    /// Checks and converts; `None` for an engine without events.
    ///
    /// # Errors
    /// When options do not go together.
    pub(super) fn settings(self, ranks: RankSettings) -> Result<Option<EventSettings>, ArgsError> {
        if self.kv_groups > 1 && !self.kv_events_encoding.has_groups() {
            return Err(ArgsError::Groups(self.kv_groups));
        }
        let unless_none = |address: String| (address != "none").then_some(address);
        let replay = unless_none(self.kv_replay);
        let events = unless_none(self.kv_events).map(|live| EventSettings {
            live,
            replay,
            topic: self.kv_topic,
            encoding: self.kv_events_encoding,
            hashes: self.kv_events_hashes,
            groups: self.kv_groups,
            buffer_steps: self.kv_buffer_steps,
            max_queue_size: self.kv_max_queue_size,
        });
        if let Some(events) = &events {
            events.check_ports(ranks)?;
        }
        Ok(events)
    }
}
