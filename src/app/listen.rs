//! Binds a port on the address asked for, or on every address there is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context as _;
use tokio::net::TcpListener;

/// Listens on `port`: at `address`, or without one at `[::]` (which takes IPv4 as well), or at
/// `0.0.0.0` where there is no IPv6. `flag` names the port in errors.
///
/// # Errors
/// When the port is taken, not allowed, or the address is not ours.
pub(super) async fn bind(
    address: Option<IpAddr>,
    port: u16,
    flag: &str,
) -> anyhow::Result<TcpListener> {
    let wanted = SocketAddr::new(address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), port);
    let bound = match TcpListener::bind(wanted).await {
        Err(error) if address.is_none() && no_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {wanted} ({flag})"))
}

/// A port that is taken or forbidden is so in IPv4 as well; anything else is IPv6 missing.
fn no_ipv6(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
    )
}
