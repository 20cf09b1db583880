//! Claims about each fault of the events: it does what its name says, and no more.

use super::*;

/// Types and hashes of a batch's events.
fn events(payload: &Bytes) -> Vec<(String, Vec<u64>)> {
    let batch = unpack(&mut payload.as_ref());
    let event = |event: &Value| {
        let kind = event["type"].as_str().unwrap().to_owned();
        (kind, numbers(&event["block_hashes"]))
    };
    batch[1].as_array().unwrap().iter().map(event).collect()
}

fn kinds(payload: &Bytes) -> Vec<String> {
    events(payload).into_iter().map(|(kind, _)| kind).collect()
}

async fn silent(socket: &mut SubSocket) {
    let silence = tokio::time::timeout(Duration::from_millis(100), socket.recv()).await;
    assert!(silence.is_err(), "{silence:?}");
}

async fn replayed(engine: &Running) -> Vec<u64> {
    let (batches, _) = replay(engine, 0).await;
    batches.iter().map(|(number, _)| *number).collect()
}

#[tokio::test]
async fn dropped_removals_leave_phantoms_that_a_replay_does_not_mend() {
    let engine = engine(&["--kv-blocks", "40", "--fault", "drop-removals=3"]).await;
    for family in 0..15 {
        ask(&engine, family).await;
    }
    let (batches, _) = replay(&engine, 0).await;
    let mut believed = cache_after(batches.iter().map(|(_, payload)| payload));
    for (hash, copies) in dumped(&engine).await {
        assert_eq!(believed.remove(&hash), Some(copies));
    }
    assert_eq!(believed.len(), 3);
}

#[tokio::test]
async fn dropped_stores_are_in_no_batch() {
    let engine = engine(&["--fault", "drop-stores=1"]).await;
    for family in 0..3 {
        ask(&engine, family).await;
    }
    let (batches, _) = replay(&engine, 0).await;
    let believed = cache_after(batches.iter().map(|(_, payload)| payload));
    let cached = dumped(&engine).await;
    assert_eq!((believed.len(), cached.len()), (8, 12));
    assert!(believed.keys().all(|hash| cached.contains_key(hash)));
    assert!(batches.iter().map(|(number, _)| *number).eq(0..2));
}

#[tokio::test]
async fn a_garbage_batch_cannot_be_read_but_is_replayed_whole() {
    let engine = engine(&[]).await;
    let mut live = subscribe(&engine).await;
    engine.set_fault(Fault::GarbageBatch(1));
    ask(&engine, 0).await;
    ask(&engine, 1).await;
    let garbage = receive(&mut live).await.unwrap();
    assert!(rmp::decode::read_array_len(&mut garbage[2].as_ref()).is_err());
    let sound = receive(&mut live).await.unwrap();
    let (batches, _) = replay(&engine, seq(&garbage[1])).await;
    assert_eq!(kinds(&batches[0].1), ["BlockStored"]);
    assert_eq!(batches[1].1, sound[2]);
}

#[tokio::test]
async fn an_odd_event_stands_before_the_others_of_its_batch() {
    let engine = engine(&["--fault", "odd-event=1"]).await;
    ask(&engine, 0).await;
    ask(&engine, 1).await;
    let (batches, _) = replay(&engine, 0).await;
    let seen: Vec<_> = batches.iter().map(|(_, payload)| kinds(payload)).collect();
    assert_eq!(
        seen,
        [vec!["BlockTranscoded", "BlockStored"], vec!["BlockStored"]]
    );
}

#[tokio::test]
async fn batches_come_twice_or_in_the_wrong_order_when_told() {
    let engine = engine(&[]).await;
    let mut live = subscribe(&engine).await;
    ask(&engine, 0).await;
    let before = live_seq(&mut live).await;
    engine.set_fault(Fault::DuplicateBatch);
    ask(&engine, 1).await;
    let twice = [live_seq(&mut live).await, live_seq(&mut live).await];
    assert_eq!(twice, [before + 1; 2]);
    engine.clear_faults();
    engine.set_fault(Fault::Reorder);
    ask(&engine, 2).await;
    silent(&mut live).await;
    ask(&engine, 3).await;
    let swapped = [live_seq(&mut live).await, live_seq(&mut live).await];
    assert_eq!(swapped, [before + 3, before + 2]);
    ask(&engine, 4).await;
    silent(&mut live).await;
    // Whoever was to be overtaken goes when nobody will.
    engine.clear_faults();
    assert_eq!(live_seq(&mut live).await, before + 4);
}

#[tokio::test]
async fn a_slow_publisher_is_late_for_live_and_replayed_events() {
    let engine = engine(&[]).await;
    let mut live = subscribe(&engine).await;
    let before = replayed(&engine).await;
    engine.set_fault(Fault::SlowPublish(Duration::from_millis(300)));
    ask(&engine, 0).await;
    let asked = std::time::Instant::now();
    silent(&mut live).await;
    assert_eq!(replayed(&engine).await, before);
    live_seq(&mut live).await;
    assert!(asked.elapsed() >= Duration::from_millis(200));
    assert_eq!(replayed(&engine).await.len(), before.len() + 1);
}

#[tokio::test]
async fn held_events_leave_in_order_at_last_and_a_full_queue_of_them_stops_the_engine() {
    let engine = engine(&["--kv-max-queue-size", "2"]).await;
    let mut live = subscribe(&engine).await;
    ask(&engine, 0).await;
    let before = live_seq(&mut live).await;
    engine.set_fault(Fault::HoldEvents);
    ask(&engine, 1).await;
    ask(&engine, 2).await;
    let third = ask(&engine, 3);
    tokio::pin!(third);
    let blocked = tokio::time::timeout(Duration::from_millis(100), &mut third).await;
    assert!(blocked.is_err());
    silent(&mut live).await;
    engine.clear_faults();
    third.await;
    for number in 1..=3 {
        assert_eq!(live_seq(&mut live).await, before + number);
    }
}

#[tokio::test]
async fn a_half_open_publisher_sends_nothing_on_connections_that_last() {
    let engine = engine(&[]).await;
    let mut live = subscribe(&engine).await;
    let before = replayed(&engine).await;
    engine.set_fault(Fault::HalfOpen);
    ask(&engine, 0).await;
    silent(&mut live).await;
    assert_eq!(replayed(&engine).await.len(), before.len() + 1);
    engine.clear_faults();
    ask(&engine, 1).await;
    assert_eq!(live_seq(&mut live).await, before.len() as u64 + 1);
}

#[tokio::test]
async fn a_replay_loses_batches_from_its_middle_when_told() {
    let engine = engine(&["--fault", "lose-replay-batches"]).await;
    for family in 0..6 {
        ask(&engine, family).await;
    }
    assert_eq!(replayed(&engine).await, [0, 1, 4, 5]);
    engine.clear_faults();
    assert_eq!(replayed(&engine).await, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_cache_that_is_reset_or_asleep_says_so_with_the_next_step() {
    for fault in [Fault::ResetWithoutEvent, Fault::Sleep] {
        let engine = engine(&[]).await;
        ask(&engine, 0).await;
        engine.set_fault(fault);
        while !dumped(&engine).await.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(replayed(&engine).await, [0], "{fault}");
        let again = ask(&engine, 0);
        if fault == Fault::Sleep {
            engine.clear_faults();
        }
        again.await;
        let (batches, _) = replay(&engine, 1).await;
        assert_eq!(
            kinds(&batches[0].1),
            ["AllBlocksCleared", "BlockStored"],
            "{fault}"
        );
        assert_eq!(dumped(&engine).await.len(), 4);
    }
}
