//! Does what is asked for again and again fit into an endpoint's pool, as far as can be known without events?
//!
//! The blocks that the list had to forget leave a trace each. A block that is sent and was not held, but has left a
//! trace, was forgotten too early. Evictions alone say nothing: the own parts of prompts are never asked for again.

use super::super::block::BlockKey;

/// Blocks asked for between two judgements: some eight prompts of 8,000 tokens, so that neither one odd
/// prompt decides nor a change takes long to show.
const WINDOW_BLOCKS: u64 = 4_096;

/// Share of the blocks asked for that were forgotten too early, from which on the pool is too small. Each is
/// also foreseen wrongly where the engine happens to have it still; below a twentieth that is hardly seen.
const TOO_MANY: f64 = 0.10;

/// And below which it is large enough again; the distance keeps one in between from changing its mind at every window.
const FEW: f64 = 0.05;

/// Traces kept at least; there are as many as blocks held, up to the power of two above.
const FIRST_TRACES: usize = 1_024;

/// What was forgotten, what of it was asked for, and what follows.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// One tag a place, chosen by the key; a later block overwrites an earlier one, which bounds the memory. Nothing
    /// is allocated before something is evicted. Zero is no trace.
    traces: Vec<u32>,
    asked: u64,
    missed: u64,
    holds: bool,
    told: bool,
}

impl Overflow {
    /// A prompt of `blocks` was sent, of which `new` were not held.
    pub(super) fn asked(&mut self, blocks: usize, new: &[BlockKey]) {
        if self.traces.is_empty() {
            return;
        }
        self.asked += blocks as u64;
        for &key in new {
            let tag = tag_of(key);
            if let Some(trace) = self.place(key).filter(|trace| **trace == tag) {
                *trace = 0;
                self.missed += 1;
            }
        }
        if self.asked < WINDOW_BLOCKS {
            return;
        }
        let share = self.missed as f64 / self.asked as f64;
        if share > TOO_MANY {
            self.holds = true;
        } else if share < FEW {
            self.holds = false;
        }
        (self.asked, self.missed) = (0, 0);
    }

    /// These were forgotten for want of room; `held` blocks are left.
    pub(super) fn evicted(&mut self, keys: &[BlockKey], held: usize) {
        if keys.is_empty() {
            return;
        }
        let wanted = held.next_power_of_two().max(FIRST_TRACES);
        if self.traces.len() < wanted {
            // The old traces go: they are found again at the next evictions.
            self.traces = vec![0; wanted];
        }
        for &key in keys {
            if let Some(trace) = self.place(key) {
                *trace = tag_of(key);
            }
        }
    }

    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// The new answer, if it is not the one given last.
    pub(super) fn take_change(&mut self) -> Option<bool> {
        let changed = self.holds != self.told;
        self.told = self.holds;
        changed.then_some(self.holds)
    }

    /// The engine's cache was dropped: what went does not count.
    pub(super) fn forget(&mut self) {
        self.traces = Vec::new();
        (self.asked, self.missed) = (0, 0);
        self.holds = false;
    }

    fn place(&mut self, key: BlockKey) -> Option<&mut u32> {
        let mask = (self.traces.len() as u64).wrapping_sub(1);
        let place = usize::try_from(key.0 & mask).ok()?;
        self.traces.get_mut(place)
    }
}

/// The key's upper half (the lower bits choose the place); never zero.
fn tag_of(key: BlockKey) -> u32 {
    u32::try_from(key.0 >> 32).unwrap_or(0) | 1
}
