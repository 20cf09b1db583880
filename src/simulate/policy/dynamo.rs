//! Dynamo 1.6's default: least (queued + uncached + resident) blocks.
//!
//! Resident are the distinct prompt blocks of all requests in flight there as it would be with this one, shared ones
//! counted once; answers are not counted (`track_output_blocks` is off). All weights are as by default: overlap credit
//! 1, no decay, prefill 1, no weight on the number of requests. Temperature 0: the least cost, equals by chance.
//!
//! Idealised: there a booked prompt counts in full until its first token and here it shrinks while it is computed, and
//! several of its routers would know of each other's bookings late or not at all.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::choose::{book, least, ready, uncached};
use super::{Asked, Context, Knowledge, Policy, Seen};
use crate::routing::block::BlockKey;
use crate::routing::router::{Decision, Refusal};

pub(super) struct Dynamo {
    /// For each replica: the blocks of its requests in flight, and how many requests have each.
    resident: Vec<FxHashMap<BlockKey, u32>>,
}

impl Dynamo {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            resident: vec![FxHashMap::default(); context.replicas],
        }
    }

    /// Blocks resident on a replica if a request with these joined.
    fn with(&self, replica: usize, keys: &[BlockKey]) -> usize {
        let Some(resident) = self.resident.get(replica) else {
            return keys.len();
        };
        // A key stands for all before it too, so what is resident of a request is its beginning.
        let shared = keys.partition_point(|key| resident.contains_key(key));
        resident.len() + keys.len() - shared
    }
}

impl Policy for Dynamo {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey(asked));
        let block = f64::from(asked.block_size.max(1));
        let cost = |seen: &Seen| {
            let prefill = (seen.queued + uncached(asked, seen)) as f64 / block;
            prefill + self.with(seen.replica, asked.keys) as f64
        };
        let chosen = least(&ready, asked.chance, cost);
        let decision = book(asked, fleet, chosen)?;
        if let Some(resident) = chosen.and_then(|chosen| self.resident.get_mut(chosen)) {
            for &key in asked.keys.iter() {
                *resident.entry(key).or_default() += 1;
            }
        }
        Ok(decision)
    }

    fn ended(&mut self, replica: usize, keys: &Arc<[BlockKey]>) {
        let Some(resident) = self.resident.get_mut(replica) else {
            return;
        };
        for key in keys.iter() {
            if let Some(requests) = resident.get_mut(key) {
                *requests -= 1;
                if *requests == 0 {
                    resident.remove(key);
                }
            }
        }
    }

    fn replica_changed(&mut self, replica: usize, _ready: bool) {
        if let Some(resident) = self.resident.get_mut(replica) {
            resident.clear();
        }
    }
}
