//! Which endpoints do these Pods and ports make? Pure.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::pod::{Container, Pod};
use crate::feeds::pool::{EventHints, Member, Pool, PoolBuilder, PoolError};
use crate::routing::endpoint::{Endpoint, EndpointName};

/// As many target ports as the API allows.
const MOST_PORTS: usize = 8;

/// How containers of engines are called, where nothing else tells which one it is; the first word that fits decides.
const ENGINE_NAMES: [&str; 7] = [
    "vllm", "sglang", "trtllm", "tensorrt", "engine", "model", "server",
];

/// The ports of each Pod that are endpoints, in the order in which they are ranks. One to eight, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPorts(Vec<u16>);

/// Why ports cannot all be endpoints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    /// None is named.
    #[error("no port is named")]
    None,
    /// Too many are named.
    #[error("{0} ports are named, at most {MOST_PORTS} are allowed")]
    TooMany(usize),
    /// 0 is none.
    #[error("port 0 is no port")]
    Zero,
    /// Two endpoints would have one address.
    #[error("port {0} is named twice")]
    Twice(u16),
}

impl TargetPorts {
    /// Takes ports in the order in which they are ranks.
    ///
    /// # Errors
    /// When they are none, too many, 0 or not distinct.
    pub fn new(ports: Vec<u16>) -> Result<Self, PortsError> {
        let mut seen = BTreeSet::new();
        match ports.len() {
            0 => return Err(PortsError::None),
            1..=MOST_PORTS => {}
            many => return Err(PortsError::TooMany(many)),
        }
        for &port in &ports {
            if port == 0 {
                return Err(PortsError::Zero);
            }
            if !seen.insert(port) {
                return Err(PortsError::Twice(port));
            }
        }
        Ok(Self(ports))
    }

    /// The ports.
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }
}

/// A pool, and what people should hear of the Pods that it was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) pool: Pool,
    pub(super) notes: BTreeSet<Note>,
}

/// Something about a Pod that is not as its owner may think.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note {
    pub(super) pod: String,
    pub(super) text: String,
}

/// Makes the pool: every port of every Pod that has an address and has not ended.
///
/// Where two have one address, the Pod that is not terminating has it, else the one that is ready (on a node's network
/// a second Pod may want the same port in vain), else the one made last: the other's record is late. Its order in
/// `pods` decides nothing.
pub(super) fn members<'a>(
    namespace: &str,
    ports: &TargetPorts,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Members {
    let mut pods: Vec<&Pod> = pods.into_iter().collect();
    pods.sort_by_key(|pod| {
        let rank = (pod.terminating, !pod.ready, Reverse(pod.created));
        (rank, &pod.identity.name)
    });
    let mut builder = PoolBuilder::default();
    let mut notes = BTreeSet::new();
    for pod in pods {
        let name = &pod.identity.name;
        let note = |text: String| Note {
            pod: name.clone(),
            text,
        };
        notes.extend(pod.oddities.iter().cloned().map(note));
        let served = served(ports, pod);
        if served.is_empty() {
            let wanted = ports.as_slice();
            notes.insert(note(format!(
                "its active-ports annotation names none of the target ports {wanted:?}: it gets no traffic"
            )));
        }
        let Some(ip) = pod.address.filter(|_| !pod.finished) else {
            continue;
        };
        // The only server of a Pod may stand before several ranks.
        let alone = matches!(served[..], [(0, _)]) && pod.hints.first_rank.is_none();
        for (rank, port) in served {
            let mut member = member(namespace, ports, pod, SocketAddr::new(ip, port), rank);
            member.events.rank = member.events.rank.filter(|_| !alone);
            // Names cannot clash. A Pod that is about to go may have lost its address to the next one.
            if let Err(PoolError::DuplicateAddress { address, holder }) = builder.add(member)
                && !pod.terminating
            {
                notes.insert(note(format!(
                    "its address {address} is also that of the endpoint {holder}, which has it: it gets no traffic"
                )));
            }
        }
    }
    Members {
        pool: builder.finish(),
        notes,
    }
}

/// The ports that a Pod serves now, each with its place among the target ports.
fn served(ports: &TargetPorts, pod: &Pod) -> Vec<(u32, u16)> {
    let active = |port: &u16| {
        let active = pod.active_ports.as_ref();
        active.is_none_or(|active| active.contains(port))
    };
    let ranked = (0..).zip(ports.0.iter().copied());
    ranked.filter(|(_, port)| active(port)).collect()
}

fn member(
    namespace: &str,
    ports: &TargetPorts,
    pod: &Pod,
    address: SocketAddr,
    rank: u32,
) -> Member {
    let name = &pod.identity.name;
    let name = match ports.as_slice() {
        [_only] => EndpointName::new(namespace, name),
        _ => EndpointName::new(namespace, &format!("{name}-rank-{rank}")),
    };
    let endpoint = Endpoint {
        name,
        address,
        labels: pod.labels.clone(),
        incarnation: pod.identity.uid.clone(),
        rank: None,
    };
    Member {
        endpoint,
        ready: pod.ready && !pod.terminating,
        restarts: engine(&pod.containers, address.port()).map_or(0, |engine| engine.restarts),
        events: EventHints {
            live_port: pod.hints.live_port,
            replay_port: pod.hints.replay_port,
            rank: Some(pod.hints.first_rank.unwrap_or(0) + rank),
        },
    }
}

/// The container that listens on `port`: the one that says so, else the only one, else the one that is called like an
/// engine, else the first. Side-cars restart for reasons of their own, which must not count.
fn engine(containers: &[Container], port: u16) -> Option<&Container> {
    let declares = |container: &&Container| container.ports.contains(&port);
    let called = |word: &&str| {
        let mut containers = containers.iter();
        containers.find(|container| container.name.contains(*word))
    };
    containers
        .iter()
        .find(declares)
        .or_else(|| ENGINE_NAMES.iter().find_map(called))
        .or_else(|| containers.first())
}

#[cfg(test)]
mod tests;
