//! Where does an engine say that its KV events are, and can they be had there? Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::Events;
use crate::feeds::kv_events::Source;
use crate::feeds::pool::LAST_RANK;

/// The live socket of an engine that does not name one.
const USUAL_ENDPOINT: &str = "tcp://*:5557";

type Ranks = BTreeMap<u32, Result<Source, String>>;

/// Reads vLLM's `/kv_event_sources`: an object by rank, empty when events are off.
pub(super) fn read_sources(body: &[u8], engine: IpAddr) -> Option<Events> {
    #[derive(Deserialize)]
    struct Told {
        #[serde(default)]
        enable_kv_cache_events: Option<bool>,
        #[serde(default)]
        publisher: Option<String>,
        #[serde(default)]
        endpoint: Option<String>,
        #[serde(default)]
        replay_endpoint: Option<String>,
    }
    let told: BTreeMap<String, Told> = serde_json::from_slice(body).ok()?;
    let mut ranks = Ranks::new();
    for (rank, told) in told {
        let rank = rank.parse().ok().filter(|rank| *rank <= LAST_RANK)?;
        let publishes =
            told.enable_kv_cache_events != Some(false) && told.publisher.as_deref() != Some("null");
        if !publishes {
            continue;
        }
        let live = told.endpoint.as_deref().unwrap_or(USUAL_ENDPOINT);
        let source = reachable(live, engine).map(|address| Source {
            rank,
            live: address,
            // A replay socket out of reach is as good as none.
            replay: told
                .replay_endpoint
                .and_then(|replay| reachable(&replay, engine).ok()),
            known: true,
            one_of_several: false,
            shares_reports: false,
            advice: connects(live),
        });
        ranks.insert(rank, source);
    }
    Some(told_of(ranks))
}

/// Reads SGLang's `/server_info`, which describes the sockets of all ranks by those of the first.
/// `None`: it is not SGLang's, or that of a release which does not tell.
pub(super) fn read_server_info(body: &[u8], engine: IpAddr) -> Option<Events> {
    #[derive(Deserialize)]
    struct Info {
        kv_events: serde_json::Value,
    }
    #[derive(Deserialize)]
    struct Told {
        endpoint_host: String,
        endpoint_port_base: u16,
        #[serde(default)]
        replay_endpoint_port_base: Option<u16>,
        #[serde(default)]
        dp_size: Option<u32>,
    }
    let info: Info = serde_json::from_slice(body).ok()?;
    if info.kv_events.is_null() {
        return Some(Events::Off);
    }
    let told: Told = serde_json::from_value(info.kv_events).ok()?;
    let host = match told.endpoint_host.as_str() {
        bare if bare.contains(':') && !bare.starts_with('[') => format!("[{bare}]"),
        host => host.to_owned(),
    };
    let of_rank = |base: u16, rank: u32| {
        let port = u16::try_from(rank)
            .ok()
            .and_then(|rank| base.checked_add(rank))
            .ok_or_else(|| format!("there is no port {rank} on from {base} for its KV events"))?;
        reachable(&format!("tcp://{host}:{port}"), engine)
    };
    let count = told.dp_size.unwrap_or(1).clamp(1, LAST_RANK + 1);
    let source = |rank: u32| {
        let live = of_rank(told.endpoint_port_base, rank)?;
        let replay = told.replay_endpoint_port_base;
        Ok(Source {
            rank,
            live,
            replay: replay.and_then(|base| of_rank(base, rank).ok()),
            known: true,
            ..Source::default()
        })
    };
    Some(told_of(
        (0..count).map(|rank| (rank, source(rank))).collect(),
    ))
}

fn told_of(mut ranks: Ranks) -> Events {
    if ranks.is_empty() {
        return Events::Off;
    }
    advise_on_collisions(&mut ranks);
    Events::Told(ranks)
}

