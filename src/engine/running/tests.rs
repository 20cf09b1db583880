//! Claims about a whole engine's KV events. They share our code on both ends and so prove the plumbing only.

mod faults;
mod listening;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use zeromq::{DealerSocket, Socket as _, SocketRecv as _, SocketSend as _, SubSocket, ZmqMessage};

use super::*;
use crate::engine::unpack::{numbers, unpack};

const PATIENCE: Duration = Duration::from_secs(10);
const FAST: [&str; 8] = [
    "--prefill-us-per-token",
    "0",
    "--base-ms-per-step",
    "0",
    "--decode-ms-per-step",
    "0",
    "--max-model-len",
    "600",
];

async fn engine(options: &[&str]) -> Running {
    start(Settings::local(&[&FAST, options].concat()).unwrap())
        .await
        .unwrap()
}

/// Prefills four blocks that nothing else has.
async fn ask(engine: &Running, family: u32) {
    ask_rank(engine, family, 0).await;
}

async fn ask_rank(engine: &Running, family: u32, rank: u32) {
    let prompt: Vec<u32> = (0..65).map(|at| family * 1000 + at).collect();
    let url = format!("http://{}/v1/completions", engine.http());
    let body = json!({"prompt": prompt, "max_tokens": 1});
    reqwest::Client::new()
        .post(url)
        .header("x-data-parallel-rank", rank)
        .json(&body)
        .send()
        .await
        .unwrap()
        .error_for_status()
        .unwrap();
}

async fn receive(socket: &mut (impl zeromq::SocketRecv + Send)) -> Option<Vec<Bytes>> {
    let message = tokio::time::timeout(PATIENCE, socket.recv()).await.ok()?;
    Some(message.unwrap().into_vec())
}

fn seq(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame.as_ref().try_into().unwrap())
}

/// Everything from `start` on, and the frames of the end marker.
async fn replay(engine: &Running, start: u64) -> (Vec<(u64, Bytes)>, Vec<Bytes>) {
    replay_at(engine.kv_replay().unwrap(), start).await
}

async fn replay_at(address: &str, start: u64) -> (Vec<(u64, Bytes)>, Vec<Bytes>) {
    let mut dealer = DealerSocket::new();
    dealer.connect(address).await.unwrap();
    // Requests of any other form are ignored, without harm to this one.
    dealer.send(ZmqMessage::from("no request")).await.unwrap();
    let request = vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())];
    dealer.send(request.try_into().unwrap()).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let frames = receive(&mut dealer).await.unwrap();
        let [.., number, payload] = frames.as_slice() else {
            panic!("{frames:?}")
        };
        if payload.is_empty() {
            return (batches, frames);
        }
        batches.push((seq(number), payload.clone()));
    }
}

/// Copies by hash after some batches, in either dialect.
fn cache_after<'a>(payloads: impl Iterator<Item = &'a Bytes>) -> BTreeMap<u64, usize> {
    let mut cache = BTreeMap::new();
    for payload in payloads {
        let batch = unpack(&mut payload.as_ref());
        for event in batch[1].as_array().unwrap() {
            let field = |name: &str, at: usize| {
                if event.is_array() {
                    &event[at]
                } else {
                    &event[name]
                }
            };
            let hashes: Vec<u64> = numbers(field("block_hashes", 1));
            match field("type", 0).as_str().unwrap() {
                "BlockStored" => hashes
                    .iter()
                    .for_each(|hash| *cache.entry(*hash).or_default() += 1),
                "BlockRemoved" => hashes
                    .iter()
                    .for_each(|hash| *cache.get_mut(hash).unwrap() -= 1),
                other => assert_eq!((other, cache.clear()), ("AllBlocksCleared", ())),
            }
        }
    }
    cache.retain(|_, copies| *copies > 0);
    cache
}

async fn dumped(engine: &Running) -> BTreeMap<u64, usize> {
    engine
        .dump()
        .await
        .unwrap()
        .iter()
        .map(|block| (block.hash, block.copies))
        .collect()
}

/// A subscriber to a fresh engine that certainly listens and has read everything so far.
async fn subscribe(engine: &Running) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(engine.kv_events().unwrap()).await.unwrap();
    socket.subscribe("").await.unwrap();
    for published in 0.. {
        ask(engine, 100 + published).await;
        let first = tokio::time::timeout(Duration::from_millis(50), live_seq(&mut socket)).await;
        let Ok(mut last) = first else { continue };
        while last < u64::from(published) {
            last = live_seq(&mut socket).await;
        }
        break;
    }
    socket
}

async fn live_seq(socket: &mut SubSocket) -> u64 {
    seq(&receive(socket).await.unwrap()[1])
}

#[tokio::test]
async fn engine_events_live_and_replayed_add_up_to_its_dump_in_both_dialects() {
    for dialect in ["map", "array"] {
        // Forty blocks: the later prompts evict the earlier ones.
        let engine = engine(&["--kv-blocks", "40", "--kv-events-encoding", dialect]).await;
        let mut live = subscribe(&engine).await;
        for family in 0..15 {
            ask(&engine, family).await;
        }
        let (batches, end) = replay(&engine, 0).await;
        let payloads = batches.iter().map(|(_, payload)| payload);
        assert_eq!(cache_after(payloads), dumped(&engine).await, "{dialect}");
        assert!(
            batches
                .iter()
                .map(|(number, _)| *number)
                .eq(0..batches.len() as u64)
        );
        assert_eq!(end.len(), if dialect == "map" { 4 } else { 3 });
        for (number, payload) in &batches[batches.len() - 15..] {
            let frames = receive(&mut live).await.unwrap();
            assert_eq!(
                (frames.len(), frames[0].is_empty(), seq(&frames[1])),
                (3, true, *number)
            );
            assert_eq!(&frames[2], payload);
        }
        engine.stop().await;
    }
}

