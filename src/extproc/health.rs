//! May a gateway send us requests, and does the process live? The gRPC health service, straight from the readiness
//! channel: no task of its own, and `Watch` ends with the server so that it holds up no drain.

use std::pin::Pin;

use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Names that probes and gateways ask for; all but `liveness` follow readiness. A process that answers is alive:
/// liveness must not restart a picker because a pool is missing.
const LIVENESS: &str = "liveness";
const READINESS: [&str; 4] = [
    "",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
];

/// Answers health checks.
#[derive(Clone, Debug)]
pub(super) struct HealthService {
    ready: watch::Receiver<bool>,
    stop: CancellationToken,
}

impl HealthService {
    /// Follows `ready`; watches end at `stop`.
    pub(super) fn new(ready: watch::Receiver<bool>, stop: CancellationToken) -> Self {
        Self { ready, stop }
    }

    fn status(&self, service: &str) -> ServingStatus {
        if service == LIVENESS {
            ServingStatus::Serving
        } else if !READINESS.contains(&service) {
            ServingStatus::ServiceUnknown
        } else if *self.ready.borrow() {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("unknown service")),
            status => Ok(Response::new(response(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = Watcher {
            health: self.clone(),
            service: request.into_inner().service,
            last: None,
        };
        let statuses = stream::unfold(watcher, |mut watcher| async move {
            let status = watcher.next().await?;
            Some((Ok(response(status)), watcher))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}

struct Watcher {
    health: HealthService,
    service: String,
    last: Option<ServingStatus>,
}

impl Watcher {
    /// The next status that differs from the last; `None` at `stop`.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            self.health.ready.mark_unchanged();
            let status = self.health.status(&self.service);
            if self.last != Some(status) {
                self.last = Some(status);
                return Some(status);
            }
            tokio::select! {
                () = self.health.stop.cancelled() => return None,
                changed = self.health.ready.changed() => if changed.is_err() {
                    // Whoever decided is gone; the last word holds until the server stops.
                    self.health.stop.cancelled().await;
                    return None;
                },
            }
        }
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}
