//! Claims about where an engine listens for subscribers, and where it does not.

use super::*;

/// Whether anybody listens at `tcp://host:port`.
async fn listens(address: &str) -> bool {
    let address = address.strip_prefix("tcp://").unwrap();
    tokio::net::TcpStream::connect(address).await.is_ok()
}

async fn get(engine: &Running, path: &str) -> Value {
    let url = format!("http://{}{path}", engine.http());
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn events_published_nowhere_are_kept_for_replay_and_can_be_had_again() {
    let engine = engine(&["--fault", "publish-nowhere"]).await;
    let address = engine.kv_events().unwrap().to_owned();
    assert!(!listens(&address).await);
    ask(&engine, 0).await;
    assert_eq!(replay(&engine, 0).await.0.len(), 1);
    engine.clear_faults();
    while !listens(&address).await {
        tokio::task::yield_now().await;
    }
    let mut live = SubSocket::new();
    live.connect(&address).await.unwrap();
    engine.set_fault(Fault::PublishNowhere);
    while listens(&address).await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_vllm_told_0_0_0_0_publishes_to_nobody_and_tells_the_address_as_configured() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let configured = format!("tcp://0.0.0.0:{port}");
    let engine = engine(&["--kv-events", &configured]).await;
    assert!(!listens(&format!("tcp://127.0.0.1:{port}")).await);
    let sources = get(&engine, "/kv_event_sources").await;
    assert_eq!(sources["0"]["endpoint"], configured);
    ask(&engine, 0).await;
    assert_eq!(replay(&engine, 0).await.0.len(), 1);
}
