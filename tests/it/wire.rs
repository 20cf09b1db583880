//! The ext-proc server with a made-up pick behind it and a gRPC client, over real sockets, in front of it.

mod conformance;
mod exchanges;
mod gateway;
mod health;
mod lifecycle;
mod limits;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use warmpath::extproc::exchange::{BodyMode, TestHeaders};
use warmpath::extproc::pick::{Flight, Pick, Rejection, RequestBody, RequestHead, Usage};
use warmpath::extproc::server::{self, Security, Settings};
use warmpath::metrics::wire::WireMetrics;

use crate::support::waiting::{PATIENCE, until};

const DESTINATION: &str = "10.0.0.1:8000";

/// What the pick was asked and its flight was told.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Asked(RequestHead, Seen),
    Started(u16),
    ServedBy(SocketAddr),
    FirstData,
    Usage(Usage),
    Completed,
    NoResponsePhase,
    Dropped,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Unseen,
    Whole(Vec<u8>),
    Partial(Vec<u8>),
}

/// How the made-up pick behaves.
#[derive(Clone, Debug)]
enum Behaviour {
    Choose,
    Refuse(Rejection),
    /// Never answers when it is shown a body.
    HangOnBodies,
    /// Never answers.
    Hang,
}

struct FakePick {
    behaviour: Behaviour,
    events: mpsc::UnboundedSender<Event>,
}

impl Pick for FakePick {
    type Flight = FakeFlight;

    async fn pick(&self, head: RequestHead, body: RequestBody) -> Result<FakeFlight, Rejection> {
        let seen = match body {
            RequestBody::Unseen => Seen::Unseen,
            RequestBody::Whole(bytes) => Seen::Whole(bytes.to_vec()),
            RequestBody::Partial(bytes) => Seen::Partial(bytes.to_vec()),
        };
        let unseen = seen == Seen::Unseen;
        self.events.send(Event::Asked(head, seen)).ok();
        match &self.behaviour {
            Behaviour::Choose => {}
            Behaviour::HangOnBodies if unseen => {}
            Behaviour::HangOnBodies | Behaviour::Hang => std::future::pending().await,
            Behaviour::Refuse(rejection) => return Err(rejection.clone()),
        }
        Ok(FakeFlight(Some(self.events.clone())))
    }
}

struct FakeFlight(Option<mpsc::UnboundedSender<Event>>);

impl FakeFlight {
    fn tell(&self, event: Event) {
        if let Some(events) = &self.0 {
            events.send(event).ok();
        }
    }
}

impl Flight for FakeFlight {
    fn destination(&self) -> &str {
        DESTINATION
    }
    fn response_started(&mut self, status: u16) {
        self.tell(Event::Started(status));
    }
    fn served_by(&mut self, address: SocketAddr) {
        self.tell(Event::ServedBy(address));
    }
    fn first_data(&mut self) {
        self.tell(Event::FirstData);
    }
    fn usage(&mut self, usage: Usage) {
        self.tell(Event::Usage(usage));
    }
    fn completed(&mut self) {
        self.tell(Event::Completed);
    }
    fn no_response_phase(mut self) {
        self.tell(Event::NoResponsePhase);
        self.0 = None;
    }
}

impl Drop for FakeFlight {
    fn drop(&mut self) {
        self.tell(Event::Dropped);
    }
}

/// A server on a port of its own.
struct Harness {
    address: SocketAddr,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
    events: mpsc::UnboundedReceiver<Event>,
    registry: Registry,
    tasks: JoinSet<anyhow::Result<()>>,
}

fn settings() -> Settings {
    Settings {
        max_body_bytes: 8 * 1024 * 1024,
        max_exchanges: 100,
        max_buffered_bytes: 64 * 1024 * 1024,
        default_body_mode: BodyMode::FullDuplexStreamed,
        pick_timeout: PATIENCE,
        body_timeout: PATIENCE,
        test_headers: TestHeaders::Ignored,
    }
}

impl Harness {
    async fn start() -> Self {
        Self::with(Behaviour::Choose, settings(), Security::Plain).await
    }

    async fn with(behaviour: Behaviour, settings: Settings, security: Security) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ready, readiness) = watch::channel(true);
        let (sender, events) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let registry = Registry::new();
        let metrics = Arc::new(WireMetrics::register(&registry).unwrap());
        let pick = Arc::new(FakePick {
            behaviour,
            events: sender,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(server::serve(
            listener,
            security,
            settings,
            pick,
            readiness,
            metrics,
            stop.clone(),
        ));
        Self {
            address,
            ready,
            stop,
            events,
            registry,
            tasks,
        }
    }

    async fn event(&mut self) -> Event {
        timeout(PATIENCE, self.events.recv())
            .await
            .expect("an event in time")
            .expect("the server lives")
    }

    /// The next event is a pick; these are the head and the body it was shown.
    async fn asked(&mut self) -> (RequestHead, Seen) {
        match self.event().await {
            Event::Asked(head, seen) => (head, seen),
            other => panic!("not a pick: {other:?}"),
        }
    }

    /// A counter's or gauge's value, by name and the value of its one label, if it has one.
    fn metric(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap_or_else(|| panic!("no metric {name}"));
        let metric = family
            .get_metric()
            .iter()
            .find(|metric| label == metric.get_label().first().map(|label| label.value()))
            .unwrap_or_else(|| panic!("no {label:?} in {name}"));
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }

    /// Waits until a metric has a value: it changes a moment after the client sees its cause.
    async fn await_metric(&self, name: &str, label: Option<&str>, value: f64) {
        until(&format!("{name} {label:?} is {value}"), async || {
            (self.metric(name, label) == value).then_some(())
        })
        .await;
    }
}
