//! Claims about several data-parallel ranks behind one server, as two of vLLM 0.31 were measured.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use warmpath::engine::{Fault, Running, Settings, start};

use super::{Engine, INSTANT};

/// Asks for a completion of 65 token ids, by default at no certain rank: the cached tokens, and which rank served.
async fn ask(engine: &Engine, first_id: u32, pin: Option<&str>) -> (u64, Option<String>) {
    let prompt: Vec<u32> = (first_id..first_id + 65).collect();
    let mut request = engine
        .client
        .post(engine.url("/v1/completions"))
        .json(&json!({"prompt": prompt, "max_tokens": 1}));
    if let Some(pin) = pin {
        request = request.header("X-Data-Parallel-Rank", pin);
    }
    let answer = request.send().await.unwrap().error_for_status().unwrap();
    let rank = answer.headers().get("x-warmpath-engine-rank");
    let rank = rank.map(|rank| rank.to_str().unwrap().to_owned());
    let body: Value = answer.json().await.unwrap();
    let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
    (cached.as_u64().unwrap(), rank)
}

async fn json(engine: &Engine, path: &str) -> Value {
    serde_json::from_str(&engine.get(path).await).unwrap()
}

/// Samples of a page by name and labels.
fn samples(page: &str) -> BTreeMap<&str, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(sample, value)| (sample, value.parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn ranks_have_caches_of_their_own_and_a_header_pins_one() {
    let engine = Engine::start(&["--data-parallel-size", "2"]).await;
    let (first, second) = (Some("0".to_owned()), Some("1".to_owned()));
    assert_eq!(ask(&engine, 0, Some("0")).await, (0, first.clone()));
    assert_eq!(ask(&engine, 0, Some("1")).await, (0, second.clone()));
    assert_eq!(ask(&engine, 0, Some("1")).await, (64, second.clone()));
    ask(&engine, 1000, Some("1")).await;
    let dumps = [
        json(&engine, "/sim/blocks").await,
        json(&engine, "/sim/blocks?rank=1").await,
    ];
    assert_eq!(dumps.map(|dump| dump.as_array().unwrap().len()), [4, 8]);
    let unpinned: BTreeSet<_> = [
        ask(&engine, 2000, None).await,
        ask(&engine, 2000, Some("any")).await,
    ]
    .into();
    // The balancer does not care what is cached where, and neither does it see a pin that is no number.
    assert_eq!(unpinned, [(0, first), (0, second)].into());
    engine.send("/reset_prefix_cache", &json!({})).await;
    for rank in [0, 1] {
        assert_eq!(engine.running.dump_of(rank).await, Some(Vec::new()));
    }
}

#[tokio::test]
async fn a_rank_that_is_not_there_is_refused_in_vllms_words() {
    for (options, ranks) in [(&[][..], 1), (&["--data-parallel-size", "2"], 2)] {
        let engine = Engine::start(options).await;
        for path in ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"] {
            let body = json!({
                "prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
            });
            for pin in ["-1", &ranks.to_string()] {
                let request = engine.client.post(engine.url(path)).json(&body);
                let answer = request.header("x-data-parallel-rank", pin).send().await;
                let answer = answer.unwrap();
                assert_eq!(answer.status().as_u16(), 400, "{path}");
                let error = answer.json::<Value>().await.unwrap()["error"].clone();
                let text = format!("data_parallel_rank {pin} is out of range [0, {ranks}).");
                assert_eq!(
                    (&error["message"], &error["type"]),
                    (&json!(text), &json!("BadRequestError"))
                );
            }
        }
    }
}

