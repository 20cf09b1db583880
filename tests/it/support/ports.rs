//! Where can a test listen, and where does nobody listen?

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::net::{TcpListener, TcpSocket};

/// A listener on a loopback port of the system's choice, and its address.
pub(crate) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a loopback port");
    let address = listener
        .local_addr()
        .expect("a bound listener has an address");
    (listener, address)
}

/// A loopback address that refuses connections for as long as this value lives.
///
/// The socket is bound and never listens, so the port cannot be given to anybody else meanwhile:
/// a dead engine stays dead, however many tests run beside this one.
pub(crate) struct Refusing {
    socket: TcpSocket,
}

impl Refusing {
    /// Takes a port of the system's choice.
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .expect("a loopback port");
        Self { socket }
    }

    /// The address that refuses.
    pub(crate) fn address(&self) -> SocketAddr {
        self.socket
            .local_addr()
            .expect("a bound socket has an address")
    }

    /// Comes to life: the same address starts to accept connections.
    pub(crate) fn listen(self) -> TcpListener {
        self.socket.listen(128).expect("the port is ours")
    }
}

/// A loopback address that was free a moment ago, for a process that binds it itself.
///
/// Between this call and that process's bind another one may take it: where a process can choose its
/// own port (Envoy, our own servers), let it.
pub(crate) fn free() -> SocketAddr {
    Refusing::new().address()
}

/// A loopback address that nobody else listens on: what was there stays free for
/// whoever comes back, and every port can be had.
pub(crate) fn own_loopback() -> Ipv4Addr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let number = TAKEN.fetch_add(1, Ordering::Relaxed);
    // Two runs on one machine differ in the process id.
    let [_, _, _, run] = (1 + std::process::id() % 254).to_be_bytes();
    let [_, _, above, below] = (256 + number).to_be_bytes();
    Ipv4Addr::new(127, run, above, below)
}
