//! A picker that comes late, and replay sockets that answer badly, slowly or not at all.

use serde_json::json;
use warmpath::engine::Fault;

use super::{Case, impatient};
use crate::support::waiting::until;

#[tokio::test]
async fn a_picker_restarted_in_a_warm_fleet_gets_all_back() {
    let mut case = Case::with(
        "picker restarted, a long ring",
        &[&[], &["--block-size", "32"]],
        json!({}),
    )
    .await;
    case.warm(1..9).await;
    case.stage.replace_picker().await;
    case.stage.settle().await;
    case.ends_equal(1..9).await;
}

#[tokio::test]
async fn a_picker_restarted_before_a_short_ring_knows_what_the_ring_still_tells() {
    let mut case = Case::of(
        "picker restarted, a short ring",
        &["--kv-buffer-steps", "3"],
    )
    .await;
    case.warm(1..9).await;
    case.stage.replace_picker().await;
    case.stage.settle().await;
    case.ends_within(1..9, "incomplete", "replay begins at batch")
        .await;
}

#[tokio::test]
async fn a_replay_that_loses_its_end_marker_is_asked_for_once_more_and_is_whole() {
    let options = ["--fault", "lose-end-marker"];
    let mut case = Case::with(
        "replay without its end marker",
        &[&options[..]],
        impatient(),
    )
    .await;
    case.warm(1..5).await;
    case.stage.replace_picker().await;
    case.stage.settle().await;
    let partial = r#"warmpath_kv_event_replays_total{outcome="partial"}"#;
    case.stage.picker.metric_reaches(partial, 1.0).await;
    case.ends_equal(1..5).await;
}

#[tokio::test]
async fn a_publisher_that_answers_slowly_is_waited_for() {
    let mut case = Case::of("replay that takes its time", &[]).await;
    case.warm(1..9).await;
    case.engine()
        .running()
        .set_fault(Fault::SlowReplay(std::time::Duration::from_millis(100)));
    case.stage.replace_picker().await;
    // Requests are served meanwhile, by what is known so far.
    case.stage.picker.knows(1, 0).await;
    case.meanwhile([8, 20, 21]).await;
    case.ends_equal([1, 8, 20]).await;
}

#[tokio::test]
async fn a_publisher_that_never_answers_is_asked_again_until_it_does() {
    let mut case = Case::with("replay that is never answered", &[&[]], impatient()).await;
    case.warm(1..5).await;
    case.engine().running().set_fault(Fault::NoReplay);
    case.stage.replace_picker().await;
    case.says("incomplete", "no replay answer").await;
    case.meanwhile([1, 2, 7]).await;
    case.stage.no_phantoms("nothing is known of before").await;
    case.engine().running().clear_faults();
    case.ends_equal([1, 2, 3, 4, 7]).await;
}

#[tokio::test]
async fn live_batches_that_come_before_or_in_the_replay_count_once() {
    let mut case = Case::of("live batches in the middle of the replay", &[]).await;
    case.warm(1..9).await;
    case.engine()
        .running()
        .set_fault(Fault::SlowReplay(std::time::Duration::from_millis(30)));
    case.stage.replace_picker().await;
    case.stage.picker.knows(1, 0).await;
    until("a live batch had been replayed already", async || {
        case.ask(fastrand::u32(100..10_000)).await;
        let duplicates = "warmpath_kv_event_batches_duplicate_total";
        let seen = case.stage.picker.metric(duplicates).await >= 1.0;
        let live = case.stage.view("engine-0").await.is("live");
        (seen || live).then_some(())
    })
    .await;
    case.engine().running().clear_faults();
    case.ends_equal(1..9).await;
}