#[tokio::test]
async fn event_sources_are_told_by_rank_at_ports_one_apart() {
    let engine = Engine::start(&["--data-parallel-size", "3", "--kv-topic", "t"]).await;
    let sources = json(&engine, "/kv_event_sources").await;
    let port = |rank: &str, kind: &str| -> u16 {
        let address = sources[rank][kind].as_str().unwrap();
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    };
    assert_eq!(sources.as_object().unwrap().len(), 3);
    for kind in ["endpoint", "replay_endpoint"] {
        let base = port("0", kind);
        assert_eq!(
            ["1", "2"].map(|rank| port(rank, kind)),
            [base + 1, base + 2]
        );
    }
    for rank in 0..3 {
        let source = &sources[rank.to_string()];
        assert_eq!(source["topic"], "t");
        assert_eq!(
            source["endpoint"].as_str(),
            engine.running.kv_events_of(rank)
        );
        assert_eq!(
            source["replay_endpoint"].as_str(),
            engine.running.kv_replay_of(rank)
        );
    }
}

#[tokio::test]
async fn one_rank_of_many_servers_has_its_number_everywhere_but_in_the_pin() {
    let engine = Engine::start(&["--data-parallel-rank", "5"]).await;
    let sources = json(&engine, "/kv_event_sources").await;
    let sources = sources.as_object().unwrap();
    assert_eq!(sources.keys().collect::<Vec<_>>(), ["5"]);
    assert_eq!(
        sources["5"]["endpoint"].as_str(),
        engine.running.kv_events()
    );
    // One rank is here, and the header counts those of the server.
    assert_eq!(ask(&engine, 0, Some("0")).await, (0, None));
    let page = engine
        .get("/metrics/?name[]=vllm:prompt_tokens_total")
        .await;
    let sample = "vllm:prompt_tokens_total{engine=\"5\",model_name=\"warmpath-sim\"}";
    assert_eq!(samples(&page), [(sample, 65.0)].into());
}

#[tokio::test]
async fn the_metrics_page_is_that_of_two_api_servers() {
    let engine = Engine::start(&[
        "--data-parallel-size",
        "2",
        "--kv-blocks",
        "3000",
        "--model",
        "m",
    ])
    .await;
    assert_eq!(
        engine
            .get("/metrics/?name[]=vllm:kv_cache_usage_perc")
            .await,
        ""
    );
    let page = engine.get("/metrics").await;
    assert!(
        page.contains("# TYPE vllm:num_requests_running gauge\n# HELP"),
        "{page}"
    );
    ask(&engine, 0, Some("1")).await;
    let page = engine.get("/metrics").await;
    let seen = samples(&page);
    let of = |name: &str, rank: u32| {
        let sample = format!("{name}{{engine=\"{rank}\",model_name=\"m\"}}");
        seen.get(sample.as_str()).copied()
    };
    for gauge in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    ] {
        // Unknown until the rank's first step.
        assert_eq!([of(gauge, 0), of(gauge, 1)], [None, Some(0.0)], "{gauge}");
    }
    let tokens = [0, 1].map(|rank| of("vllm:prompt_tokens_total", rank));
    assert_eq!(tokens, [Some(0.0), Some(65.0)]);
    let count = "vllm:time_to_first_token_seconds_count";
    assert_eq!([of(count, 0), of(count, 1)], [Some(0.0), Some(1.0)]);
    let config: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("vllm:cache_config_info{"))
        .collect();
    assert_eq!(config.len(), 2);
    for (rank, line) in config.iter().enumerate() {
        for label in [
            format!("engine=\"{rank}\""),
            // The sum of all ranks, and one rank's tokens: as measured.
            "num_gpu_blocks=\"6000\"".to_owned(),
            "kv_cache_size_tokens=\"48000\"".to_owned(),
        ] {
            assert!(line.contains(&label), "{line}");
        }
    }
}

#[tokio::test]
async fn two_ranks_behind_one_api_server_have_a_page_that_can_be_filtered() {
    let engine = Engine::start(&[
        "--data-parallel-size",
        "2",
        "--api-server-count",
        "1",
        "--model",
        "m",
    ])
    .await;
    let page = engine
        .get("/metrics/?name[]=vllm:num_requests_running")
        .await;
    let expected = [0, 1]
        .map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"m\"}}"));
    assert!(samples(&page).into_keys().eq(expected.iter()), "{page}");
}

