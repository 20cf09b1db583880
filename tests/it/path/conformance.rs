//! The picker in place of the gateway conformance suite's double: its request header chooses, its response header tells.

use std::net::{Ipv6Addr, SocketAddr};

use axum::Router;
use axum::routing::post;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{COMPLETIONS, completion, ids};
use crate::support::envoy::Envoy;
use crate::support::envoy_config::{BodyMode, Obeys, Subset};
use crate::support::fleet::{Fleet, Setup};
use crate::support::http::{self, Answer};

const SELECTION: &str = "test-epp-endpoint-selection";
const SERVED: &str = "x-conformance-test-served-endpoint";
const FLAG: &str = "--conformance-test-headers";

/// Chance misses one of two equal endpoints this often in a row once in a billion runs.
const REQUESTS: u32 = 30;

async fn ask(envoy: &Envoy, selection: &str) -> Answer {
    let body = completion(ids(fastrand::u32(1..4_000_000), 100)).to_string();
    let headers = [("content-type", "application/json"), (SELECTION, selection)];
    http::post(envoy.picked(), COMPLETIONS, &headers, body).await
}

/// Who serves requests with this selection, as Envoy says it on both ways.
async fn served(envoy: &Envoy, selection: &str) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..REQUESTS {
        let answer = ask(envoy, selection).await;
        assert_eq!(answer.status, 200, "{selection}");
        let served = answer.header("x-served-by").unwrap();
        assert_eq!(answer.header(SERVED), Some(served), "{selection}");
        names.push(served.to_owned());
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// An endpoint on an IPv6 address, or `None` with a line on a machine without.
async fn double() -> Option<(SocketAddr, JoinSet<()>)> {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        println!("this machine has no IPv6 loopback: selection by an IPv6 address is left out");
        return None;
    };
    let address = listener.local_addr().expect("it is bound");
    let routes = Router::new().route(COMPLETIONS, post(async || axum::Json(json!({}))));
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
    Some((address, server))
}

#[tokio::test]
async fn a_request_goes_where_the_suite_says_and_the_answer_tells_who_served() {
    let mut setup = Setup::echoes(3).picker_flag(FLAG);
    let double = double().await;
    if let Some((address, _)) = &double {
        setup = setup.and_double("v6", *address);
    }
    setup
        .run(async |fleet: &mut Fleet| {
            let envoy = &fleet.envoy;
            let [a, b, c] = [0, 1, 2].map(|at| fleet.echoes[at].address.to_string());
            assert_eq!(served(envoy, &b).await, [b.as_str()]);
            let mut two = [a.clone(), c.clone()];
            two.sort_unstable();
            assert_eq!(served(envoy, &format!("{a},{c}")).await, two);
            // A bare address may use each of its ports, as data-parallel ranks have them.
            let mut all = [a.clone(), b, c];
            all.sort_unstable();
            assert_eq!(served(envoy, "127.0.0.1").await, all);
            if let Some((address, _)) = &double {
                for selection in [address.to_string(), "[::1]".to_owned(), "::1".to_owned()] {
                    assert_eq!(served(envoy, &selection).await, [address.to_string()]);
                }
            }
            for nobody in ["10.9.9.9:3000", "10.9.9.9", "127.0.0.1:1", "engine-0"] {
                let answer = ask(envoy, nobody).await;
                assert_eq!(answer.status, 503, "{nobody}");
                assert_eq!(answer.header("x-warmpath-rejected"), Some("unavailable"));
            }
            // Whoever does not say gets the pick as ever, within the gateway's own hint.
            let hint = Subset::List(vec![a.clone()]);
            let hinting = fleet.another_envoy(|envoy| envoy.subset = hint).await;
            let other = all.iter().find(|address| **address != a).expect("three");
            assert_eq!(served(&hinting, other).await, [other.as_str()]);
            let body = completion(ids(1, 100)).to_string();
            let ordinary = http::post(hinting.picked(), COMPLETIONS, &[], body).await;
            assert_eq!(ordinary.header(SERVED), Some(a.as_str()));
        })
        .await;
}

#[tokio::test]
async fn who_served_is_told_in_every_body_mode() {
    let setup = Setup::echoes(2).picker_flag(FLAG);
    setup
        .run(async |fleet: &mut Fleet| {
            let chosen = fleet.echoes[1].address.to_string();
            for mode in [
                BodyMode::None,
                BodyMode::Streamed,
                BodyMode::Buffered,
                BodyMode::BufferedPartial,
                BodyMode::FullDuplexStreamed,
            ] {
                let envoy = fleet
                    .another_envoy(|envoy| {
                        envoy.request_body = mode;
                        envoy.response_body = mode;
                    })
                    .await;
                let answer = ask(&envoy, &chosen).await;
                assert_eq!(answer.status, 200, "{mode:?}");
                assert_eq!(answer.header(SERVED), Some(chosen.as_str()), "{mode:?}");
            }
            // A cluster that takes any address says nothing of who served.
            let silent = fleet
                .another_envoy(|envoy| envoy.obeys = Obeys::Header)
                .await;
            let answer = ask(&silent, &chosen).await;
            assert_eq!(
                answer.header(SERVED),
                Some("fail: missing destination endpoint served metadata")
            );
        })
        .await;
}

#[tokio::test]
async fn without_the_flag_the_suites_headers_mean_nothing() {
    let setup = Setup::echoes(2);
    setup
        .run(async |fleet: &mut Fleet| {
            let answer = ask(&fleet.envoy, "10.9.9.9:3000").await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header(SERVED), None);
        })
        .await;
}
