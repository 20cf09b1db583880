//! What is used of a Pod? Who it is, how it is, where its engine may be asked; nothing else of it is kept.
//!
//! Annotations that it may carry:
//!
//! | annotation | meaning |
//! | --- | --- |
//! | `llm-d.ai/active-ports` (older: `inference.networking.k8s.io/active-ports`) | comma list of those target ports that this Pod serves now; empty: none |
//! | `warmpath.dev/kv-events-port` | port of the live KV event socket of rank 0 |
//! | `warmpath.dev/kv-replay-port` | port of its replay socket |
//! | `warmpath.dev/data-parallel-rank` | data-parallel rank of the Pod's first target port; its further ports count on |
//!
//! What an engine tells at `/kv_event_sources` comes before the last three.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Deserialize;

use crate::feeds::pool::LAST_RANK;

use super::object::{Identity, Lenient, Malformed, Object, RawMetadata, elements};

const ACTIVE_PORTS: [&str; 2] = [
    "llm-d.ai/active-ports",
    "inference.networking.k8s.io/active-ports",
];
const KV_EVENTS_PORT: &str = "warmpath.dev/kv-events-port";
const KV_REPLAY_PORT: &str = "warmpath.dev/kv-replay-port";
const DATA_PARALLEL_RANK: &str = "warmpath.dev/data-parallel-rank";

/// What is used of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) identity: Identity,
    /// When it was made, in the API server's clock; unreadable counts as earliest.
    pub(super) created: Option<jiff::Timestamp>,
    /// It was told to end.
    pub(super) terminating: bool,
    /// All its containers ended for good; its address may be another's by now.
    pub(super) finished: bool,
    /// Its `Ready` condition is `True`.
    pub(super) ready: bool,
    /// Its primary address; none until it has been given one.
    pub(super) address: Option<IpAddr>,
    pub(super) labels: BTreeMap<String, String>,
    /// Without init containers, so without side-cars that are restartable init containers.
    pub(super) containers: Vec<Container>,
    /// Which ports it serves now; `None`: all.
    pub(super) active_ports: Option<BTreeSet<u16>>,
    pub(super) hints: Hints,
    /// What its annotations say that means nothing, for people.
    pub(super) oddities: Vec<String>,
}

/// A container of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) name: String,
    /// Ports it declares, which is not required of it.
    pub(super) ports: Vec<u16>,
    /// How often it was restarted in place.
    pub(super) restarts: u32,
}

/// What annotations say of the KV events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    pub(super) live_port: Option<u16>,
    pub(super) replay_port: Option<u16>,
    /// Rank of the first target port.
    pub(super) first_rank: Option<u32>,
}

#[derive(Deserialize)]
struct RawPod {
    #[serde(default)]
    metadata: RawMetadata,
    #[serde(default)]
    spec: Option<RawSpec>,
    #[serde(default)]
    status: Option<RawStatus>,
}

#[derive(Default, Deserialize)]
struct RawSpec {
    #[serde(default)]
    containers: Lenient<Vec<Lenient<RawContainer>>>,
}

#[derive(Deserialize)]
struct RawContainer {
    name: String,
    #[serde(default)]
    ports: Lenient<Vec<Lenient<RawPort>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    container_port: u16,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    #[serde(default)]
    phase: Lenient<String>,
    #[serde(default)]
    conditions: Lenient<Vec<Lenient<RawCondition>>>,
    #[serde(default, rename = "podIP")]
    pod_ip: Lenient<String>,
    #[serde(default, rename = "podIPs")]
    pod_ips: Lenient<Vec<Lenient<RawPodIp>>>,
    #[serde(default)]
    container_statuses: Lenient<Vec<Lenient<RawContainerStatus>>>,
}

