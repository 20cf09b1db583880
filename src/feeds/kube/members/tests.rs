//! Tables and properties of the endpoints that Pods make.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::feeds::kube::object::Identity;
use crate::feeds::kube::pod::Hints;

fn pod(name: &str, ip: &str) -> Pod {
    Pod {
        identity: Identity {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            version: "1".to_owned(),
        },
        created: None,
        terminating: false,
        finished: false,
        ready: true,
        address: Some(ip.parse().unwrap()),
        labels: BTreeMap::from([("app".to_owned(), "vllm".to_owned())]),
        containers: vec![container("vllm", &[], 0)],
        active_ports: None,
        hints: Hints::default(),
        oddities: Vec::new(),
    }
}

fn container(name: &str, ports: &[u16], restarts: u32) -> Container {
    Container {
        name: name.to_owned(),
        ports: ports.to_vec(),
        restarts,
    }
}

fn at(second: i64) -> Option<jiff::Timestamp> {
    Some(jiff::Timestamp::from_second(second).unwrap())
}

fn ports(ports: &[u16]) -> TargetPorts {
    TargetPorts::new(ports.to_vec()).unwrap()
}

fn made(target: &[u16], pods: &[Pod]) -> Vec<Member> {
    members("prod", &ports(target), pods)
        .pool
        .members()
        .cloned()
        .collect()
}

/// `name address` of each endpoint.
fn shape(target: &[u16], pods: &[Pod]) -> Vec<String> {
    let show = |member: Member| format!("{} {}", member.endpoint.name, member.endpoint.address);
    made(target, pods).into_iter().map(show).collect()
}

#[test]
fn ports_are_one_to_eight_distinct_ones() {
    let eight: Vec<u16> = (1..=8).collect();
    assert!(TargetPorts::new(eight.clone()).is_ok());
    let cases = [
        (vec![], "no port is named"),
        (
            [eight, vec![9]].concat(),
            "9 ports are named, at most 8 are allowed",
        ),
        (vec![8000, 0], "port 0 is no port"),
        (vec![1, 2, 1], "port 1 is named twice"),
    ];
    for (ports, expected) in cases {
        assert_eq!(TargetPorts::new(ports).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_pod_is_an_endpoint_of_its_name_and_life() {
    let members = made(&[8000], &[pod("a", "10.0.0.1")]);
    let expected = Member {
        endpoint: Endpoint {
            name: EndpointName::new("prod", "a"),
            address: "10.0.0.1:8000".parse().unwrap(),
            labels: BTreeMap::from([("app".to_owned(), "vllm".to_owned())]),
            incarnation: "uid-a".to_owned(),
            rank: None,
        },
        ready: true,
        restarts: 0,
        events: EventHints::default(),
    };
    assert_eq!(members, [expected]);
}

#[test]
fn every_target_port_is_an_endpoint_of_its_own() {
    let pods = [pod("a", "10.0.0.1"), pod("b", "fd00::2")];
    let expected = [
        "prod/a-rank-0 10.0.0.1:8000",
        "prod/a-rank-1 10.0.0.1:8001",
        "prod/b-rank-0 [fd00::2]:8000",
        "prod/b-rank-1 [fd00::2]:8001",
    ];
    assert_eq!(shape(&[8000, 8001], &pods), expected);
    let ranks: Vec<_> = made(&[8000, 8001], &pods)
        .iter()
        .map(|m| m.events.rank)
        .collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(0), Some(1)]);
}

#[test]
fn active_ports_narrow_the_ports_and_keep_their_ranks() {
    let mut a = pod("a", "10.0.0.1");
    a.active_ports = Some([8001, 9999].into());
    let members = made(&[8000, 8001, 8002], &[a]);
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].endpoint.name.as_str(), "prod/a-rank-1");
    assert_eq!(members[0].events.rank, Some(1));
}

#[test]
fn a_pods_only_server_may_stand_before_all_ranks_unless_it_is_said_to_be_one() {
    let mut a = pod("a", "10.0.0.1");
    assert_eq!(made(&[8000], &[a.clone()])[0].events.rank, None);
    a.active_ports = Some([8000].into());
    assert_eq!(made(&[8000, 8001], &[a.clone()])[0].events.rank, None);
    a.hints.first_rank = Some(0);
    assert_eq!(made(&[8000], &[a])[0].events.rank, Some(0));
}

