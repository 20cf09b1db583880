//! One request to an engine's replay socket, and its answers until the end marker.
//!
//! The engine's ROUTER wants an identity, an empty delimiter and the number to start at; it
//! answers one message a batch. A REQ socket could take only the first of them, so a DEALER
//! sends the delimiter itself. The ROUTER drops what a slow reader cannot take, the end marker
//! included: so every wait has a deadline, and silence is answered by asking again.

use std::time::Duration;

use bytes::Bytes;
use zeromq::{DealerSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::socket::{Message, parse};

/// Why a replay went no further.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("cannot be connected to")]
    Connect(#[source] ZmqError),
    #[error("broke the connection")]
    Broken(#[source] ZmqError),
    #[error("said nothing for {0:?}")]
    Silent(Duration),
    #[error("sent something that is no batch")]
    Malformed,
    /// Numbers are missing inside the answer.
    #[error("left out the batches from {0}")]
    Hole(u64),
    /// Each answer told of another life.
    #[error("answered something else each time")]
    Fickle,
}

/// One answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Batch(Message),
    End,
}

/// A request that is being answered.
pub(super) struct Replay {
    dealer: DealerSocket,
    timeout: Duration,
}

impl Replay {
    /// Connects. A socket of its own for each request: no answer of an earlier one can be
    /// mistaken for one of this.
    pub(super) async fn connect(address: &str, timeout: Duration) -> Result<Self, ReplayError> {
        let mut options = SocketOptions::default();
        options.connect_timeout(timeout);
        let mut dealer = DealerSocket::with_options(options);
        dealer
            .connect(address)
            .await
            .map_err(ReplayError::Connect)?;
        Ok(Self { dealer, timeout })
    }

    /// Asks for all batches from number `from` on.
    pub(super) async fn ask(&mut self, from: u64) -> Result<(), ReplayError> {
        let mut request = ZmqMessage::from(Bytes::new());
        request.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
        // The socket's queue is empty, so this does not wait.
        self.dealer.send(request).await.map_err(ReplayError::Broken)
    }

    /// The next answer.
    pub(super) async fn next(&mut self) -> Result<Reply, ReplayError> {
        let received = tokio::time::timeout(self.timeout, self.dealer.recv())
            .await
            .map_err(|_| ReplayError::Silent(self.timeout))?;
        let message = received.map_err(ReplayError::Broken)?;
        let message = parse(message).ok_or(ReplayError::Malformed)?;
        if message.seq == u64::MAX && message.payload.is_empty() {
            return Ok(Reply::End);
        }
        Ok(Reply::Batch(message))
    }
}
