//! How are events of the recent past asked for again? A ROUTER socket that answers from a ring of batches.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use zeromq::{RouterSocket, SocketRecv as _, SocketSend as _, ZmqMessage};

use super::message;
use crate::engine::fault::{Fault, Faults};

/// Ends a replay, in place of a sequence number.
const END_MARKER: [u8; 8] = [0xff; 8];

/// Numbered batches of the recent past. The lock is held to add one or to copy the handles.
#[derive(Default)]
pub(super) struct Ring(Mutex<VecDeque<(u64, Bytes)>>);

impl Ring {
    pub(super) fn push(&self, seq: u64, payload: Bytes, limit: usize) {
        let mut batches = self.0.lock();
        while batches.len() >= limit.max(1) {
            batches.pop_front();
        }
        batches.push_back((seq, payload));
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    fn from(&self, start: u64) -> Vec<(u64, Bytes)> {
        let batches = self.0.lock();
        batches
            .iter()
            .filter(|(seq, _)| *seq >= start)
            .cloned()
            .collect()
    }
}

/// The replay socket, to be served beside the publisher.
pub(in crate::engine) struct Replay {
    pub(super) socket: RouterSocket,
    pub(super) ring: Arc<Ring>,
    pub(super) faults: Arc<Faults>,
    /// Replies carry the topic, as since 0.26.
    pub(super) topic: Option<Bytes>,
}

impl Replay {
    /// Answers one request after the other until `stop`, as vLLM's publisher thread does.
    ///
    /// # Errors
    /// When the socket is gone.
    pub(in crate::engine) async fn serve(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            let message = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                message = self.socket.recv() => message?,
            };
            let Some((peer, start)) = replay_request(&message) else {
                tracing::debug!(
                    frames = message.len(),
                    "ignored a replay request of unknown form"
                );
                continue;
            };
            if self.faults.has(Fault::NoReplay) {
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                sent = self.answer(peer, start) => {
                    if let Err(error) = sent {
                        // The asker left in the middle.
                        tracing::debug!(%error, "a replay was not taken to its end");
                    }
                }
            }
        }
    }

    async fn answer(&mut self, peer: Bytes, start: u64) -> anyhow::Result<()> {
        let batches = self.ring.from(start);
        let lost = self.faults.has(Fault::LoseReplayBatches);
        let lost = if lost {
            middle_third(batches.len())
        } else {
            0..0
        };
        for (at, (seq, payload)) in batches.into_iter().enumerate() {
            if lost.contains(&at) {
                continue;
            }
            if let Some(pause) = self.faults.replay_pause() {
                tokio::time::sleep(pause).await;
            }
            let topic = self.topic.clone();
            self.reply(&peer, topic, seq.to_be_bytes(), payload).await?;
        }
        if !self.faults.has(Fault::LoseEndMarker) {
            let topic = self.topic.as_ref().map(|_| Bytes::new());
            self.reply(&peer, topic, END_MARKER, Bytes::new()).await?;
        }
        Ok(())
    }

    async fn reply(
        &mut self,
        peer: &Bytes,
        topic: Option<Bytes>,
        seq: [u8; 8],
        payload: Bytes,
    ) -> anyhow::Result<()> {
        let mut frames = vec![peer.clone(), Bytes::new()];
        frames.extend(topic);
        frames.push(Bytes::copy_from_slice(&seq));
        frames.push(payload);
        Ok(self.socket.send(message(frames)?).await?)
    }
}

/// `[identity, "", start]` with `start` in eight bytes, and nothing else.
fn replay_request(message: &ZmqMessage) -> Option<(Bytes, u64)> {
    let (3, Some(peer), Some(delimiter), Some(start)) = (
        message.len(),
        message.get(0),
        message.get(1),
        message.get(2),
    ) else {
        return None;
    };
    let start = <[u8; 8]>::try_from(start.as_ref()).ok()?;
    delimiter
        .is_empty()
        .then(|| (peer.clone(), u64::from_be_bytes(start)))
}

/// Neither the first nor the last of so many; none of less than three.
fn middle_third(len: usize) -> std::ops::Range<usize> {
    let third = len / 3;
    let start = (len - third) / 2;
    start..start + third
}