/// Two sockets of one engine at one address: one of them was not opened, whichever came second.
fn advise_on_collisions(ranks: &mut Ranks) {
    let mut taken: BTreeMap<String, Vec<(u32, &'static str)>> = BTreeMap::new();
    for (&rank, source) in &*ranks {
        let Ok(source) = source else { continue };
        let mut take = |address: &str, what| {
            taken
                .entry(address.to_owned())
                .or_default()
                .push((rank, what));
        };
        take(&source.live, "KV events");
        if let Some(replay) = &source.replay {
            take(replay, "replay socket");
        }
    }
    let several = ranks.len();
    for (address, users) in taken.iter().filter(|(_, users)| users.len() > 1) {
        let named: Vec<String> = users
            .iter()
            .map(|(rank, what)| format!("the {what} of rank {rank}"))
            .collect();
        let advice = format!(
            "{} are both said to be at {address}: each rank's ports are the first one's plus its number, so set \
             replay_endpoint to a port at least {several} above that of endpoint",
            named.join(" and ")
        );
        for (rank, _) in users {
            if let Some(Ok(source)) = ranks.get_mut(rank) {
                source.advice.get_or_insert_with(|| advice.clone());
            }
        }
    }
}

/// What to change in an endpoint that vLLM connects to instead of binding it, if it is one. Other
/// engines bind it, and so does vLLM where it chose the port itself (`tcp://*:0`).
fn connects(told: &str) -> Option<String> {
    let (host, port) = told.strip_prefix("tcp://")?.rsplit_once(':')?;
    let binds = host.contains('*') || host.contains("::");
    (!binds).then(|| {
        format!(
            "the engine's publisher is configured with {told}, to which vLLM connects instead of opening it: set \
             endpoint to tcp://*:{port} in --kv-events-config"
        )
    })
}

/// The address to connect to for one that an engine binds: wildcards become the engine's own.
pub(super) fn reachable(told: &str, engine: IpAddr) -> Result<String, String> {
    let unusable = |why| {
        Err(format!(
            "the engine publishes its KV events at {told}, {why}"
        ))
    };
    let Some(place) = told.strip_prefix("tcp://") else {
        return unusable("which cannot be reached from here");
    };
    let Some((host, port)) = place.rsplit_once(':') else {
        return unusable("which has no port");
    };
    match port.parse::<u16>() {
        Ok(0) | Err(_) => unusable("which has no port that can be connected to"),
        Ok(port) if matches!(host, "*" | "0.0.0.0" | "[::]" | "::" | "") => {
            Ok(format!("tcp://{}", SocketAddr::new(engine, port)))
        }
        Ok(_) => Ok(told.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENGINE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn told(events: Option<Events>) -> Ranks {
        match events {
            Some(Events::Told(ranks)) => ranks,
            other => panic!("{other:?}"),
        }
    }

    fn sources(body: &str) -> Ranks {
        told(read_sources(body.as_bytes(), ENGINE))
    }

    fn server_info(body: &str) -> Option<Events> {
        read_server_info(body.as_bytes(), ENGINE)
    }

    fn advice(ranks: &Ranks, rank: u32) -> &str {
        let source = ranks[&rank].as_ref().unwrap();
        source.advice.as_deref().unwrap_or_default()
    }

    #[test]
    fn wildcards_are_the_engines_own_address_and_other_hosts_stay() {
        for host in ["*", "0.0.0.0", "[::]"] {
            let body = format!(
                r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://{host}:5700","replay_endpoint":"tcp://{host}:5800","topic":"t"}}}}"#
            );
            let source = sources(&body)[&0].clone().unwrap();
            assert_eq!(source.live, "tcp://10.0.0.7:5700");
            assert_eq!(source.replay.as_deref(), Some("tcp://10.0.0.7:5800"));
            assert!(source.known);
        }
        let other = sources(r#"{"0":{"endpoint":"tcp://10.9.9.9:5557","replay_endpoint":null}}"#);
        let source = other[&0].as_ref().unwrap();
        assert_eq!(
            (source.live.as_str(), &source.replay),
            ("tcp://10.9.9.9:5557", &None)
        );
    }

    #[test]
    fn an_ipv6_engine_is_reached_with_brackets() {
        let reached = reachable("tcp://*:5557", "fd00::1".parse().unwrap());
        assert_eq!(reached.unwrap(), "tcp://[fd00::1]:5557");
    }

    #[test]
    fn ranks_are_numbers_in_any_order() {
        let ranks = sources(r#"{"1":{"endpoint":"tcp://*:5701"},"0":{"endpoint":"tcp://*:5700"}}"#);
        assert_eq!(ranks.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(ranks[&1].as_ref().unwrap().live, "tcp://10.0.0.7:5701");
        assert_eq!((advice(&ranks, 0), advice(&ranks, 1)), ("", ""));
    }

    #[test]
    fn no_sources_or_only_disabled_ones_mean_that_events_are_off() {
        for body in [
            "{}",
            r#"{"0":{"enable_kv_cache_events":false}}"#,
            r#"{"0":{"publisher":"null"}}"#,
        ] {
            assert_eq!(
                read_sources(body.as_bytes(), ENGINE),
                Some(Events::Off),
                "{body}"
            );
        }
    }

    #[test]
    fn ranks_that_no_deployment_has_are_no_answer() {
        let sources = |rank: u32| read_sources(format!(r#"{{"{rank}":{{}}}}"#).as_bytes(), ENGINE);
        assert!(matches!(sources(LAST_RANK), Some(Events::Told(_))));
        assert_eq!(sources(LAST_RANK + 1), None);
    }

    #[test]
    fn a_socket_out_of_reach_says_why() {
        let why = sources(r#"{"0":{"endpoint":"ipc:///tmp/x"}}"#)[&0]
            .clone()
            .unwrap_err();
        assert_eq!(
            why,
            "the engine publishes its KV events at ipc:///tmp/x, which cannot be reached from here"
        );
        assert!(sources(r#"{"0":{"endpoint":"tcp://*:0"}}"#)[&0].is_err());
    }

    #[test]
    fn an_endpoint_that_is_connected_to_instead_of_opened_comes_with_what_to_set() {
        let connecting = sources(r#"{"0":{"endpoint":"tcp://0.0.0.0:5557"}}"#);
        let advice_given = advice(&connecting, 0);
        assert!(
            advice_given.contains("tcp://0.0.0.0:5557"),
            "{advice_given}"
        );
        assert!(advice_given.contains("tcp://*:5557"), "{advice_given}");
        for opened in ["tcp://*:5557", "tcp://[::]:5557"] {
            let body = format!(r#"{{"0":{{"endpoint":"{opened}"}}}}"#);
            assert_eq!(advice(&sources(&body), 0), "", "{opened}");
        }
    }

    #[test]
    fn ports_that_two_ranks_share_are_named_on_both_with_what_to_set() {
        let ranks = sources(
            r#"{"0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"},
                "1":{"endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5559"},
                "3":{"endpoint":"tcp://*:5560","replay_endpoint":"tcp://*:5561"}}"#,
        );
        let expected = "the replay socket of rank 0 and the KV events of rank 1 are both said to be at \
                        tcp://10.0.0.7:5558: each rank's ports are the first one's plus its number, so set \
                        replay_endpoint to a port at least 3 above that of endpoint";
        assert_eq!(advice(&ranks, 0), expected);
        assert_eq!(advice(&ranks, 1), expected);
        assert_eq!(advice(&ranks, 3), "");
    }

    #[test]
    fn sglang_describes_the_sockets_of_all_ranks_by_those_of_the_first() {
        let ranks = told(server_info(
            r#"{"version":"0.5.23","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
                "topic":"","block_size":64,"dp_size":2,"replay_endpoint_port_base":5600}}"#,
        ));
        assert_eq!(ranks.len(), 2);
        let second = ranks[&1].as_ref().unwrap();
        assert_eq!(second.live, "tcp://10.0.0.7:5558");
        assert_eq!(second.replay.as_deref(), Some("tcp://10.0.0.7:5601"));
        assert_eq!((second.rank, second.known), (1, true));
        let without_replay = told(server_info(
            r#"{"kv_events":{"endpoint_host":"::","endpoint_port_base":65535,"dp_size":2}}"#,
        ));
        let first = without_replay[&0].as_ref().unwrap();
        assert_eq!(
            (first.live.as_str(), &first.replay),
            ("tcp://10.0.0.7:65535", &None)
        );
        assert!(without_replay[&1].is_err());
    }

    #[test]
    fn a_server_that_describes_nothing_is_told_from_one_that_publishes_nothing() {
        assert_eq!(server_info(r#"{"kv_events":null}"#), Some(Events::Off));
        assert_eq!(server_info(r#"{"vllm_config":{}}"#), None);
        assert_eq!(server_info(r#"{"kv_events":{"publisher":"zmq"}}"#), None);
        assert_eq!(server_info("<html>"), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in "[{}\\[\\]\":,a-z0-9]{0,60}") {
            for body in [&bytes[..], json.as_bytes()] {
                read_sources(body, ENGINE);
                read_server_info(body, ENGINE);
            }
        }

        #[test]
        fn any_described_socket_is_survived(host in "[*0-9.:\\[\\]a-z]{0,10}", port in any::<u16>(), ranks in any::<u32>()) {
            let body = format!(
                r#"{{"kv_events":{{"endpoint_host":"{host}","endpoint_port_base":{port},"dp_size":{ranks}}}}}"#
            );
            let ranks = told(server_info(&body));
            prop_assert!(ranks.len() <= LAST_RANK as usize + 1);
        }

        #[test]
        fn any_told_address_is_survived(told in "(tcp://)?[*0-9.:\\[\\]a-z]{0,20}") {
            if let Ok(reached) = reachable(&told, ENGINE) {
                prop_assert!(reached.starts_with("tcp://"));
            }
            connects(&told);
        }
    }
}
