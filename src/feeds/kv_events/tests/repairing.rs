//! What is demanded of a follower: an empty view, a view built anew, another connection.

use super::*;

#[tokio::test]
async fn an_emptied_view_keeps_its_place_so_that_no_replay_brings_its_blocks_back() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    following.demand(|demands| demands.empties += 1);
    following.live_with([]).await;
    // The connection breaks meanwhile: the proof is asked for from the last number, emptied or not.
    let (live, replay) = publisher.stop().await;
    let publisher = Publisher::start_at(&live, &replay, ring(0, 0..3)).await;
    publisher.asked_times(1).await;
    following.live_with([]).await;
    assert_eq!(publisher.asked(), [2]);
    // It wakes: the clear event comes with its first step.
    publisher.publish(clear_batch(3)).await;
    publisher.publish(batch(0, 4)).await;
    let record = following.live_with([4]).await;
    assert_eq!(record.clears, 1);
    assert_eq!(following.count("warmpath_kv_event_gaps_total"), 0);
    following.end().await;
}

#[tokio::test]
async fn an_engine_that_slept_before_we_came_is_empty_once_it_is_said_again() {
    let script = Script {
        held_back: true,
        ..ring(0, 0..3)
    };
    let publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    publisher.asked_times(1).await;
    // Said while the replay, full of what the engine had, is still to come.
    following.demand(|demands| demands.empties += 1);
    publisher.script(|script| script.held_back = false);
    let record = following.until(|record| record.clears > 0).await;
    assert_eq!(record.held, Vec::<u64>::new());
    following.end().await;
}

#[tokio::test]
async fn a_rebuilt_view_is_what_the_replay_from_the_beginning_tells() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    // Whatever made the view wrong, the ring is right.
    publisher.script(|script| script.ring = ring(7, 0..3).ring);
    following.demand(|demands| demands.rebuilds += 1);
    following.live_with(7000..7003).await;
    assert_eq!(publisher.asked(), [0, 0]);
    publisher.publish(batch(7, 3)).await;
    following.live_with(7000..7004).await;
    assert_eq!(following.count("warmpath_kv_event_rebuilds_total"), 1);
    // Once more, much too soon: the view goes on as it is.
    following.demand(|demands| demands.rebuilds += 1);
    publisher.publish(batch(7, 4)).await;
    following.live_with(7000..7005).await;
    assert_eq!(publisher.asked(), [0, 0]);
    assert_eq!(following.count("warmpath_kv_event_rebuilds_total"), 1);
    following.end().await;
}

#[tokio::test]
async fn a_rebuild_that_is_wanted_while_nothing_is_connected_waits_for_the_connection() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    let (live, replay) = publisher.stop().await;
    following
        .until(|record| record.feed() == Some(&FeedState::Suspect))
        .await;
    following.demand(|demands| demands.rebuilds += 1);
    let publisher = Publisher::start_at(&live, &replay, ring(0, 0..3)).await;
    publisher.asked_times(2).await;
    let record = following.live_with(0..3).await;
    assert!(record.clears >= 1);
    assert_eq!(publisher.asked(), [2, 0]);
    following.end().await;
}

#[tokio::test]
async fn a_rebuild_without_a_replay_socket_forgets_and_says_so() {
    let mut publisher = Publisher::start(Script::default()).await;
    let mut following = Following::without_replay(&publisher);
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    following.demand(|demands| demands.rebuilds += 1);
    let record = following
        .until(|record| record.held.is_empty() && record.incomplete().is_some())
        .await;
    assert!(
        record
            .incomplete()
            .expect("cause")
            .contains("no replay socket")
    );
    publisher.send_live(batch(0, 1)).await;
    following.until(|record| record.held == [1]).await;
    following.end().await;
}

#[tokio::test]
async fn an_engine_that_is_back_is_asked_for_a_proof_unless_the_connection_is_younger() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let before = tokio::time::Instant::now();
    let mut following = Following::of(&publisher);
    following.live_with(0..3).await;
    following.demand(|demands| demands.away_at = Some(before));
    following.demand(|demands| demands.empties += 1);
    following.live_with([]).await;
    assert_eq!(publisher.asked(), [0], "the connection was made after that");
    publisher.script(|script| script.ring = ring(1, 0..3).ring);
    let now = tokio::time::Instant::now();
    following.demand(|demands| demands.away_at = Some(now));
    following.live_with(1000..1003).await;
    assert_eq!(publisher.asked(), [0, 2, 0]);
    following.end().await;
}

