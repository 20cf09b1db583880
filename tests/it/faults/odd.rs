//! Batches that are late, twice, in another order, unreadable, or not the truth.

use std::time::Duration;

use serde_json::json;
use warmpath::engine::Fault;

use super::{Case, impatient};
use crate::support::waiting::until;

/// Room for three prompts: every store pushes something out.
const SMALL: [&str; 4] = ["--kv-blocks", "60", "--max-model-len", "700"];

#[tokio::test]
async fn a_batch_that_cannot_be_read_leaves_no_phantoms() {
    let mut case = Case::of("a batch of garbage", &SMALL).await;
    case.warm(1..3).await;
    case.ask(3).await;
    // It says what the next prompt pushes out.
    case.engine().running().set_fault(Fault::GarbageBatch(1));
    case.meanwhile([4, 5]).await;
    case.ends_equal([5, 4]).await;
}

#[tokio::test]
async fn without_a_replay_a_batch_that_cannot_be_read_leaves_no_phantoms_either() {
    let options = [&SMALL[..], &["--kv-replay", "none"]].concat();
    let fault = "a batch of garbage, without replay";
    let mut case = Case::with(fault, &[&options[..]], json!({})).await;
    case.warm(1..3).await;
    case.ask(3).await;
    case.engine().running().set_fault(Fault::GarbageBatch(1));
    case.meanwhile([4]).await;
    case.ends_within([5, 4], "incomplete", "could not be read")
        .await;
}

#[tokio::test]
async fn events_of_a_kind_that_nobody_knows_are_passed_over_alone() {
    let mut case = Case::of("events of an unknown kind", &SMALL).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::OddEvent(2));
    case.meanwhile([3, 4]).await;
    case.ends_equal([4, 3]).await;
}

#[tokio::test]
async fn batches_that_come_late_are_believed_when_they_come() {
    let mut case = Case::of("batches that come late", &SMALL).await;
    case.warm(1..3).await;
    let late = Fault::SlowPublish(Duration::from_millis(300));
    case.engine().running().set_fault(late);
    case.meanwhile([3, 3, 4, 5]).await;
    case.engine().running().clear_faults();
    case.ends_equal([5, 4]).await;
}

#[tokio::test]
async fn batches_that_were_held_up_end_equal() {
    let mut case = Case::of("a publisher that is held up", &SMALL).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::HoldEvents);
    case.meanwhile([3, 4, 5, 3]).await;
    case.engine().running().clear_faults();
    case.ask(6).await;
    case.ends_equal([6]).await;
}

#[tokio::test]
async fn batches_sent_twice_count_once() {
    let mut case = Case::of("every batch twice", &SMALL).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::DuplicateBatch);
    case.meanwhile([3, 4]).await;
    case.engine().running().clear_faults();
    case.ask(5).await;
    case.ends_equal([5]).await;
}

#[tokio::test]
async fn batches_in_another_order_end_equal() {
    let mut case = Case::of("batches in another order", &SMALL).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::Reorder);
    case.meanwhile([3, 4]).await;
    case.engine().running().clear_faults();
    case.ask(5).await;
    case.ends_equal([5]).await;
}

#[tokio::test]
async fn a_socket_that_stops_listening_for_a_while_is_caught_up_with() {
    let mut case = Case::with("live socket gone and back", &[&SMALL[..]], impatient()).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::PublishNowhere);
    case.meanwhile([3, 4]).await;
    case.says("absent", "cannot connect").await;
    case.engine().running().clear_faults();
    case.ask(5).await;
    case.ends_equal([5, 4]).await;
}

#[tokio::test]
async fn a_replay_with_a_hole_leaves_what_comes_after_it() {
    let options = ["--fault", "lose-replay-batches"];
    let mut case = Case::with("replay with a hole", &[&options[..]], impatient()).await;
    case.warm(1..9).await;
    case.stage.replace_picker().await;
    case.stage.settle().await;
    case.ends_within(1..9, "incomplete", "are lost").await;
}

/// No batch tells of them, live or replayed: the stores after the hole wait for a parent that does not come.
#[tokio::test]
async fn stores_that_no_batch_tells_of_leave_less_than_there_is() {
    let mut case = Case::of("stores that are never told", &[]).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::DropStores(2));
    case.meanwhile([3, 4, 3]).await;
    case.ends_within([3, 4, 1], "live", "").await;
}

/// What was computed and not told of shows after ten seconds, in the engine's own figures.
#[tokio::test]
async fn a_connection_that_is_dead_without_a_word_is_made_anew() {
    let mut case = Case::of("a connection that died without a word", &[]).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::HalfOpen);
    let mut topic = 3;
    until("the silence is noticed", async || {
        case.meanwhile([topic]).await;
        topic += 1;
        let noticed = case.count("warmpath_kv_event_silences_total").await;
        (noticed >= 1.0).then_some(())
    })
    .await;
    // The new connection began with a replay; from here on all goes well again.
    case.engine().running().clear_faults();
    case.ask(1000).await;
    case.ends_equal([1000]).await;
}