#[tokio::test]
async fn a_fault_befalls_the_rank_it_names_and_else_the_first() {
    let engine = Engine::start(&["--data-parallel-size", "2", "--fault", "no-replay@1"]).await;
    let set = async |faults: &'static str| {
        let request = engine.client.post(engine.url("/sim/fault")).body(faults);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(engine.get("/sim/fault").await, "no-replay@1\n");
    let all = "drop-events=2\nmetrics-500\nno-replay@1\nrestart-seq@1\n";
    assert_eq!(
        set("drop-events=2\nrestart-seq@1 metrics-500").await,
        (200, all.to_owned())
    );
    assert_eq!(
        set("restart-seq@2").await,
        (400, "no rank 2 here".to_owned())
    );
    assert_eq!(set("hang-http@1").await.0, 400);
    assert!(engine.running.set_fault_of(1, Fault::SilentPublisher));
    assert!(!engine.running.set_fault_of(2, Fault::SilentPublisher));
    assert!(set("").await.1.ends_with("silent-publisher@1\n"));
    assert_eq!(set("none").await, (200, String::new()));
}

#[tokio::test]
async fn options_that_do_not_go_together_are_refused_with_what_to_do() {
    let refused = |options: &[&str]| {
        let refusal = Settings::local(options).err();
        refusal.map_or_else(|| "accepted".to_owned(), |error| error.to_string())
    };
    let customary = ["--kv-events", "tcp://*:5557", "--kv-replay", "tcp://*:5558"];
    assert_eq!(refused(&customary), "accepted");
    let two = [&customary[..], &["--data-parallel-size", "2"]].concat();
    assert_eq!(
        refused(&two),
        "--kv-replay tcp://*:5558 collides with --kv-events tcp://*:5557: each of 2 ranks takes the next port, so the \
         replay port must be at least 5559"
    );
    assert_eq!(
        refused(&["--data-parallel-size", "2", "--data-parallel-rank", "1"]),
        "--data-parallel-rank 1 is for a server of one rank, and --data-parallel-size is 2"
    );
    assert_eq!(
        refused(&["--data-parallel-size", "2", "--fault", "no-replay@2"]),
        "--fault no-replay@2: this server has no such rank"
    );
    assert_eq!(
        refused(&["--kv-groups", "2", "--kv-events-encoding", "vllm-0.10"]),
        "--kv-groups 2 needs a dialect of vLLM 0.20 or later"
    );
    assert!(refused(&["--data-parallel-size", "0"]).contains("0 is not in 1..=1024"));
}

#[tokio::test]
async fn an_engine_started_again_with_its_settings_is_cold_at_the_same_addresses() {
    for options in [
        &[][..],
        &["--data-parallel-size", "2"],
        &["--data-parallel-rank", "1"],
    ] {
        let mut running = start(Settings::local(&[&INSTANT, options].concat()).unwrap())
            .await
            .unwrap();
        let addresses = |running: &Running| {
            let of = |rank| {
                (
                    running.kv_events_of(rank).map(str::to_owned),
                    running.kv_replay_of(rank).map(str::to_owned),
                )
            };
            (running.http(), running.ranks().map(of).collect::<Vec<_>>())
        };
        let before = addresses(&running);
        assert!(
            before
                .1
                .iter()
                .all(|(live, replay)| live.is_some() && replay.is_some())
        );
        for _ in 0..2 {
            let settings = running.settings().clone();
            running.kill().await;
            running = start(settings).await.unwrap();
            assert_eq!(addresses(&running), before);
            for rank in running.ranks() {
                assert_eq!(running.dump_of(rank).await, Some(Vec::new()));
            }
        }
    }
}
