//! Where do KV events leave the engine? A PUB socket for the live ones, a ROUTER socket for those of the recent past.

mod live;
mod publisher;
mod replay;

use std::sync::Arc;

use bytes::Bytes;
use zeromq::{Endpoint, RouterSocket, Socket as _, ZmqError, ZmqMessage};

use super::args::RankSettings;
use super::event_ports::{self, PortError};
use super::fault::Faults;
use super::kv_encode::{Encoder, Encoding, HashForm};
use live::Live;
pub(super) use publisher::Publisher;
pub(super) use replay::Replay;
use replay::Ring;

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
    /// How hashes are written.
    pub hashes: HashForm,
    /// Cache groups that tell of themselves: one, and sliding windows besides.
    pub groups: u32,
    /// Batches kept for replay.
    pub buffer_steps: usize,
    /// Batches that may wait to be sent. With so many the engine makes no further step.
    pub max_queue_size: usize,
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

fn message(frames: Vec<Bytes>) -> anyhow::Result<ZmqMessage> {
    ZmqMessage::try_from(frames).map_err(|empty| anyhow::anyhow!("{empty}"))
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
    let mut live = Live::new(&settings).await?;
    let live_address = live.address().to_owned();
    live.listen_as_told(&faults).await?;
    let (mut replay, mut replay_address) = (None, None);
    if let Some(address) = &settings.replay {
        let mut socket = RouterSocket::new();
        replay_address = Some(bind_socket(&mut socket, address).await?);
        let with_topic = settings.encoding.replays_topic();
        replay = Some(Replay {
            socket,
            ring: Arc::clone(&ring),
            faults: Arc::clone(&faults),
            topic: with_topic.then(|| Bytes::copy_from_slice(settings.topic.as_bytes())),
        });
    }
    let encoder = Encoder {
        encoding: settings.encoding,
        hashes: settings.hashes,
        adapters,
        rank,
    };
    let publisher = Publisher::new(live, settings, encoder, ring, faults);
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