#[test]
fn a_pod_whose_active_ports_are_no_target_ports_gets_no_traffic_and_is_told_of() {
    let mut a = pod("a", "10.0.0.1");
    a.active_ports = Some([9999].into());
    let made = members("prod", &ports(&[8000]), [&a]);
    assert_eq!(made.pool.members().len(), 0);
    let notes: Vec<_> = made.notes.into_iter().collect();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].pod, "a");
    assert!(
        notes[0].text.contains("none of the target ports [8000]"),
        "{}",
        notes[0].text
    );
}

#[test]
fn a_rank_annotation_counts_from_the_first_port() {
    let mut a = pod("a", "10.0.0.1");
    a.hints = Hints {
        live_port: Some(6000),
        replay_port: Some(6100),
        first_rank: Some(4),
    };
    let members = made(&[8000, 8001], &[a]);
    let hints: Vec<_> = members.into_iter().map(|m| m.events).collect();
    let expected = |rank| EventHints {
        live_port: Some(6000),
        replay_port: Some(6100),
        rank: Some(rank),
    };
    assert_eq!(hints, [expected(4), expected(5)]);
}

#[test]
fn not_ready_and_terminating_pods_stay_and_are_not_ready() {
    let (mut a, mut b) = (pod("a", "10.0.0.1"), pod("b", "10.0.0.2"));
    a.ready = false;
    b.terminating = true;
    let members = made(&[8000], &[a, b]);
    assert_eq!(
        members.iter().map(|m| m.ready).collect::<Vec<_>>(),
        [false, false]
    );
}

#[test]
fn finished_pods_and_those_without_address_are_out() {
    let (mut a, mut b) = (pod("a", "10.0.0.1"), pod("b", "10.0.0.2"));
    a.finished = true;
    b.address = None;
    assert_eq!(made(&[8000], &[a, b]), []);
}

#[test]
fn the_engines_restarts_count_and_those_of_side_cars_do_not() {
    let c = container;
    let cases = [
        ("the only one", vec![c("main", &[], 3)], 3),
        (
            "declares the port",
            vec![c("vllm", &[9000], 1), c("proxy", &[8000], 2)],
            2,
        ),
        (
            "called like an engine",
            vec![c("agent", &[], 1), c("my-vllm-0", &[], 2)],
            2,
        ),
        (
            "better called",
            vec![c("log-server", &[], 1), c("sglang", &[], 2)],
            2,
        ),
        ("the first", vec![c("main", &[], 1), c("agent", &[], 2)], 1),
        ("none known", vec![], 0),
    ];
    for (what, containers, restarts) in cases {
        let mut a = pod("a", "10.0.0.1");
        a.containers = containers;
        assert_eq!(made(&[8000], &[a])[0].restarts, restarts, "{what}");
    }
}

#[test]
fn each_port_counts_the_restarts_of_its_own_container() {
    let mut a = pod("a", "10.0.0.1");
    a.containers = vec![container("r0", &[8000], 1), container("r1", &[8001], 5)];
    let restarts: Vec<_> = made(&[8000, 8001], &[a])
        .iter()
        .map(|m| m.restarts)
        .collect();
    assert_eq!(restarts, [1, 5]);
}

#[test]
fn a_reused_address_belongs_to_the_pod_that_lives() {
    let (mut old, mut new) = (pod("old", "10.0.0.1"), pod("new", "10.0.0.1"));
    (old.created, new.created) = (at(2), at(1));
    old.terminating = true;
    assert_eq!(
        shape(&[8000], &[old.clone(), new.clone()]),
        ["prod/new 10.0.0.1:8000"]
    );
    old.terminating = false;
    assert_eq!(
        shape(&[8000], &[old.clone(), new.clone()]),
        ["prod/old 10.0.0.1:8000"]
    );
    old.finished = true;
    assert_eq!(shape(&[8000], &[old, new]), ["prod/new 10.0.0.1:8000"]);
}

