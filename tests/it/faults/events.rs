//! Batches that are lost, too many, or say less than happened.

use serde_json::json;
use warmpath::engine::Fault;

use super::{COMPLETIONS, Case};
use crate::support::fleet::MODEL;
use crate::support::http;

#[tokio::test]
async fn lost_batches_are_fetched_again_with_the_next_one() {
    let mut case = Case::of("batches lost, with replay", &[]).await;
    case.warm(1..4).await;
    case.engine().running().set_fault(Fault::DropEvents(2));
    for topic in [4, 5] {
        case.ask(topic).await;
    }
    // Nothing tells of them yet: two repeats make no batch.
    let missed = case.meanwhile([4, 5]).await;
    assert!(missed.iter().all(|asked| asked.predicted == 0));
    case.ask(6).await;
    assert!(case.count("warmpath_kv_event_gaps_total").await >= 1.0);
    case.ends_equal(1..7).await;
}

#[tokio::test]
async fn without_a_replay_lost_batches_leave_less_than_there_is_and_a_clear_makes_it_whole() {
    let mut case = Case::of("batches lost, without replay", &["--kv-replay", "none"]).await;
    case.warm(1..4).await;
    case.engine().running().set_fault(Fault::DropEvents(2));
    case.meanwhile([4, 5, 6]).await;
    case.says("incomplete", "batches 3 to 4 are lost").await;
    case.stage.no_phantoms("lost for good").await;
    let address = case.engine().address();
    http::post(address, "/reset_prefix_cache", &[], "").await;
    case.ask(7).await;
    case.ends_equal([7]).await;
}

#[tokio::test]
async fn lost_removals_leave_no_phantoms() {
    let options = ["--kv-blocks", "60", "--max-model-len", "700"];
    let mut case = Case::of("removals lost, with replay", &options).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::DropEvents(3));
    // Room for three: these push out what was there, and nobody is told.
    for topic in [3, 4, 5] {
        case.ask(topic).await;
    }
    let phantoms = case.meanwhile([1]).await;
    assert!(phantoms[0].reported < Some(phantoms[0].predicted));
    case.ends_equal([1, 5]).await;
}

#[tokio::test]
async fn without_a_replay_lost_removals_leave_no_phantoms_either() {
    let options = [
        "--kv-blocks",
        "60",
        "--max-model-len",
        "700",
        "--kv-replay",
        "none",
    ];
    let mut case = Case::of("removals lost, without replay", &options).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::DropEvents(3));
    for topic in [3, 4, 5] {
        case.ask(topic).await;
    }
    case.meanwhile([1]).await;
    case.ends_within([5, 1], "incomplete", "are lost").await;
}

#[tokio::test]
async fn a_burst_of_batches_faster_than_they_are_read_ends_equal() {
    // A block a token: every step of every sequence is an event.
    let options = [
        "--block-size",
        "1",
        "--kv-blocks",
        "30000",
        "--max-model-len",
        "4096",
    ];
    let mut case = Case::of("more batches at once than are read at once", &options).await;
    case.warm(1..3).await;
    let bodies = (10..18).map(|topic: u32| {
        let prompt = [topic; 20];
        json!({ "model": MODEL, "prompt": prompt, "max_tokens": 1500, "ignore_eos": true })
    });
    let stage = &case.stage;
    let asking = bodies.map(|body| async move { stage.ask(COMPLETIONS, &body).await });
    futures_util::future::join_all(asking).await;
    case.ends_equal(1..3).await;
}

#[tokio::test]
async fn evictions_all_the_time_are_followed() {
    let options = ["--kv-blocks", "50", "--max-model-len", "700"];
    let mut case = Case::of("small pools: an eviction with every store", &options).await;
    case.warm(1..2).await;
    for topic in 2..30 {
        case.stage.views_are_equal("evictions").await;
        case.meanwhile([topic, topic % 3]).await;
    }
    case.ends_equal([1, 29, 28]).await;
}

/// Nothing on the wire tells of it: batches are neither numbered nor kept. What is held stays right as long as nothing is
/// evicted.
#[tokio::test]
async fn a_publisher_that_fell_silent_leaves_less_than_there_is() {
    let mut case = Case::of("a publisher that falls silent", &[]).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::SilentPublisher);
    case.meanwhile([3, 4, 3, 4]).await;
    case.engine().running().clear_faults();
    case.ask(5).await;
    case.ends_within([1, 2, 5], "live", "").await;
}

#[tokio::test]
async fn an_engine_without_events_is_served_by_what_was_sent_to_it_and_says_so() {
    let mut case = Case::of("no events at all", &["--kv-events", "none"]).await;
    case.meanwhile([1, 2]).await;
    let view = case.stage.view("engine-0").await;
    assert_eq!(view.page["approximate"], true);
    assert!(view.page["sent"]["blocks"].as_u64() > Some(30));
    case.ends_within([1, 2], "absent", "publishes no KV events")
        .await;
}
