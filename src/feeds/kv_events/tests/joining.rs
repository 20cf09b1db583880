//! Coming to an engine: fresh, warm, idle, odd, or not there at all.

use super::*;

#[tokio::test]
async fn a_warm_engine_is_replayed_and_then_followed() {
    let publisher = Publisher::start(ring(0, 0..5)).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..5).await;
    publisher.publish(batch(0, 5)).await;
    publisher.publish(batch(0, 6)).await;
    let record = following.live_with(0..7).await;
    assert_eq!(record.clears, 0);
    assert_eq!(publisher.asked(), [0]);
    assert_eq!(following.count("warmpath_kv_event_batches_total"), 7);
    assert_eq!(following.count("warmpath_kv_event_gaps_total"), 0);
    following.end().await;
}

#[tokio::test]
async fn replies_without_topic_are_read_as_well() {
    let script = Script {
        with_topic: false,
        ..ring(0, 0..5)
    };
    let publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..5).await;
    following.end().await;
}

#[tokio::test]
async fn an_idle_engine_that_never_stored_anything_is_live() {
    let publisher = Publisher::start(Script::default()).await;
    let mut following = Following::of(&publisher);
    following.live_with([]).await;
    publisher.publish(batch(0, 0)).await;
    following.live_with([0]).await;
    following.end().await;
}

#[tokio::test]
async fn live_batches_that_come_during_the_replay_are_applied_once_and_after_it() {
    let script = Script {
        held_back: true,
        ..ring(0, 0..4)
    };
    let mut publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    publisher.subscribed().await;
    publisher.asked_times(1).await;
    for seq in 2..4 {
        publisher.send_live(batch(0, seq)).await;
    }
    publisher.publish(batch(0, 4)).await;
    publisher.send_live(batch(0, 5)).await;
    publisher.script(|script| script.held_back = false);
    let record = following.live_with(0..6).await;
    assert_eq!(record.clears, 0);
    following.end().await;
}

#[tokio::test]
async fn a_lost_end_marker_is_only_a_delay() {
    let script = Script {
        no_marker: true,
        ..ring(0, 0..5)
    };
    let publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    following.live_with(0..5).await;
    publisher.publish(batch(0, 5)).await;
    let record = following.live_with(0..6).await;
    assert_eq!(record.clears, 0);
    following.end().await;
}

#[tokio::test]
async fn a_reply_that_breaks_off_is_resumed_from_the_last_number() {
    let script = Script {
        at_most: Some(3),
        ..ring(0, 0..6)
    };
    let publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    let record = following.live_with(0..6).await;
    assert_eq!(record.clears, 0);
    // 0, 1, 2 | 2, 3, 4 | 4, 5 and the marker.
    assert_eq!(publisher.asked(), [0, 2, 4]);
    following.end().await;
}

#[tokio::test]
async fn a_ring_that_begins_above_zero_leaves_the_view_incomplete_until_a_clear() {
    let publisher = Publisher::start(ring(0, 10..13)).await;
    let mut following = Following::of(&publisher);
    let record = following
        .until(|record| record.incomplete().is_some() && record.held == [10, 11, 12])
        .await;
    assert!(record.incomplete().expect("cause").contains("batch 10"));
    publisher.publish(clear_batch(13)).await;
    following.live_with([]).await;
    following.end().await;
}

#[tokio::test]
async fn a_hole_in_the_ring_is_asked_for_again_and_then_given_up() {
    let publisher = Publisher::start(ring(0, [0, 1, 2, 5, 6])).await;
    let mut following = Following::of(&publisher);
    let record = following
        .until(|record| record.incomplete().is_some() && record.held == [5, 6])
        .await;
    assert!(record.incomplete().expect("cause").contains("3 to 4"));
    assert_eq!(record.clears, 1);
    assert_eq!(publisher.asked(), [0, 2]);
    following.end().await;
}

