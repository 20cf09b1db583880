//! What a batch changes is written into the index, in the order in which it came.

use super::super::block::BlockKey;
use super::super::event::Medium;
use super::super::index::{SourceId, TOUCHED_AHEAD, Writer};
use super::CacheView;

/// Index writes made under one lock: about 20 µs.
const WRITES_A_LOCK: usize = 512;

/// One change of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Write {
    Store(BlockKey),
    Remove(BlockKey),
}

impl CacheView {
    /// Keeps a change for its medium's column; of tiers that are not counted nothing is kept.
    pub(super) fn note_write(&mut self, medium: Medium, write: Write) {
        if medium == Medium::Gpu {
            self.batch.writes.push(write);
        } else if let Some(factor) = self.state.settings.tiers.factor(medium) {
            self.batch.writes_beneath.push(write);
            if self.tier.is_none_or(|told| told < factor) {
                self.tier = Some(factor);
                self.state.ledger.lock().set_tier(self.feed, factor);
            }
        }
    }

    /// Brings the index up to date with the residents.
    pub(super) fn write(&mut self) {
        let mut writes = std::mem::take(&mut self.batch.writes);
        self.write_to(self.feed.source, &writes);
        writes.clear();
        self.batch.writes = writes;
        if self.batch.writes_beneath.is_empty() {
            return;
        }
        let writes = std::mem::take(&mut self.batch.writes_beneath);
        if let Some(beneath) = self.state.index.open_beneath(self.feed.source) {
            self.write_to(beneath, &writes);
        }
    }

    fn write_to(&self, column: SourceId, writes: &[Write]) {
        for writes in writes.chunks(WRITES_A_LOCK) {
            let Some(mut writer) = self.state.index.write(column) else {
                break;
            };
            for writes in writes.chunks(TOUCHED_AHEAD) {
                touch(&writer, writes);
                for &write in writes {
                    perform(&mut writer, write);
                }
            }
        }
    }
}

fn touch(writer: &Writer<'_>, writes: &[Write]) {
    let mut keys = [BlockKey(0); TOUCHED_AHEAD];
    for (place, write) in keys.iter_mut().zip(writes) {
        let (Write::Store(key) | Write::Remove(key)) = write;
        *place = *key;
    }
    writer.touch(keys.get(..writes.len()).unwrap_or(&keys));
}

fn perform(writer: &mut Writer<'_>, write: Write) {
    match write {
        Write::Store(key) => writer.store(key),
        Write::Remove(key) => writer.remove(key),
    };
}
