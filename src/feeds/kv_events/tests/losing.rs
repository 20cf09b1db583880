//! Gaps, restarts (open and hidden), lost connections.

use super::*;

#[tokio::test]
async fn a_gap_is_mended_out_of_the_replay() {
    let publisher = Publisher::start(ring(0, 0..1)).await;
    let mut following = Following::of(&publisher);
    following.live_with([0]).await;
    publisher.script(|script| script.ring.extend([batch(0, 1), batch(0, 2)]));
    publisher.publish(batch(0, 3)).await;
    let record = following.live_with(0..4).await;
    assert_eq!(record.clears, 0);
    assert_eq!(following.count("warmpath_kv_event_gaps_total"), 1);
    publisher.publish(batch(0, 4)).await;
    following.live_with(0..5).await;
    // Once to join, once for the gap, from what was held.
    assert_eq!(publisher.asked(), [0, 0]);
    following.end().await;
}

#[tokio::test]
async fn a_gap_without_a_replay_socket_drops_what_was_held() {
    let mut publisher = Publisher::start(Script::default()).await;
    let mut following = Following::without_replay(&publisher);
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    publisher.send_live(batch(0, 3)).await;
    let record = following
        .until(|record| record.held == [3] && record.incomplete().is_some())
        .await;
    assert!(record.incomplete().expect("cause").contains("1 to 2"));
    assert_eq!(record.clears, 1);
    assert_eq!(following.count("warmpath_kv_event_gaps_total"), 1);
    assert_eq!(following.count("warmpath_kv_event_clears_total"), 1);
    following.end().await;
}

#[tokio::test]
async fn a_gap_that_the_ring_no_longer_reaches_is_rebuilt_from_what_it_holds() {
    let publisher = Publisher::start(ring(0, 0..2)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..2).await;
    publisher.script(|script| script.ring = ring(0, 100..103).ring);
    publisher.publish(batch(0, 103)).await;
    let record = following
        .until(|record| record.held == [100, 101, 102, 103] && record.incomplete().is_some())
        .await;
    assert!(record.incomplete().expect("cause").contains("batch 100"));
    assert_eq!(record.clears, 1);
    following.end().await;
}

#[tokio::test]
async fn a_gap_that_the_ring_does_not_have_drops_what_was_held() {
    let publisher = Publisher::start(ring(0, 0..2)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..2).await;
    publisher.send_live(batch(0, 5)).await;
    let record = following
        .until(|record| record.held == [5] && record.incomplete().is_some())
        .await;
    assert!(record.incomplete().expect("cause").contains("2 to 4"));
    assert_eq!(record.clears, 1);
    following.end().await;
}

#[tokio::test]
async fn numbers_going_backwards_on_one_connection_are_a_restart() {
    let publisher = Publisher::start(ring(0, 0..1)).await;
    let mut following = Following::of(&publisher);
    following.live_with([0]).await;
    for seq in 1..4 {
        publisher.publish(batch(0, seq)).await;
    }
    following.live_with(0..4).await;
    publisher.script(|script| script.ring.clear());
    publisher.publish(batch(1, 0)).await;
    let record = following.live_with([1000]).await;
    assert_eq!(record.clears, 1);
    assert_eq!(following.count("warmpath_kv_event_restarts_total"), 1);
    // The same again, but the first numbers of the third life were missed.
    publisher.publish(batch(1, 1)).await;
    publisher.publish(batch(1, 2)).await;
    following.live_with(1000..1003).await;
    publisher.script(|script| script.ring = ring(2, 0..1).ring);
    publisher.publish(batch(2, 1)).await;
    following.live_with(2000..2002).await;
    following.end().await;
}

#[tokio::test]
async fn a_lost_connection_is_suspect_at_once_and_the_same_life_is_kept() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    publisher.publish(batch(0, 3)).await;
    following.live_with(0..4).await;
    let (live, replay) = publisher.stop().await;
    let record = following
        .until(|record| record.feed() == Some(&FeedState::Suspect))
        .await;
    assert_eq!(record.held, [0, 1, 2, 3]);
    // The network came back; two batches were missed meanwhile.
    let publisher = Publisher::start_at(&live, &replay, ring(0, 0..6)).await;
    let record = following.live_with(0..6).await;
    assert_eq!(record.clears, 0);
    assert_eq!(publisher.asked(), [3], "only what is not held is asked for");
    publisher.publish(batch(0, 6)).await;
    following.live_with(0..7).await;
    following.end().await;
}

#[tokio::test]
async fn a_restart_under_the_same_address_is_recognised() {
    let publisher = Publisher::start(ring(0, 0..5)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..5).await;
    let (live, replay) = publisher.stop().await;
    // The new life has not sent anything yet.
    let publisher = Publisher::start_at(&live, &replay, Script::default()).await;
    let record = following.live_with([]).await;
    assert_eq!(record.clears, 1);
    assert_eq!(following.count("warmpath_kv_event_restarts_total"), 1);
    publisher.publish(batch(1, 0)).await;
    following.live_with([1000]).await;
    let (live, replay) = publisher.stop().await;
    // A third life that has sent as many as the second.
    let _publisher = Publisher::start_at(&live, &replay, ring(2, 0..1)).await;
    following.live_with([2000]).await;
    assert_eq!(following.count("warmpath_kv_event_restarts_total"), 2);
    following.end().await;
}

#[tokio::test]
async fn a_restart_that_hides_behind_higher_numbers_is_recognised() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    let (live, replay) = publisher.stop().await;
    // The new life went past number 2 before we could connect.
    let publisher = Publisher::start_at(&live, &replay, ring(1, 0..8)).await;
    let record = following.live_with(1000..1008).await;
    assert_eq!(record.clears, 1);
    assert_eq!(publisher.asked(), [2, 0]);
    following.end().await;
}

#[tokio::test]
async fn a_reconnect_without_a_replay_socket_drops_what_was_held() {
    let mut publisher = Publisher::start(Script::default()).await;
    let mut following = Following::without_replay(&publisher);
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    let (live, replay) = publisher.stop().await;
    let mut publisher = Publisher::start_at(&live, &replay, Script::default()).await;
    publisher.subscribed().await;
    publisher.send_live(batch(0, 1)).await;
    let record = following
        .until(|record| record.held == [1] && record.incomplete().is_some())
        .await;
    assert_eq!(record.clears, 1);
    following.end().await;
}

#[tokio::test]
async fn an_engine_gone_for_long_is_absent_and_what_was_held_is_kept_if_it_returns() {
    let publisher = Publisher::start(ring(0, 0..2)).await;
    let source = publisher.source();
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(200));
    following.live_with(0..2).await;
    let (live, replay) = publisher.stop().await;
    following.until(|record| record.absent().is_some()).await;
    let _publisher = Publisher::start_at(&live, &replay, ring(0, 0..3)).await;
    let record = following.live_with(0..3).await;
    assert_eq!(record.clears, 0);
    following.end().await;
}

#[tokio::test]
async fn answers_that_tell_of_another_life_each_time_come_to_an_end() {
    // One batch a request, so that there is always something to go on with.
    let script = Script {
        at_most: Some(1),
        reborn: true,
        ..Script::default()
    };
    let publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    let record = following
        .until(|record| record.incomplete().is_some())
        .await;
    let cause = record.incomplete().expect("cause");
    assert!(cause.contains("something else"), "{cause}");
    following.end().await;
}
