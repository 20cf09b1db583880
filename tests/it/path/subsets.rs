//! The gateway's word on which endpoints may be chosen is obeyed in every form it comes in.

use super::{COMPLETIONS, completion, ids};
use crate::support::envoy::Envoy;
use crate::support::envoy_config::Subset;
use crate::support::fleet::{Fleet, Setup};
use crate::support::http;

const WITHIN: &str = "x-gateway-destination-endpoint-subset";

/// Chance misses one of three equal engines this often in a row once in sixty thousand runs.
const REQUESTS: u32 = 30;

/// The engines that serve requests of different prompts.
async fn served(
    fleet: &Fleet,
    envoy: &Envoy,
    headers: &[(&str, &str)],
    prompts: u32,
) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..prompts {
        // Cold everywhere, whatever was asked before.
        let body = completion(ids(fastrand::u32(1..4_000_000), 100));
        let exchange = fleet.ask_with(envoy, COMPLETIONS, headers, &body).await;
        assert_eq!(exchange.answer.status, 200);
        names.push(exchange.endpoint().to_owned());
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Requests with a body and without are refused, and say why.
async fn assert_refused(envoy: &Envoy, headers: &[(&str, &str)]) {
    let to = envoy.picked();
    let post = http::post(
        to,
        COMPLETIONS,
        headers,
        completion(ids(1, 100)).to_string(),
    )
    .await;
    let get = http::get_with(to, "/v1/models", headers).await;
    for answer in [post, get] {
        assert_eq!(answer.status, 503, "{headers:?}");
        assert_eq!(answer.header("x-warmpath-rejected"), Some("unavailable"));
        let error = &answer.json()["error"];
        assert_eq!(
            error["message"],
            "no endpoint of the requested subset is ready"
        );
    }
}

#[tokio::test]
async fn a_subset_as_one_string_is_obeyed() {
    let setup = Setup::engines(3).envoy(|envoy| envoy.subset = Subset::FromHeader);
    setup
        .run(async |fleet| {
            let [a, b, c] = [0, 1, 2].map(|at| fleet.engines[at].address());
            let within = async |subset: &str| {
                served(fleet, &fleet.envoy, &[(WITHIN, subset)], REQUESTS).await
            };
            assert_eq!(within(&b.to_string()).await, ["default/engine-1"]);
            // An address without a port means every port of it.
            assert_eq!(within(&c.ip().to_string()).await, ["default/engine-2"]);
            let two = within(&format!("{a}, {b}")).await;
            assert_eq!(two, ["default/engine-0", "default/engine-1"]);
            // What cannot be read restricts as well; what can be read counts.
            let one = within(&format!("vllm.local:80,{c}")).await;
            assert_eq!(one, ["default/engine-2"]);
            assert_refused(&fleet.envoy, &[(WITHIN, "10.9.9.9:8000")]).await;
            assert_refused(&fleet.envoy, &[(WITHIN, "vllm.local")]).await;
            assert_eq!(served(fleet, &fleet.envoy, &[], REQUESTS).await.len(), 3);
        })
        .await;
}

#[tokio::test]
async fn a_subset_as_a_list_is_obeyed_and_an_empty_one_allows_nobody() {
    let setup = Setup::engines(3).envoy(|envoy| envoy.subset = Subset::List(Vec::new()));
    setup
        .run(async |fleet| {
            assert_refused(&fleet.envoy, &[]).await;
            let [a, _, c] = [0, 1, 2].map(|at| fleet.engines[at].address());
            let list = vec![a.to_string(), c.ip().to_string()];
            let envoy = fleet
                .another_envoy(|envoy| envoy.subset = Subset::List(list))
                .await;
            let names = served(fleet, &envoy, &[], REQUESTS).await;
            assert_eq!(names, ["default/engine-0", "default/engine-2"]);
            let unknown = Subset::List(vec!["10.9.9.9".to_owned()]);
            let envoy = fleet.another_envoy(|envoy| envoy.subset = unknown).await;
            assert_refused(&envoy, &[]).await;
        })
        .await;
}