#[tokio::test]
async fn no_replay_answer_is_said_and_live_batches_are_applied_all_the_same() {
    let script = Script {
        mute: true,
        ..ring(0, 0..3)
    };
    let publisher = Publisher::start(script).await;
    let mut following = Following::of(&publisher);
    let record = following
        .until(|record| record.incomplete().is_some())
        .await;
    let cause = record.incomplete().expect("cause");
    assert!(cause.contains("no replay answer"), "{cause}");
    assert!(cause.contains(&publisher.replay), "{cause}");
    publisher.publish(batch(0, 3)).await;
    let record = following.until(|record| record.held == [3]).await;
    assert!(record.incomplete().is_some());
    following.end().await;
}

#[tokio::test]
async fn a_replay_socket_that_did_not_answer_is_asked_again_until_the_view_is_whole() {
    let script = Script {
        mute: true,
        ..ring(0, 0..3)
    };
    let mut publisher = Publisher::start(script).await;
    let source = publisher.source();
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(50));
    publisher.subscribed().await;
    publisher.publish(batch(0, 3)).await;
    following
        .until(|record| record.held == [3] && record.incomplete().is_some())
        .await;
    publisher.script(|script| script.mute = false);
    following.live_with(0..4).await;
    following.end().await;
}

#[tokio::test]
async fn a_late_replay_that_knows_no_more_than_we_do_changes_nothing() {
    let script = Script {
        mute: true,
        ..ring(0, 3..4)
    };
    let mut publisher = Publisher::start(script).await;
    let source = publisher.source();
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(50));
    publisher.subscribed().await;
    publisher.send_live(batch(0, 3)).await;
    following.until(|record| record.held == [3]).await;
    publisher.script(|script| script.mute = false);
    let record = following
        .until(|record| {
            record
                .incomplete()
                .is_some_and(|cause| cause.contains("batch 3"))
        })
        .await;
    assert_eq!((record.held, record.clears), (vec![3], 0));
    following.end().await;
}

#[tokio::test]
async fn without_a_replay_socket_the_very_first_batch_makes_it_whole() {
    let mut publisher = Publisher::start(Script::default()).await;
    let mut following = Following::without_replay(&publisher);
    following
        .until(|record| record.incomplete().is_some())
        .await;
    publisher.subscribed().await;
    publisher.send_live(batch(0, 0)).await;
    following.live_with([0]).await;
    following.end().await;
}

#[tokio::test]
async fn a_guess_that_finds_nobody_is_absent_and_comes_alive_when_somebody_appears() {
    // A port that was free a moment ago.
    let (live, replay) = Publisher::start(Script::default()).await.stop().await;
    let source = Source {
        rank: 0,
        live: live.clone(),
        replay: Some(replay.clone()),
        known: false,
        ..Source::default()
    };
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(50));
    let record = following.until(|record| record.absent().is_some()).await;
    let cause = record.absent().expect("cause");
    assert!(cause.contains(&live) && cause.contains(&replay), "{cause}");
    let publisher = Publisher::start_at(&live, &replay, ring(0, 0..2)).await;
    following.live_with(0..2).await;
    publisher.publish(batch(0, 2)).await;
    following.live_with(0..3).await;
    following.end().await;
}

#[tokio::test]
async fn a_guess_that_connects_but_never_speaks_is_absent_until_it_does() {
    let script = Script {
        mute: true,
        ..Script::default()
    };
    let mut publisher = Publisher::start(script).await;
    let source = Source {
        known: false,
        ..publisher.source()
    };
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(50));
    let record = following.until(|record| record.absent().is_some()).await;
    assert!(record.absent().expect("cause").contains("no replay answer"));
    publisher.subscribed().await;
    publisher.send_live(batch(0, 7)).await;
    let record = following.until(|record| record.held == [7]).await;
    drop(record);
    following
        .until(|record| record.incomplete().is_some())
        .await;
    following.end().await;
}

#[tokio::test]
async fn a_port_that_speaks_something_else_is_no_event_source() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bind");
    let live = format!("tcp://{}", listener.local_addr().expect("address"));
    let mut servers = JoinSet::new();
    servers.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer =
                b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
            // The client may have hung up already.
            drop(tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await);
        }
    });
    let source = Source {
        rank: 0,
        live: live.clone(),
        replay: None,
        known: true,
        ..Source::default()
    };
    let mut following = Following::with_guess_timeout(source, Duration::from_millis(50));
    let record = following.until(|record| record.absent().is_some()).await;
    assert!(record.absent().expect("cause").contains(&live));
    following.end().await;
}