#[test]
fn a_newer_pod_that_is_not_ready_takes_no_address_from_one_that_is_and_is_told_of() {
    let (mut serving, mut crashing) = (pod("serving", "10.0.0.1"), pod("crashing", "10.0.0.1"));
    (serving.created, crashing.created) = (at(1), at(2));
    crashing.ready = false;
    let made = members("prod", &ports(&[8000]), [&serving, &crashing]);
    let names: Vec<_> = made
        .pool
        .members()
        .map(|m| m.endpoint.name.as_str())
        .collect();
    assert_eq!(names, ["prod/serving"]);
    let notes: Vec<_> = made.notes.into_iter().collect();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].pod, "crashing");
    assert!(notes[0].text.contains("10.0.0.1:8000"), "{}", notes[0].text);
    assert!(notes[0].text.contains("prod/serving"), "{}", notes[0].text);
}

#[test]
fn pods_of_one_node_address_share_it_by_their_active_ports() {
    let (mut a, mut b) = (pod("a", "10.0.0.1"), pod("b", "10.0.0.1"));
    a.active_ports = Some([8000].into());
    b.active_ports = Some([8001].into());
    let expected = ["prod/a-rank-0 10.0.0.1:8000", "prod/b-rank-1 10.0.0.1:8001"];
    assert_eq!(shape(&[8000, 8001], &[a, b]), expected);
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let life = (any::<bool>(), any::<bool>(), any::<bool>(), 0_i64..3);
    let place = (0_u8..6, prop::option::of(0_u8..4));
    let active = prop::option::of(prop::collection::btree_set(8000_u16..8004, 0..3));
    (place, life, active).prop_map(
        |((name, ip), (ready, terminating, finished, second), active)| {
            let mut pod = pod(&format!("p{name}"), "10.0.0.1");
            pod.address = ip.map(|ip| std::net::Ipv4Addr::new(10, 0, 0, ip).into());
            (pod.ready, pod.terminating, pod.finished) = (ready, terminating, finished);
            (pod.created, pod.active_ports) = (at(second), active);
            pod
        },
    )
}

/// Pods as the API has them: names are unique.
fn any_pods() -> impl Strategy<Value = Vec<Pod>> {
    prop::collection::vec(any_pod(), 0..8).prop_map(|pods| {
        let unique: HashMap<_, _> = pods
            .into_iter()
            .map(|p| (p.identity.name.clone(), p))
            .collect();
        unique.into_values().collect()
    })
}

fn any_ports() -> impl Strategy<Value = TargetPorts> {
    prop::sample::subsequence(vec![8000, 8001, 8002, 8003], 1..=4)
        .prop_shuffle()
        .prop_map(|ports| TargetPorts::new(ports).unwrap())
}

proptest! {
    #[test]
    fn the_order_of_pods_decides_nothing(pods in any_pods(), target in any_ports()) {
        let backwards: Vec<_> = pods.iter().rev().collect();
        prop_assert_eq!(members("n", &target, &pods), members("n", &target, backwards));
    }

    #[test]
    fn every_address_that_some_pod_serves_has_one_endpoint_of_the_best_such_pod(
        pods in any_pods(), target in any_ports(),
    ) {
        // The naive twin: for each address the best of all that claim it.
        let mut best: HashMap<SocketAddr, &Pod> = HashMap::new();
        for pod in pods.iter().filter(|pod| !pod.finished) {
            let Some(ip) = pod.address else { continue };
            for &port in target.as_slice() {
                if pod.active_ports.as_ref().is_some_and(|active| !active.contains(&port)) {
                    continue;
                }
                let better = |a: &Pod, b: &Pod| {
                    let order = b.terminating.cmp(&a.terminating).then(a.ready.cmp(&b.ready));
                    order.then(a.created.cmp(&b.created)).then(b.identity.name.cmp(&a.identity.name)).is_gt()
                };
                let holder = best.entry(SocketAddr::new(ip, port)).or_insert(pod);
                if better(pod, holder) {
                    *holder = pod;
                }
            }
        }
        let pool = members("n", &target, &pods).pool;
        prop_assert_eq!(pool.members().len(), best.len());
        for member in pool.members() {
            let pod = best[&member.endpoint.address];
            prop_assert_eq!(&member.endpoint.incarnation, &pod.identity.uid);
            prop_assert_eq!(member.ready, pod.ready && !pod.terminating);
        }
    }
}
