//! What no event tells, learnt from what engines report: prefixes of before, stores and removals that are never told,
//! a publisher that is silent while its engine computes.

use serde_json::json;
use warmpath::engine::Fault;

use super::Case;
use crate::support::waiting::until;

impl Case {
    /// Once each of these topics was asked about, it is foreseen exactly, though nobody can tell that the view is whole;
    /// and it has no phantom.
    async fn ends_learnt(mut self, topics: std::ops::Range<u32>) {
        self.meanwhile(topics.clone()).await;
        for topic in topics {
            let asked = self.ask(topic).await;
            self.after.add(&asked);
            assert!(asked.predicted > 0, "{}", asked.decision);
            asked.assert_exact();
        }
        self.stage.no_phantoms(self.fault).await;
        self.tell("learnt").await;
    }

    /// Asks about one topic after the other, twice about each, until the first endpoint is doubted with these words, or with none is not
    /// doubted; gives back the first topic that was not asked about.
    async fn until_doubted(&self, words: Option<&str>, mut topic: u32) -> u32 {
        let what = format!("{}: doubted {words:?}", self.fault);
        until(&what, async || {
            self.ask(topic).await;
            self.ask(topic).await;
            topic += 1;
            let endpoints = self.stage.picker.endpoints().await;
            let doubt = endpoints[0]["doubt"].as_str();
            let holds = match words {
                Some(words) => doubt.is_some_and(|doubt| doubt.contains(words)),
                None => doubt.is_none(),
            };
            holds.then_some(topic)
        })
        .await
    }
}

#[tokio::test]
async fn a_picker_restarted_before_a_short_ring_is_right_after_one_request_a_prefix() {
    let options = ["--kv-buffer-steps", "3"];
    let mut case = Case::of("picker restarted, a short ring, one request each", &options).await;
    case.warm(1..9).await;
    case.stage.replace_picker().await;
    case.stage.settle().await;
    case.says("incomplete", "replay begins at batch").await;
    case.ends_learnt(1..9).await;
}

#[tokio::test]
async fn what_was_lost_without_a_replay_is_learnt_request_by_request() {
    let options = ["--kv-replay", "none"];
    let mut case = Case::of("batches lost, without replay, one request each", &options).await;
    case.warm(1..5).await;
    case.engine().running().set_fault(Fault::DropEvents(1));
    case.ask(5).await;
    case.ask(6).await;
    case.says("incomplete", "are lost").await;
    case.ends_learnt(1..7).await;
}

#[tokio::test]
async fn stores_that_are_never_told_are_learnt_request_by_request() {
    let mut case = Case::of("stores never told, one request each", &[]).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::DropStores(3));
    for topic in [3, 4, 5, 6] {
        case.ask(topic).await;
    }
    case.ends_learnt(1..7).await;
}

#[tokio::test]
async fn removals_that_are_never_told_are_learnt_request_by_request() {
    let options = ["--kv-blocks", "90", "--max-model-len", "700"];
    let mut case = Case::of("removals never told, one request each", &options).await;
    case.warm(1..5).await;
    case.engine().running().set_fault(Fault::DropRemovals(20));
    // Pushes out what was asked first, and nobody is told.
    case.ask(5).await;
    let wrong = case.meanwhile([1]).await;
    assert!(
        wrong[0].reported < Some(wrong[0].predicted),
        "{}",
        wrong[0].decision
    );
    case.engine().running().clear_faults();
    // Of the second prompt only the end went, which its own next request shows.
    case.ends_learnt(1..3).await;
}

#[tokio::test]
async fn an_engine_whose_blocks_are_never_told_is_doubted_until_they_are_again() {
    let mut case = Case::with("a publisher silent under traffic", &[&[]], json!({})).await;
    case.warm(1..3).await;
    case.engine().running().set_fault(Fault::SilentPublisher);
    let topic = case
        .until_doubted(Some("its tokens are not ours"), 10)
        .await;
    // Served by what was sent there since, and rightly.
    for topic in topic..topic + 5 {
        case.ask(topic).await;
        let again = case.meanwhile([topic]).await;
        assert!(again[0].predicted > 0, "{}", again[0].decision);
        again[0].assert_exact();
    }
    case.engine().running().clear_faults();
    let topic = case.until_doubted(None, topic + 5).await;
    case.ends_learnt(topic..topic + 3).await;
}
