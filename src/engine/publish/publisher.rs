//! When does a batch leave, under which number, and what does a fault make of it on its way?

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::time::Instant;
use zeromq::ZmqMessage;

use super::live::Live;
use super::replay::Ring;
use super::{EventSettings, message};
use crate::engine::fault::{Fault, Faults};
use crate::engine::kv_encode::Encoder;
use crate::engine::kv_groups::SlidingGroups;
use crate::routing::event::KvEvent;

/// A payload that is not msgpack: its first byte is the one that no format has.
const GARBAGE: Bytes = Bytes::from_static(b"\xc1\xc1\xc1\xc1");

/// One step's events on their way out.
struct Batch {
    events: Vec<KvEvent>,
    /// Seconds since the epoch when they happened.
    time: f64,
    due: Instant,
}

/// The writer's end, owned by whoever drives the model.
pub(in crate::engine) struct Publisher {
    live: Live,
    settings: EventSettings,
    encoder: Encoder,
    groups: SlidingGroups,
    ring: Arc<Ring>,
    faults: Arc<Faults>,
    next_seq: u64,
    /// Batches that are not numbered yet: they leave in order, at once unless a fault holds them.
    queue: VecDeque<Batch>,
    /// A numbered batch that leaves after the next one.
    overtaken: Option<ZmqMessage>,
}

impl Publisher {
    pub(super) fn new(
        live: Live,
        settings: EventSettings,
        encoder: Encoder,
        ring: Arc<Ring>,
        faults: Arc<Faults>,
    ) -> Self {
        Self {
            live,
            groups: SlidingGroups::new(settings.groups),
            settings,
            encoder,
            ring,
            faults,
            next_seq: 0,
            queue: VecDeque::new(),
            overtaken: None,
        }
    }

    /// Takes one step's events as one batch; no events, no batch. They leave with [`Publisher::flush`].
    ///
    /// # Errors
    /// When the system's clock is before 1970.
    pub(in crate::engine) fn queue(&mut self, events: Vec<KvEvent>) -> anyhow::Result<()> {
        if events.is_empty() || self.faults.has(Fault::SilentPublisher) {
            return Ok(());
        }
        let due = Instant::now() + self.faults.publish_delay().unwrap_or_default();
        self.queue.push_back(Batch {
            events: self.groups.join(events),
            time: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64(),
            // A delay that became shorter lets nobody overtake.
            due: self.queue.back().map_or(due, |last| last.due.max(due)),
        });
        Ok(())
    }

    /// When to flush next. `None` if nothing waits, or what waits is held.
    pub(in crate::engine) fn due(&self) -> Option<Instant> {
        let next = self.queue.front()?;
        (!self.faults.has(Fault::HoldEvents)).then_some(next.due)
    }

    /// No further batch may be queued: a vLLM whose queue is full blocks in the middle of its loop.
    pub(in crate::engine) fn is_full(&self) -> bool {
        self.queue.len() >= self.settings.max_queue_size.max(1)
    }

    /// Numbers, keeps and sends what is due.
    ///
    /// # Errors
    /// When the socket is gone, or cannot be had again.
    pub(in crate::engine) async fn flush(&mut self) -> anyhow::Result<()> {
        self.live.listen_as_told(&self.faults).await?;
        if self.faults.take_once(Fault::RestartSeq) {
            self.next_seq = 0;
            self.ring.clear();
        }
        while self.due().is_some_and(|due| due <= Instant::now()) {
            let Some(batch) = self.queue.pop_front() else {
                break;
            };
            self.release(batch).await?;
        }
        if !self.faults.has(Fault::Reorder)
            && let Some(overtaken) = self.overtaken.take()
        {
            self.live.send(overtaken).await?;
        }
        Ok(())
    }

    async fn release(&mut self, mut batch: Batch) -> anyhow::Result<()> {
        let faults = &self.faults;
        batch.events.retain(|event| match event {
            KvEvent::Removed(_) => !faults.take_one(Fault::DropRemovals),
            KvEvent::Stored(_) => !faults.take_one(Fault::DropStores),
            KvEvent::Cleared => true,
        });
        if batch.events.is_empty() {
            return Ok(());
        }
        let odd = faults.take_one(Fault::OddEvent);
        let payload = Bytes::from(self.encoder.batch(&batch.events, odd, batch.time)?);
        let seq = self.next_seq;
        self.next_seq += 1;
        self.ring
            .push(seq, payload.clone(), self.settings.buffer_steps);
        if faults.take_one(Fault::DropEvents) || faults.has(Fault::HalfOpen) {
            return Ok(());
        }
        let garbage = faults.take_one(Fault::GarbageBatch);
        self.send(seq, if garbage { GARBAGE } else { payload })
            .await
    }

    async fn send(&mut self, seq: u64, payload: Bytes) -> anyhow::Result<()> {
        let topic = Bytes::copy_from_slice(self.settings.topic.as_bytes());
        let frames = vec![topic, Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        let batch = message(frames)?;
        if self.overtaken.is_none() && self.faults.has(Fault::Reorder) {
            self.overtaken = Some(batch);
            return Ok(());
        }
        if self.faults.has(Fault::DuplicateBatch) {
            self.live.send(batch.clone()).await?;
        }
        self.live.send(batch).await?;
        match self.overtaken.take() {
            Some(overtaken) => self.live.send(overtaken).await,
            None => Ok(()),
        }
    }
}
