//! Engines that end, restart, are replaced, and forget without a word.

use serde_json::json;
use warmpath::engine::Fault;
use warmpath::routing::block::BlockSize;

use super::Case;
use crate::support::http;

#[tokio::test]
async fn an_engine_restarted_under_the_same_address_is_cold() {
    let mut case = Case::of("engine restarted under its address", &[]).await;
    case.warm(1..5).await;
    case.engine().kill().await;
    case.engine().restart().await;
    case.stage.settle().await;
    case.stage.no_phantoms("restarted").await;
    case.meanwhile([1, 2]).await;
    case.ends_equal(1..5).await;
}

#[tokio::test]
async fn an_engine_that_restarted_and_reached_the_old_number_cannot_pass_for_its_former_self() {
    let mut case = Case::of("restarted, and as many batches as before", &[]).await;
    case.warm(1..5).await;
    case.engine().kill().await;
    case.engine().restart().await;
    let address = case.engine().address();
    // One batch each, as the former life had made.
    for topic in 21..25 {
        let body = super::prompt(topic);
        http::post_json(address, super::COMPLETIONS, &body).await;
    }
    case.meanwhile([1, 21]).await;
    case.ends_equal([1, 2, 21, 22]).await;
}

#[tokio::test]
async fn numbers_that_begin_again_without_a_restart_drop_what_was_held() {
    let mut case = Case::of("numbers that begin again", &[]).await;
    case.warm(1..5).await;
    case.engine().running().set_fault(Fault::RestartSeq);
    case.meanwhile([5, 6]).await;
    // The engine kept its cache, which nobody can see: less is believed than there is.
    case.ends_within([5, 6, 7], "live", "").await;
}

#[tokio::test]
async fn an_engine_that_comes_back_with_another_block_size_is_learnt_anew() {
    let mut case = Case::of("restarted with another block size", &[]).await;
    case.warm(1..5).await;
    case.engine().kill().await;
    let size = BlockSize::new(48).expect("not zero");
    case.engine()
        .change(|settings| settings.core.block_size = size);
    case.engine().restart().await;
    case.stage.settle().await;
    for topic in 1..5 {
        case.ask(topic).await;
    }
    case.ends_equal(1..5).await;
}

#[tokio::test]
async fn a_pod_replaced_under_the_same_address_begins_with_nothing() {
    let mut case = Case::of("pod replaced under its address", &[]).await;
    case.warm(1..5).await;
    let address = case.engine().address();
    case.engine().kill().await;
    case.engine().restart().await;
    case.engine().name = "successor".to_owned();
    case.stage.list(&[("successor".to_owned(), address)]);
    case.stage.picker.lists("default/successor").await;
    case.stage
        .picker
        .sees("the former one is gone", |endpoints| endpoints.len() == 1)
        .await;
    case.stage.settle().await;
    case.meanwhile([1, 2]).await;
    case.ends_equal(1..5).await;
}

#[tokio::test]
async fn events_of_a_pod_that_left_touch_nothing() {
    let mut case = Case::with("events of a pod that left", &[&[], &[]], json!({})).await;
    case.warm(1..9).await;
    let [gone, stays] = [0, 1].map(|at: usize| {
        let engine = &case.stage.engines[at];
        (engine.name.clone(), engine.address())
    });
    case.stage.list(std::slice::from_ref(&stays));
    case.stage
        .picker
        .sees("it left", |endpoints| endpoints.len() == 1)
        .await;
    // It lives on, and others ask it.
    for topic in 30..34 {
        http::post_json(gone.1, super::COMPLETIONS, &super::prompt(topic)).await;
    }
    let page = format!("/debug/cache/default/{}", gone.0);
    let answer = http::get(case.stage.picker.addresses.metrics, &page).await;
    assert_eq!(answer.status, 404);
    let elsewhere = case.meanwhile([30, 31]).await;
    assert!(elsewhere.iter().all(|asked| asked.predicted == 0));
    case.stage.list(&[gone, stays]);
    case.stage.picker.lists("default/engine-0").await;
    case.stage.settle().await;
    case.ends_equal(1..9).await;
}

/// An idle engine queues the news for its next step, so for one request it is foreseen what is not there.
#[tokio::test]
async fn a_cache_cleared_while_idle_costs_one_wrong_prediction() {
    let mut case = Case::of("cleared while idle, not told yet", &[]).await;
    case.warm(1..5).await;
    http::post(case.engine().address(), "/reset_prefix_cache", &[], "").await;
    let wrong = case.meanwhile([1]).await;
    assert_eq!((wrong[0].predicted, wrong[0].reported), (288, Some(0)));
    case.ends_equal(1..5).await;
}

#[tokio::test]
async fn an_engine_killed_in_the_middle_of_its_traffic_leaves_no_phantoms() {
    let mut case = Case::with("killed under traffic", &[&[], &[]], json!({})).await;
    case.warm(1..9).await;
    case.engine().kill().await;
    let other = case.stage.engines[1].name.clone();
    case.stage
        .picker
        .sees("it is left out", |endpoints| {
            endpoints
                .iter()
                .any(|endpoint| endpoint["excluded"] == "unreachable")
        })
        .await;
    for asked in case.meanwhile(1..5).await {
        assert!(asked.endpoint.ends_with(&other), "{}", asked.decision);
    }
    case.engine().restart().await;
    case.stage.settle().await;
    case.ends_equal(1..9).await;
}

/// Its cache is gone at once, and says so only with its first step after it woke.
#[tokio::test]
async fn an_engine_asleep_is_left_out_and_what_it_held_forgotten_at_the_next_report() {
    let mut case = Case::with("engine asleep, and awake again", &[&[], &[]], json!({})).await;
    case.warm(1..9).await;
    let address = case.engine().address();
    http::post(address, "/sleep?level=1", &[], "").await;
    case.stage
        .picker
        .sees("it is left out and cold", |endpoints| {
            endpoints
                .iter()
                .any(|endpoint| endpoint["excluded"] == "asleep" && endpoint["cached_blocks"] == 0)
        })
        .await;
    for asked in case.meanwhile(1..5).await {
        assert!(asked.endpoint.ends_with("engine-1"), "{}", asked.decision);
    }
    http::post(address, "/wake_up", &[], "").await;
    case.stage
        .picker
        .sees("it is back", |endpoints| {
            endpoints
                .iter()
                .all(|endpoint| endpoint["excluded"].is_null())
        })
        .await;
    case.ends_equal(1..9).await;
}
