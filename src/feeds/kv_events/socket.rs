//! The live socket: one connection, what arrives on it, and its end.
//!
//! What is relied on in zeromq 0.7 (read in its source):
//! - `connect` returns when the connection stands and the subscription has been written to it;
//!   until then it retries a refused connection (50 ms, doubling), all within `connect_timeout`.
//! - There is no receive queue: bytes stay in the kernel (4 MB are asked for) and then in the
//!   publisher's own queue until `recv` is polled, so a slow reader here costs no memory here.
//!   Nothing bounds the length of a single frame but memory.
//! - `recv` takes a message only when it returns one, so dropping it loses nothing. It does not
//!   return when the peer closes: the monitor says `Disconnected` then, after every message
//!   that had arrived was handed out. A broken frame is an error of `recv`.
//! - Reconnecting by itself waits up to 30 s between attempts (a restarting engine is up after
//!   about 28 s, so it would be missed for 20 s more) and its `Connected` may come after the first
//!   messages. So a socket lives for one connection here, and the next is ours to make.
//! - It sends no heartbeats, and does not set `SO_KEEPALIVE`: a connection whose peer vanished
//!   stays for ever if nothing is written to it. So something is: a subscription to a topic that
//!   nobody has, taken back at once (30 bytes). It keeps entries in connection tables alive, and
//!   a machine that knows nothing of the connection answers with a reset. One that does not
//!   answer at all is found by its reports, and the connection made anew when it is back.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use zeromq::{Socket, SocketEvent, SocketOptions, SocketRecv, SubSocket, ZmqError, ZmqMessage};

/// Longest attempt to connect. Refused connections are retried within it; an address that
/// swallows packets costs this long a try, and one lost SYN (sent again after 1 s) is forgiven.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Live messages set aside while a replay runs. Beyond them the socket is left alone: the
/// kernel's buffers and the publisher's queue (100,000 batches by default) hold the rest.
const MAX_PENDING: usize = 4096;
const MAX_PENDING_BYTES: usize = 32 << 20;

/// One batch as it came, live or replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) seq: u64,
    pub(super) payload: Bytes,
}

/// Takes number and payload from the end, since what stands before them differs between
/// releases. `None`: this is no such message.
pub(super) fn parse(message: ZmqMessage) -> Option<Message> {
    let mut frames = message.into_vecdeque();
    let payload = frames.pop_back()?;
    let seq = frames.pop_back()?;
    let seq = u64::from_be_bytes(seq.as_ref().try_into().ok()?);
    Some(Message { seq, payload })
}

/// The connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("the engine closed the connection")]
    Closed,
    #[error("the engine's container was restarted: the connection is made anew")]
    Unproven,
    #[error("the engine answers again after a silence: the connection is made anew")]
    Doubtful,
    #[error("the engine computed {0} tokens and told of no block: the connection is made anew")]
    Overdue(u64),
    #[error("batch numbers jump back and forth")]
    Interleaved,
    #[error("the connection takes no more bytes")]
    Stuck,
    #[error("the connection broke")]
    Broken(#[source] ZmqError),
}

impl Lost {
    /// It was given up on a mere suspicion: that the engine's process is another one is not meant.
    pub(super) const fn is_suspicion(&self) -> bool {
        matches!(self, Self::Doubtful | Self::Overdue(_))
    }
}

/// A topic that no batch has, to have something to write.
const NO_TOPIC: &str = "\u{1}warmpath";

/// Longest wait for so few bytes to be taken.
const NUDGE_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection to a publisher.
pub(super) struct Link {
    sub: SubSocket,
    monitor: BoxStream<'static, SocketEvent>,
    pending: VecDeque<ZmqMessage>,
    pending_bytes: usize,
}

impl Link {
    /// Connects and subscribes to everything.
    pub(super) async fn connect(address: &str) -> Result<Self, ZmqError> {
        let mut options = SocketOptions::default();
        options.connect_timeout(CONNECT_TIMEOUT);
        let mut sub = SubSocket::with_options(options);
        let monitor = sub.monitor().boxed();
        sub.subscribe("").await?;
        sub.connect(address).await?;
        Ok(Self {
            sub,
            monitor,
            pending: VecDeque::new(),
            pending_bytes: 0,
        })
    }

    /// The next live message, those set aside first. May be dropped without loss.
    pub(super) async fn next(&mut self) -> Result<ZmqMessage, Lost> {
        if let Some(message) = self.pending.pop_front() {
            self.pending_bytes = self.pending_bytes.saturating_sub(size(&message));
            return Ok(message);
        }
        self.receive().await
    }

    /// Writes something that changes nothing, so that a connection whose other end is gone is noticed.
    pub(super) async fn nudge(&mut self) -> Result<(), Lost> {
        let written = async {
            self.sub.subscribe(NO_TOPIC).await?;
            self.sub.unsubscribe(NO_TOPIC).await
        };
        match tokio::time::timeout(NUDGE_TIMEOUT, written).await {
            Ok(written) => written.map_err(Lost::Broken),
            Err(_elapsed) => Err(Lost::Stuck),
        }
    }

    async fn receive(&mut self) -> Result<ZmqMessage, Lost> {
        loop {
            tokio::select! {
                received = self.sub.recv() => return received.map_err(Lost::Broken),
                event = self.monitor.next() => match event {
                    Some(SocketEvent::Disconnected(_)) | None => return Err(Lost::Closed),
                    Some(_) => {}
                },
            }
        }
    }

    /// Does `work` while live messages are set aside and the connection is watched.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let mut work = std::pin::pin!(work);
        loop {
            let room = self.pending.len() < MAX_PENDING && self.pending_bytes < MAX_PENDING_BYTES;
            tokio::select! {
                done = &mut work => return Ok(done),
                received = self.receive(), if room => {
                    let message = received?;
                    self.pending_bytes += size(&message);
                    self.pending.push_back(message);
                }
            }
        }
    }
}

fn size(message: &ZmqMessage) -> usize {
    message.iter().map(Bytes::len).sum()
}