#[tokio::test]
async fn stopping_ends_it_in_the_middle_of_a_replay_and_takes_its_series_away() {
    let script = Script {
        held_back: true,
        ..ring(0, 0..2)
    };
    let publisher = Publisher::start(script).await;
    let following = Following::of(&publisher);
    publisher.asked_times(1).await;
    let registry = following.registry.clone();
    following.end().await;
    let families = registry.gather();
    assert!(
        !families
            .iter()
            .any(|family| family.name() == "warmpath_kv_event_batches_total")
    );
}

#[tokio::test]
async fn batches_that_make_no_sense_are_counted_and_the_rest_is_applied() {
    let publisher = Publisher::start(ring(0, 0..1)).await;
    let mut following = Following::of(&publisher);
    following.live_with([0]).await;
    // No number at all.
    publisher.send_raw(vec![Bytes::from_static(b"x")]).await;
    // No batch.
    publisher
        .publish((1, Bytes::from_static(b"\xa4LOAD")))
        .await;
    publisher.publish(batch(0, 2)).await;
    // What the batch took out of the cache is not known, so nothing of before is believed any more.
    let record = following.until(|record| record.held == [2]).await;
    assert!(record.incomplete().expect("cause").contains("batch 1"));
    // The one without a number, and the other as it came live and as the ring has it.
    assert_eq!(
        following.count("warmpath_kv_event_batches_unreadable_total"),
        3
    );
    following.end().await;
}

#[tokio::test]
async fn a_batch_that_cannot_be_read_may_be_whole_in_the_ring() {
    let publisher = Publisher::start(ring(0, 0..1)).await;
    let mut following = Following::of(&publisher);
    following.live_with([0]).await;
    publisher.script(|script| script.ring.push(batch(0, 1)));
    publisher.send_live((1, Bytes::from_static(b"\xc1"))).await;
    publisher.publish(batch(0, 2)).await;
    following.live_with(0..3).await;
    let unreadable = following.count("warmpath_kv_event_batches_unreadable_total");
    assert_eq!(unreadable, 1);
    following.end().await;
}

#[tokio::test]
async fn a_batch_of_another_rank_is_counted() {
    let publisher = Publisher::start(ring(0, 0..3)).await;
    let mut following = Following::source(Source {
        rank: 1,
        ..publisher.source()
    });
    following.live_with(0..3).await;
    assert_eq!(
        following.count("warmpath_kv_event_rank_mismatches_total"),
        3
    );
    following.end().await;
}

#[tokio::test]
async fn an_engine_of_which_no_batch_can_be_read_is_not_asked_for_each_of_them_again() {
    let publisher = Publisher::start(ring(0, 0..1)).await;
    let mut following = Following::of(&publisher);
    following.live_with([0]).await;
    for seq in 1..20 {
        publisher.publish((seq, Bytes::from_static(b"\xc1"))).await;
        let unreadable = || following.count("warmpath_kv_event_batches_unreadable_total") >= seq;
        while !unreadable() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let record = following
        .until(|record| record.incomplete().is_some())
        .await;
    assert!(
        publisher.asked().len() <= 3,
        "replays: {:?}",
        publisher.asked()
    );
    assert!(record.feeds.len() <= 6, "told: {:?}", record.feeds);
    // As soon as there is something to read, it is taken.
    publisher.publish(batch(0, 20)).await;
    following.until(|record| record.held == [20]).await;
    following.end().await;
}

#[tokio::test]
async fn a_batch_that_could_not_be_asked_for_again_is_taken_from_the_ring_once_that_answers() {
    let publisher = Publisher::start(ring(0, 0..1)).await;
    let source = publisher.source();
    let brief = Duration::from_millis(50);
    let mut following = Following::with_timeouts(source, Duration::from_millis(200), brief);
    following.live_with([0]).await;
    publisher.script(|script| {
        script.mute = true;
        script.ring.push(batch(0, 1));
    });
    publisher.send_live((1, Bytes::from_static(b"\xc1"))).await;
    following
        .until(|record| record.incomplete().is_some() && record.held.is_empty())
        .await;
    publisher.script(|script| script.mute = false);
    following.live_with(0..2).await;
    following.end().await;
}
