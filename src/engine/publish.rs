//! How do KV events leave the engine? A PUB socket for the live ones, a ROUTER socket for those of the recent past.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use zeromq::{
    Endpoint, PubSocket, RouterSocket, Socket as _, SocketRecv as _, SocketSend as _, ZmqError,
    ZmqMessage,
};

use super::args::RankSettings;
use super::event_ports::{self, PortError};
use super::fault::{Fault, Faults};
use super::kv_encode::{Encoder, Encoding};
use crate::routing::event::KvEvent;

/// Ends a replay, in place of a sequence number.
const END_MARKER: [u8; 8] = [0xff; 8];

/// Where events are to be had, and how. With several ranks the addresses are those of rank 0.
#[derive(Clone, Debug)]
pub struct EventSettings {
    /// Address of the PUB socket (`*` stands for every interface, port 0 for a free one).
    pub live: String,
    /// Address of the ROUTER socket, if batches can be asked for again.
    pub replay: Option<String>,
    /// The topic frame of every message.
    pub topic: String,
    /// The dialect.
    pub encoding: Encoding,
    /// Batches kept for replay.
    pub buffer_steps: usize,
}

impl EventSettings {
    /// Refuses addresses with which these ranks would be in each other's way.
    ///
    /// # Errors
    /// When they would.
    pub(super) fn check_ports(&self, ranks: RankSettings) -> Result<(), PortError> {
        event_ports::check(&self.live, self.replay.as_deref(), ranks.first, ranks.count)
    }

    /// The same with real ports in the place of port 0, where ranks need neighbouring ones.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn settled(self, ranks: RankSettings) -> Result<Self, PortError> {
        let settle = |base| event_ports::settle(base, ranks.first, ranks.count);
        Ok(Self {
            live: settle(self.live)?,
            replay: self.replay.map(settle).transpose()?,
            ..self
        })
    }

    /// The same with the addresses of one rank.
    ///
    /// # Errors
    /// When it has no port.
    pub(super) fn of_rank(&self, rank: u32) -> Result<Self, PortError> {
        let replay = self.replay.as_deref();
        Ok(Self {
            live: event_ports::of_rank(&self.live, rank)?,
            replay: replay
                .map(|base| event_ports::of_rank(base, rank))
                .transpose()?,
            ..self.clone()
        })
    }
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot publish KV events on {address}")]
pub struct BindError {
    address: String,
    #[source]
    source: ZmqError,
}

/// Numbered batches of the recent past. The lock is held to add one or to copy the handles.
#[derive(Default)]
pub(super) struct Ring(Mutex<VecDeque<(u64, Bytes)>>);

impl Ring {
    fn push(&self, seq: u64, payload: Bytes, limit: usize) {
        let mut batches = self.0.lock();
        while batches.len() >= limit.max(1) {
            batches.pop_front();
        }
        batches.push_back((seq, payload));
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

/// The writer's end, owned by whoever drives the model.
pub(super) struct Publisher {
    socket: PubSocket,
    settings: EventSettings,
    encoder: Encoder,
    ring: Arc<Ring>,
    faults: Arc<Faults>,
    next_seq: u64,
}

impl Publisher {
    /// Sends one step's events as one batch; no events, no batch.
    ///
    /// # Errors
    /// When the socket is gone.
    pub(super) async fn publish(&mut self, events: &[KvEvent]) -> anyhow::Result<()> {
        if self.faults.takes_restart() {
            self.next_seq = 0;
            self.ring.0.lock().clear();
        }
        if events.is_empty() || self.faults.has(Fault::SilentPublisher) {
            return Ok(());
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let payload = Bytes::from(self.encoder.batch(events, time)?);
        let seq = self.next_seq;
        self.next_seq += 1;
        self.ring
            .push(seq, payload.clone(), self.settings.buffer_steps);
        if self.faults.drops_this_batch() {
            return Ok(());
        }
        let topic = Bytes::copy_from_slice(self.settings.topic.as_bytes());
        let frames = vec![topic, Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        Ok(self.socket.send(message(frames)?).await?)
    }
}

/// The replay socket, to be served beside the publisher.
pub(super) struct Replay {
    socket: RouterSocket,
    ring: Arc<Ring>,
    faults: Arc<Faults>,
    /// Replies carry the topic, as since 0.26.
    topic: Option<Bytes>,
}

impl Replay {
    /// Answers one request after the other until `stop`, as vLLM's publisher thread does.
    ///
    /// # Errors
    /// When the socket is gone.
    pub(super) async fn serve(mut self, stop: CancellationToken) -> anyhow::Result<()> {
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
        for (seq, payload) in self.ring.from(start) {
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

fn message(frames: Vec<Bytes>) -> anyhow::Result<ZmqMessage> {
    ZmqMessage::try_from(frames).map_err(|empty| anyhow::anyhow!("{empty}"))
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

/// Sockets that listen, and where.
pub(super) struct Bound {
    pub(super) publisher: Publisher,
    pub(super) replay: Option<Replay>,
    /// `tcp://host:port`, with the host as configured and the real port.
    pub(super) live_address: String,
    pub(super) replay_address: Option<String>,
}

/// Binds both sockets of a rank, whose addresses are in `settings`.
///
/// # Errors
/// When an address cannot be listened on.
pub(super) async fn bind(
    settings: EventSettings,
    rank: u32,
    adapters: Vec<String>,
    faults: Arc<Faults>,
) -> Result<Bound, BindError> {
    let ring = Arc::new(Ring::default());
    let mut live = PubSocket::new();
    let live_address = bind_socket(&mut live, &settings.live).await?;
    let (mut replay, mut replay_address) = (None, None);
    if let Some(address) = &settings.replay {
        let mut socket = RouterSocket::new();
        replay_address = Some(bind_socket(&mut socket, address).await?);
        let with_topic = settings.encoding == Encoding::Map;
        replay = Some(Replay {
            socket,
            ring: Arc::clone(&ring),
            faults: Arc::clone(&faults),
            topic: with_topic.then(|| Bytes::copy_from_slice(settings.topic.as_bytes())),
        });
    }
    let encoder = Encoder {
        encoding: settings.encoding,
        adapters,
        rank,
    };
    let publisher = Publisher {
        socket: live,
        settings,
        encoder,
        ring,
        faults,
        next_seq: 0,
    };
    Ok(Bound {
        publisher,
        replay,
        live_address,
        replay_address,
    })
}

async fn bind_socket(socket: &mut impl zeromq::Socket, address: &str) -> Result<String, BindError> {
    let bound = socket
        .bind(&address.replace("//*:", "//0.0.0.0:"))
        .await
        .map_err(|source| BindError {
            address: address.to_owned(),
            source,
        })?;
    Ok(match (bound, address.rsplit_once(':')) {
        (Endpoint::Tcp(_, port), Some((host, _))) => format!("{host}:{port}"),
        (other, _) => other.to_string(),
    })
}
