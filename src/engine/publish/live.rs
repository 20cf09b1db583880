//! Does the socket of the live events listen? Not where vLLM's would connect, nor while a fault keeps it from it.

use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

use super::{BindError, EventSettings, bind_socket};
use crate::engine::fault::{Fault, Faults};

/// The PUB socket, while it listens, and its address.
pub(super) struct Live {
    socket: Option<PubSocket>,
    /// `tcp://host:port`, with the host as configured and the real port.
    address: String,
    /// It is configured to connect: nobody can ever subscribe.
    connects: bool,
}

impl Live {
    /// Listens, unless the address is one to which a vLLM connects.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(super) async fn new(settings: &EventSettings) -> Result<Self, BindError> {
        // vLLM binds to wildcards only and connects to anything else; here other hosts are bound to as well, so that
        // engines can share a machine at addresses of their own. Other engines bind to 0.0.0.0.
        let connects = settings.encoding.is_vllm() && settings.live.starts_with("tcp://0.0.0.0:");
        if connects {
            return Ok(Self {
                socket: None,
                address: settings.live.clone(),
                connects,
            });
        }
        let mut socket = PubSocket::new();
        let address = bind_socket(&mut socket, &settings.live).await?;
        Ok(Self {
            socket: Some(socket),
            address,
            connects,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Stops listening, or listens again, where a fault says so.
    ///
    /// # Errors
    /// When the address has been taken meanwhile.
    pub(super) async fn listen_as_told(&mut self, faults: &Faults) -> Result<(), BindError> {
        if faults.has(Fault::PublishNowhere) {
            if let Some(socket) = self.socket.take() {
                // What cannot be closed properly is dropped at once.
                drop(socket.close().await);
            }
        } else if self.socket.is_none() && !self.connects {
            let mut socket = PubSocket::new();
            bind_socket(&mut socket, &self.address).await?;
            self.socket = Some(socket);
        }
        Ok(())
    }

    /// Sends to whoever has subscribed.
    ///
    /// # Errors
    /// When the socket is gone.
    pub(super) async fn send(&mut self, message: ZmqMessage) -> anyhow::Result<()> {
        match &mut self.socket {
            Some(socket) => Ok(socket.send(message).await?),
            None => Ok(()),
        }
    }
}