#[derive(Deserialize)]
struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize)]
struct RawPodIp {
    ip: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerStatus {
    name: String,
    restart_count: u32,
}

impl Object for Pod {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn read(json: &str) -> Result<Self, Malformed> {
        let RawPod {
            mut metadata,
            spec,
            status,
        } = serde_json::from_str(json)?;
        let identity = metadata.identity()?;
        let status = status.unwrap_or_default();
        let mut annotations = Annotations {
            all: metadata.annotations.0,
            oddities: Vec::new(),
        };
        let restarts: BTreeMap<String, u32> = elements(status.container_statuses)
            .map(|status| (status.name, status.restart_count))
            .collect();
        let phase = status.phase.0.unwrap_or_default();
        Ok(Self {
            identity,
            created: metadata
                .creation_timestamp
                .0
                .and_then(|text| text.parse().ok()),
            terminating: metadata.deletion_timestamp.is_some(),
            finished: matches!(phase.as_str(), "Succeeded" | "Failed"),
            ready: elements(status.conditions)
                .any(|condition| condition.kind == "Ready" && condition.status == "True"),
            address: address(status.pod_ip, status.pod_ips)?,
            labels: metadata.labels.0,
            containers: elements(spec.unwrap_or_default().containers)
                .map(|raw| container(raw, &restarts))
                .collect(),
            active_ports: annotations.active_ports(),
            hints: Hints {
                live_port: annotations.number(KV_EVENTS_PORT, 1, u16::MAX),
                replay_port: annotations.number(KV_REPLAY_PORT, 1, u16::MAX),
                first_rank: annotations.number(DATA_PARALLEL_RANK, 0, LAST_RANK),
            },
            oddities: annotations.oddities,
        })
    }
}

fn container(raw: RawContainer, restarts: &BTreeMap<String, u32>) -> Container {
    Container {
        restarts: restarts.get(&raw.name).copied().unwrap_or(0),
        name: raw.name,
        ports: elements(raw.ports)
            .map(|port| port.container_port)
            .collect(),
    }
}

/// The primary address, which is the first of all; no address yet is no error.
fn address(
    primary: Lenient<String>,
    all: Lenient<Vec<Lenient<RawPodIp>>>,
) -> Result<Option<IpAddr>, Malformed> {
    let primary = primary.0.filter(|text| !text.is_empty());
    let Some(written) = primary.or_else(|| elements(all).map(|entry| entry.ip).next()) else {
        return Ok(None);
    };
    match written.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() && !ip.is_multicast() => Ok(Some(ip)),
        _ => Err(Malformed::Meaningless {
            field: "status.podIP",
            written: shortened(&written),
            expected: "the IPv4 or IPv6 address of one host",
        }),
    }
}

/// Characters of an annotation that are repeated to people: it may have 256 KiB.
const MOST_TEXT: usize = 80;

/// Entries of one annotation that are told to mean nothing.
const MOST_ODD_ENTRIES: usize = 8;

struct Annotations {
    all: BTreeMap<String, String>,
    oddities: Vec<String>,
}

impl Annotations {
    /// The whole number of an annotation, if it is one from `least` to `most`.
    fn number<T>(&mut self, annotation: &str, least: T, most: T) -> Option<T>
    where
        T: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        let written = self.all.get(annotation)?.trim();
        let number = written.parse().ok();
        let number = number.filter(|number| (&least..=&most).contains(&number));
        if number.is_none() {
            let written = shortened(written);
            self.oddities.push(format!(
                "annotation {annotation}: `{written}` is not a whole number from {least} to {most}"
            ));
        }
        number
    }

    /// What is no port in the list is passed over; a list without any port means nothing, an empty one means none.
    fn active_ports(&mut self) -> Option<BTreeSet<u16>> {
        let (annotation, written) = ACTIVE_PORTS
            .iter()
            .find_map(|&annotation| Some((annotation, self.all.get(annotation)?.trim())))?;
        if written.is_empty() {
            return Some(BTreeSet::new());
        }
        let (mut ports, mut odd) = (BTreeSet::new(), BTreeSet::new());
        for entry in written.split(',').map(str::trim) {
            match entry.parse::<u16>() {
                Ok(port) if port != 0 => {
                    ports.insert(port);
                }
                _ => {
                    odd.insert(shortened(entry));
                }
            }
        }
        let told = odd.iter().take(MOST_ODD_ENTRIES);
        self.oddities.extend(told.map(|entry| {
            format!("annotation {annotation}: `{entry}` is not a port from 1 to 65535")
        }));
        (!ports.is_empty()).then_some(ports)
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MOST_TEXT).collect()
}

#[cfg(test)]
mod tests;