#[tokio::test]
async fn each_rank_numbers_its_own_batches_and_says_whose_they_are() {
    let engine = engine(&["--data-parallel-size", "2", "--kv-topic", "t"]).await;
    for (family, rank) in [(0, 1), (1, 0), (2, 1), (2, 0), (3, 1)] {
        ask_rank(&engine, family, rank).await;
    }
    for (rank, count) in [(0, 2), (1, 3)] {
        let (batches, _) = replay_at(engine.kv_replay_of(rank).unwrap(), 0).await;
        let numbers: Vec<_> = batches.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        for (_, payload) in &batches {
            assert_eq!(unpack(&mut payload.as_ref())[2], rank);
        }
        let cached = engine.dump_of(rank).await.unwrap();
        let cached = cached
            .iter()
            .map(|block| (block.hash, block.copies))
            .collect();
        let payloads = batches.iter().map(|(_, payload)| payload);
        assert_eq!(cache_after(payloads), cached);
    }
}

#[tokio::test]
async fn a_restart_of_one_ranks_numbers_leaves_the_others_alone() {
    let engine = engine(&["--data-parallel-size", "2"]).await;
    for (family, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        ask_rank(&engine, family, rank).await;
    }
    assert!(engine.set_fault_of(1, Fault::RestartSeq));
    for rank in [0, 1] {
        ask_rank(&engine, 2, rank).await;
        let (batches, _) = replay_at(engine.kv_replay_of(rank).unwrap(), 0).await;
        assert_eq!(batches.len(), if rank == 0 { 3 } else { 1 });
    }
}

#[tokio::test]
async fn engine_replay_begins_where_asked_and_holds_only_the_last_batches() {
    let engine = engine(&["--kv-buffer-steps", "3", "--kv-topic", "kv@here@m"]).await;
    for family in 0..5 {
        ask(&engine, family).await;
    }
    let numbers =
        |batches: Vec<(u64, Bytes)>| batches.into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    assert_eq!(numbers(replay(&engine, 0).await.0), [2, 3, 4]);
    assert_eq!(numbers(replay(&engine, 4).await.0), [4]);
    assert_eq!(numbers(replay(&engine, 9).await.0), Vec::<u64>::new());
}

#[tokio::test]
async fn engine_drops_events_and_restarts_numbers_when_told() {
    let engine = engine(&[]).await;
    let mut live = subscribe(&engine).await;
    ask(&engine, 0).await;
    let before = live_seq(&mut live).await;
    engine.set_fault(Fault::DropEvents(2));
    for family in 1..4 {
        ask(&engine, family).await;
    }
    assert_eq!(live_seq(&mut live).await, before + 3);
    let (batches, _) = replay(&engine, before).await;
    assert_eq!(batches.len(), 4);
    engine.set_fault(Fault::SilentPublisher);
    ask(&engine, 4).await;
    engine.clear_faults();
    engine.set_fault(Fault::RestartSeq);
    ask(&engine, 5).await;
    assert_eq!(live_seq(&mut live).await, 0);
    assert_eq!(replay(&engine, 0).await.0.len(), 1);
}

#[tokio::test]
async fn engine_replays_without_end_or_not_at_all_when_told() {
    let engine = engine(&["--fault", "lose-end-marker"]).await;
    ask(&engine, 0).await;
    let mut dealer = DealerSocket::new();
    dealer.connect(engine.kv_replay().unwrap()).await.unwrap();
    let request = || ZmqMessage::try_from(vec![Bytes::new(), Bytes::from_static(&[0; 8])]).unwrap();
    dealer.send(request()).await.unwrap();
    assert_eq!(receive(&mut dealer).await.unwrap().len(), 4);
    engine.set_fault(Fault::NoReplay);
    dealer.send(request()).await.unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(100), dealer.recv()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn engine_announces_a_reset_with_the_next_step() {
    let engine = engine(&[]).await;
    ask(&engine, 0).await;
    let url = format!("http://{}/reset_prefix_cache", engine.http());
    reqwest::Client::new()
        .post(url)
        .send()
        .await
        .unwrap()
        .error_for_status()
        .unwrap();
    assert_eq!(replay(&engine, 0).await.0.len(), 1);
    assert!(dumped(&engine).await.is_empty());
    ask(&engine, 1).await;
    let (batches, _) = replay(&engine, 1).await;
    let batch = unpack(&mut batches[0].1.as_ref());
    let kinds: Vec<&Value> = batch[1]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["type"])
        .collect();
    assert_eq!(kinds, ["AllBlocksCleared", "BlockStored"]);
}

#[tokio::test]
async fn a_killed_engine_breaks_its_streams_and_frees_its_port() {
    let engine = engine(&["--base-ms-per-step", "60000"]).await;
    let url = format!("http://{}/v1/completions", engine.http());
    let body = json!({"prompt": "x", "stream": true});
    let response = reqwest::Client::new()
        .post(url)
        .json(&body)
        .send()
        .await
        .unwrap();
    let address = engine.http();
    engine.kill().await;
    assert!(response.bytes().await.is_err());
    TcpListener::bind(address).await.unwrap();
}
