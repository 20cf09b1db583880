//! On which ports does each data-parallel rank publish? A rank's sockets are at the base port plus its number.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

/// Attempts at finding neighbouring ports that are all free.
const ATTEMPTS: usize = 100;

/// Addresses that do not work for these ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Only TCP ports can be counted up.
    #[error("{address} is not of the form tcp://HOST:PORT, which several ranks need")]
    NotTcp {
        /// As given.
        address: String,
    },
    /// Beyond the last port there is.
    #[error("{address} has no port for rank {rank}")]
    TooHigh {
        /// As given.
        address: String,
        /// Of the rank without a port.
        rank: u32,
    },
    /// The replay socket of one rank would be where another publishes.
    #[error(
        "--kv-replay {replay} collides with --kv-events {live}: each of {ranks} ranks takes the next port, so the replay \
         port must be at least {least}"
    )]
    Overlap {
        /// Base of the live events.
        live: String,
        /// Base of the replay.
        replay: String,
        /// How many.
        ranks: u32,
        /// The lowest base of the replay above the live events.
        least: u32,
    },
    /// No such neighbours to be had.
    #[error("{host} has no {ranks} free ports in a row")]
    NoneFree {
        /// Where they were looked for.
        host: String,
        /// How many.
        ranks: u32,
    },
}

/// Host and port of `tcp://host:port`.
fn parts(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// Where rank `rank` is, given the base address. Port 0 stays 0; rank 0 may have any kind of address.
///
/// # Errors
/// When that port cannot be.
pub(super) fn of_rank(base: &str, rank: u32) -> Result<String, PortError> {
    if rank == 0 {
        return Ok(base.to_owned());
    }
    let (host, port) = parts(base).ok_or_else(|| PortError::NotTcp {
        address: base.to_owned(),
    })?;
    if port == 0 {
        return Ok(base.to_owned());
    }
    let port = u16::try_from(rank)
        .ok()
        .and_then(|rank| port.checked_add(rank));
    let port = port.ok_or_else(|| PortError::TooHigh {
        address: base.to_owned(),
        rank,
    })?;
    Ok(format!("tcp://{host}:{port}"))
}

/// Refuses base addresses with which ranks would be in each other's way.
///
/// vLLM's customary pair 5557 and 5558 is such a case from two ranks on: rank 1 publishes where rank 0 replays.
///
/// # Errors
/// When they would, or a rank has no port at all.
pub(super) fn check(
    live: &str,
    replay: Option<&str>,
    first: u32,
    ranks: u32,
) -> Result<(), PortError> {
    let last = first.saturating_add(ranks.saturating_sub(1));
    for base in [Some(live), replay].into_iter().flatten() {
        of_rank(base, last)?;
    }
    let pair = parts(live).zip(replay.and_then(parts));
    let (Some(((live_host, live_port), (replay_host, replay_port))), Some(replay)) = (pair, replay)
    else {
        return Ok(());
    };
    let is_any = |host| matches!(host, "*" | "0.0.0.0" | "[::]");
    let same_host = live_host == replay_host || is_any(live_host) || is_any(replay_host);
    let apart = u32::from(live_port.abs_diff(replay_port)) >= ranks;
    if live_port == 0 || replay_port == 0 || !same_host || apart {
        return Ok(());
    }
    Err(PortError::Overlap {
        live: live.to_owned(),
        replay: replay.to_owned(),
        ranks,
        least: u32::from(live_port) + ranks,
    })
}

/// The base with a port for which the ports of all ranks were free a moment ago, where the port given is 0.
///
/// # Errors
/// When there is no such port.
pub(super) fn settle(base: String, first: u32, ranks: u32) -> Result<String, PortError> {
    let Some((host, 0)) = parts(&base) else {
        return Ok(base);
    };
    if first == 0 && ranks == 1 {
        // The system finds one while it binds, and nobody can come between.
        return Ok(base);
    }
    let ip = match host {
        "*" => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        host => host.parse().map_err(|_| PortError::NotTcp {
            address: base.clone(),
        })?,
    };
    let found = (0..ATTEMPTS).find_map(|_| free_row(ip, ranks));
    let below = found.and_then(|port| port.checked_sub(u16::try_from(first).ok()?));
    match below {
        Some(port) => Ok(format!("tcp://{host}:{port}")),
        None => Err(PortError::NoneFree {
            host: host.to_owned(),
            ranks,
        }),
    }
}

/// The first of so many free ports in a row.
fn free_row(ip: IpAddr, ports: u32) -> Option<u16> {
    let lowest = TcpListener::bind((ip, 0)).ok()?;
    let port = lowest.local_addr().ok()?.port();
    let others = (1..u16::try_from(ports).ok()?)
        .map(|above| TcpListener::bind((ip, port.checked_add(above)?)).ok())
        .collect::<Option<Vec<_>>>();
    others.map(|_| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_at_the_base_plus_its_number() {
        for (base, rank, address) in [
            ("tcp://*:5557", 0, "tcp://*:5557"),
            ("tcp://*:5557", 3, "tcp://*:5560"),
            ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
            ("tcp://127.0.0.1:0", 2, "tcp://127.0.0.1:0"),
            ("ipc:///run/kv", 0, "ipc:///run/kv"),
        ] {
            assert_eq!(of_rank(base, rank).as_deref(), Ok(address));
        }
        for (base, text) in [
            (
                "ipc:///run/kv",
                "ipc:///run/kv is not of the form tcp://HOST:PORT, which several ranks need",
            ),
            ("tcp://*:65535", "tcp://*:65535 has no port for rank 1"),
        ] {
            assert_eq!(of_rank(base, 1).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn the_replay_must_be_clear_of_all_ranks_live_ports_on_the_same_host() {
        let (live, near, far) = ("tcp://*:5557", "tcp://*:5558", "tcp://*:5559");
        assert_eq!(check(live, Some(near), 0, 1), Ok(()));
        assert_eq!(
            check(live, Some(near), 0, 2).unwrap_err().to_string(),
            "--kv-replay tcp://*:5558 collides with --kv-events tcp://*:5557: each of 2 ranks takes the next port, so \
             the replay port must be at least 5559"
        );
        assert_eq!(check(live, Some(far), 0, 2), Ok(()));
        assert_eq!(check(far, Some(live), 0, 2), Ok(()));
        assert!(check(far, Some(near), 0, 2).is_err());
        assert_eq!(check(live, None, 0, 9), Ok(()));
        let [here, there] = ["tcp://127.0.0.1:5557", "tcp://127.0.0.2:5558"];
        assert_eq!(check(here, Some(there), 0, 2), Ok(()));
        assert_eq!(check("tcp://*:0", Some("tcp://*:0"), 0, 2), Ok(()));
        assert!(matches!(
            check("tcp://*:65535", None, 0, 2),
            Err(PortError::TooHigh { rank: 1, .. })
        ));
    }

    #[test]
    fn a_base_of_port_0_becomes_one_with_free_ports_for_all_ranks() {
        let base = settle("tcp://127.0.0.1:0".to_owned(), 3, 2).unwrap();
        for rank in [3, 4] {
            let at = of_rank(&base, rank).unwrap();
            TcpListener::bind(at.trim_start_matches("tcp://")).unwrap();
        }
        for unchanged in ["tcp://*:5557", "ipc:///run/kv"] {
            assert_eq!(settle(unchanged.to_owned(), 0, 2).as_deref(), Ok(unchanged));
        }
        assert_eq!(
            settle("tcp://*:0".to_owned(), 0, 1).as_deref(),
            Ok("tcp://*:0")
        );
    }
}