#[tokio::test]
async fn a_suspicion_without_a_replay_socket_lets_the_next_number_decide() {
    let mut publisher = Publisher::start(Script::default()).await;
    let mut following = Following::without_replay(&publisher);
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    let reconnected = async |following: &mut Following| {
        let feeds = following.record.borrow().feeds.len();
        following.demand(|demands| demands.reconnects += 1);
        following
            .until(|record| record.feeds.len() >= feeds + 2)
            .await
    };
    let record = reconnected(&mut following).await;
    assert_eq!((record.held, record.clears), (vec![0], 0));
    publisher.subscribed_times(2).await;
    publisher.send_live(batch(0, 1)).await;
    following.live_with([0, 1]).await;
    reconnected(&mut following).await;
    publisher.subscribed_times(3).await;
    publisher.send_live(batch(0, 3)).await;
    let record = following.until(|record| record.held == [3]).await;
    assert_eq!(record.clears, 1, "something was missed");
    reconnected(&mut following).await;
    publisher.subscribed_times(4).await;
    publisher.send_live(batch(1, 2)).await;
    let record = following.until(|record| record.held == [1002]).await;
    assert_eq!(record.clears, 2, "another process");
    following.end().await;
}

#[tokio::test]
async fn batches_of_another_rank_are_not_this_ones_where_each_has_a_source() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::source(Source {
        rank: 1,
        one_of_several: true,
        ..publisher.source()
    });
    let record = following.until(|record| record.absent().is_some()).await;
    let cause = record.absent().expect("cause");
    assert!(cause.contains("rank 0, not of rank 1"), "{cause}");
    publisher.publish(batch(0, 3)).await;
    publisher.publish(batch(0, 4)).await;
    let (live, replay) = publisher.stop().await;
    // The configuration was mended: what comes now names no rank.
    let _publisher = Publisher::start_at(
        &live,
        &replay,
        Script {
            ring: vec![clear_batch(0)],
            ..Script::default()
        },
    )
    .await;
    let record = following.live_with([]).await;
    assert_eq!(record.held, Vec::<u64>::new());
    following.end().await;
}

#[tokio::test]
async fn numbers_that_jump_back_and_forth_are_those_of_several_publishers() {
    let publisher = Publisher::start(Script::default()).await;
    let mut following = Following::of(&publisher);
    following.live_with([]).await;
    for n in 0..4 {
        publisher.send_live(batch(0, 10 + n)).await;
        publisher.send_live(batch(1, n)).await;
    }
    let record = following.until(|record| record.absent().is_some()).await;
    assert!(record.absent().expect("cause").contains("back and forth"));
    assert_eq!(record.held, Vec::<u64>::new());
    following.end().await;
}

#[tokio::test]
async fn a_publisher_that_is_not_to_be_had_says_what_to_set() {
    let advice = "set endpoint to tcp://*:1".to_owned();
    let source = Source {
        live: "tcp://127.0.0.1:1".to_owned(),
        known: true,
        advice: Some(advice.clone()),
        ..Source::default()
    };
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(50));
    let record = following.until(|record| record.absent().is_some()).await;
    let cause = record.absent().expect("cause");
    assert!(cause.ends_with(&advice), "{cause}");
    following.end().await;
}

#[tokio::test]
async fn a_subscriber_that_is_slower_than_the_engine_holds_a_bounded_part_and_replays_the_rest() {
    const BATCHES: u64 = 3_000;
    let script = Script {
        held_back: true,
        ..ring(0, 0..1)
    };
    let mut publisher = Publisher::start(script).await;
    let mut following = Following::with_timeouts(publisher.source(), DEADLINE, DEADLINE);
    publisher.subscribed().await;
    publisher.asked_times(1).await;
    // Nobody reads while the replay does not come, beyond what may be set aside: 100 MB are more
    // than that and the buffers between hold, so the publisher drops some, as real ones do.
    let topic = Bytes::from(vec![b'x'; 32 << 10]);
    let mut dropped = false;
    for seq in 1..BATCHES {
        let (seq, payload) = batch(0, seq);
        publisher.script(|script| script.ring.push((seq, payload.clone())));
        let number = Bytes::copy_from_slice(&seq.to_be_bytes());
        dropped |= !publisher.send_or_drop(vec![topic.clone(), number, payload]);
        tokio::task::yield_now().await;
    }
    assert!(dropped);
    publisher.script(|script| script.held_back = false);
    publisher.publish(batch(0, BATCHES)).await;
    let record = following.live_with(0..=BATCHES).await;
    assert_eq!(record.clears, 0);
    following.end().await;
}
