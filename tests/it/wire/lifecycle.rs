//! Stopping: nothing new comes in, what is in flight runs to its end.

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::gateway::*;
use super::{Event, Harness, PATIENCE};

#[tokio::test]
async fn a_stream_in_flight_ends_in_its_own_time_after_stop() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(post()).await;
    exchange.send(request_body("{}", true)).await;
    exchange.request_headers().await;
    exchange.chunk().await;
    harness.asked().await;

    harness.stop.cancel();
    // The listener closes at once.
    let refused = async {
        while TcpStream::connect(harness.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, refused).await.unwrap();

    let json = [(":status", "200"), ("content-type", "application/json")];
    exchange.send(response_headers(&json, false)).await;
    exchange.answer().await;
    exchange.send(response_body("{}", true)).await;
    assert_eq!(exchange.chunk().await.unwrap(), ("{}".into(), true));
    assert!(
        harness.tasks.try_join_next().is_none(),
        "it waits for the stream"
    );
    exchange.close().await;
    for expected in [
        Event::Started(200),
        Event::FirstData,
        Event::Completed,
        Event::Dropped,
    ] {
        assert_eq!(harness.event().await, expected);
    }
    let ended = timeout(PATIENCE, harness.tasks.join_next()).await.unwrap();
    ended.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_server_stops_at_once() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(get()).await;
    exchange.request_headers().await;
    exchange.close().await;
    harness.stop.cancel();
    let ended = timeout(PATIENCE, harness.tasks.join_next()).await.unwrap();
    ended.unwrap().unwrap().unwrap();
}
