//! gRPC health on both ports.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use warmpath::extproc::server;

use super::gateway::connect;
use super::{Harness, PATIENCE};

const READINESS: [&str; 4] = [
    "",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
];

fn ask(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

async fn check(address: SocketAddr, service: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(connect(address).await);
    let answer = client
        .check(ask(service))
        .await
        .map_err(|status| status.code())?;
    Ok(answer.into_inner().status())
}

/// The ext-proc port and the health port of one server.
async fn both(harness: &mut Harness) -> [SocketAddr; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let readiness = harness.ready.subscribe();
    let stop = harness.stop.clone();
    harness
        .tasks
        .spawn(server::serve_health(listener, readiness, stop));
    [harness.address, address]
}

#[tokio::test]
async fn every_name_but_liveness_follows_readiness() {
    let mut harness = Harness::start().await;
    for address in both(&mut harness).await {
        for (ready, status) in [
            (true, ServingStatus::Serving),
            (false, ServingStatus::NotServing),
        ] {
            harness.ready.send_replace(ready);
            for service in READINESS {
                assert_eq!(check(address, service).await, Ok(status), "{service}");
            }
            assert_eq!(check(address, "liveness").await, Ok(ServingStatus::Serving));
        }
        assert_eq!(check(address, "nonsense").await, Err(Code::NotFound));
    }
}

#[tokio::test]
async fn watches_see_changes_and_end_with_the_server() {
    let mut harness = Harness::start().await;
    let mut watches = Vec::new();
    for address in both(&mut harness).await {
        let mut client = HealthClient::new(connect(address).await);
        let mut watch = client.watch(ask("readiness")).await.unwrap().into_inner();
        let first = watch.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        watches.push(watch);
    }
    harness.ready.send_replace(false);
    for watch in &mut watches {
        let next = timeout(PATIENCE, watch.message()).await.unwrap();
        assert_eq!(next.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
    harness.stop.cancel();
    for watch in &mut watches {
        let end = timeout(PATIENCE, watch.message()).await.unwrap();
        assert_eq!(end.unwrap(), None);
    }
    while let Some(ended) = timeout(PATIENCE, harness.tasks.join_next()).await.unwrap() {
        ended.unwrap().unwrap();
    }
}
