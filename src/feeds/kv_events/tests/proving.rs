//! The orchestrator says that the engine's container was restarted, early or late.

use super::*;

impl Following {
    /// The count of restarts rises, and the state of the feed changes twice: asked, and proven.
    async fn counted(&mut self) {
        let before = self.record.borrow().feeds.len();
        self.demand(|demands| demands.proofs += 1);
        self.until(|record| record.feeds.len() > before + 1).await;
    }
}

#[tokio::test]
async fn a_count_that_comes_after_the_restart_was_seen_wipes_nothing() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    let (live, replay) = publisher.stop().await;
    let publisher = Publisher::start_at(&live, &replay, ring(1, 0..5)).await;
    following.live_with(1000..1005).await;
    following.counted().await;
    let record = following.live_with(1000..1005).await;
    assert_eq!(record.clears, 1, "the restart itself");
    assert_eq!(
        publisher.asked().last(),
        Some(&4),
        "the proof is asked for from the last batch held"
    );
    publisher.publish(batch(1, 5)).await;
    following.live_with(1000..1006).await;
    following.end().await;
}

#[tokio::test]
async fn a_restart_that_the_connection_did_not_show_is_found_by_the_count() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    // The new life has reached the old number.
    publisher.script(|script| script.ring = ring(1, 0..3).ring);
    following.counted().await;
    let record = following.live_with(1000..1003).await;
    assert_eq!(record.clears, 1);
    publisher.publish(batch(1, 3)).await;
    following.live_with(1000..1004).await;
    following.end().await;
}

#[tokio::test]
async fn a_count_while_the_engine_is_away_changes_nothing() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    let (live, replay) = publisher.stop().await;
    following
        .until(|record| record.feed() == Some(&FeedState::Suspect))
        .await;
    following.demand(|demands| demands.proofs += 1);
    let _publisher = Publisher::start_at(&live, &replay, ring(1, 0..2)).await;
    let record = following.live_with(1000..1002).await;
    assert_eq!(record.clears, 1);
    following.end().await;
}

#[tokio::test]
async fn without_a_replay_socket_a_young_connection_is_the_proof() {
    let mut publisher = Publisher::start(Script::default()).await;
    let mut following = Following::without_replay(&publisher);
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    following.demand(|demands| demands.proofs += 1);
    publisher.send_live(batch(0, 1)).await;
    let record = following.live_with(0..2).await;
    assert_eq!(record.clears, 0);
    following.end().await;
}
