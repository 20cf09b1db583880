//! The order of leaving, in virtual time.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::*;

type Diary = Arc<Mutex<Vec<(&'static str, u64)>>>;

const DRAIN: Drain = Drain {
    delay: Duration::from_secs(5),
    timeout: Duration::from_secs(30),
};

/// Stages whose streams take `stream` to end after accepting stopped.
fn stages(stream: Duration, diary: &Diary, began: Instant) -> Stages {
    let (accepting, rest) = (CancellationToken::new(), CancellationToken::new());
    let mut front = Tasks::default();
    let mut others = Tasks::default();
    let note = {
        let diary = Arc::clone(diary);
        move |what| diary.lock().push((what, began.elapsed().as_secs()))
    };
    let (stop, write) = (accepting.clone(), note.clone());
    front.spawn("server", async move {
        stop.cancelled().await;
        write("accepts no more");
        sleep(stream).await;
        write("streams ended");
        Ok(())
    });
    let stop = rest.clone();
    others.spawn("feeds", async move {
        stop.cancelled().await;
        note("feeds ended");
        Ok(())
    });
    Stages {
        front,
        accepting,
        others,
        rest,
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_is_not_ready_then_accepting_no_more_then_streams_then_the_rest() {
    let (diary, began) = (Diary::default(), Instant::now());
    let (send, signals) = mpsc::channel(2);
    let readiness = Readiness::new();
    let ready = readiness.watch();
    send.send(()).await.unwrap();
    let stages = stages(Duration::from_secs(10), &diary, began);
    let running = stages.run(DRAIN, &readiness, signals);
    let watching = async {
        sleep(Duration::from_secs(1)).await;
        assert!(!*ready.borrow());
        assert!(diary.lock().is_empty(), "it must still accept");
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    assert_eq!(
        *diary.lock(),
        [
            ("accepts no more", 5),
            ("streams ended", 15),
            ("feeds ended", 15)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn streams_that_do_not_end_are_cut_off_at_the_timeout() {
    let (diary, began) = (Diary::default(), Instant::now());
    let (send, signals) = mpsc::channel(2);
    send.send(()).await.unwrap();
    let stages = stages(Duration::from_secs(1_000), &diary, began);
    stages.run(DRAIN, &Readiness::new(), signals).await.unwrap();
    assert_eq!(*diary.lock(), [("accepts no more", 5), ("feeds ended", 35)]);
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_aborts_with_an_error() {
    let (diary, began) = (Diary::default(), Instant::now());
    let (send, signals) = mpsc::channel(2);
    send.send(()).await.unwrap();
    let stages = stages(Duration::ZERO, &diary, began);
    let readiness = Readiness::new();
    let again = async {
        sleep(Duration::from_secs(1)).await;
        send.send(()).await.unwrap();
    };
    let (ended, ()) = tokio::join!(stages.run(DRAIN, &readiness, signals), again);
    assert_eq!(ended.unwrap_err().to_string(), "aborted by a second signal");
    assert_eq!(began.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn two_signals_at_once_are_one_wish_and_do_not_abort() {
    let (diary, began) = (Diary::default(), Instant::now());
    let (send, signals) = mpsc::channel(2);
    send.send(()).await.unwrap();
    send.send(()).await.unwrap();
    let stages = stages(Duration::ZERO, &diary, began);
    stages.run(DRAIN, &Readiness::new(), signals).await.unwrap();
    assert_eq!(diary.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_or_panics_by_itself_ends_the_process_with_its_name() {
    for panics in [false, true] {
        let mut stages = stages(Duration::ZERO, &Diary::default(), Instant::now());
        stages.others.spawn("doomed", async move {
            assert!(!panics, "as it must");
            Ok(())
        });
        let (_send, signals) = mpsc::channel(1);
        let error = stages
            .run(DRAIN, &Readiness::new(), signals)
            .await
            .unwrap_err();
        assert!(format!("{error:#}").starts_with("the doomed "), "{error:#}");
    }
}
