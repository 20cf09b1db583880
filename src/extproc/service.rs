//! How is an exchange driven? One gRPC stream each, polled by tonic: no task of our own, so that a stream that is reset
//! drops everything it holds, and the [`Flight`] with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::stream::Stream;
use tokio::time::{Sleep, sleep, timeout};
use tonic::{Code, Request, Response, Status, Streaming};

use super::exchange::{Close, End, Exchange, News, Step};
use super::pick::{Destination, Flight, Pick, Rejection, RequestBody, RequestHead};
use super::proto::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use super::proto::envoy::service::ext_proc::v3::{
    ProcessingRequest, ProcessingResponse, processing_request,
};
use super::server::Settings;
use crate::metrics::wire::{Direction, Outcome, Reason, WireMetrics};

/// What all streams share.
pub(super) struct Shared<P> {
    pick: Arc<P>,
    settings: Settings,
    metrics: Arc<WireMetrics>,
    exchanges: AtomicUsize,
    buffered_bytes: AtomicUsize,
}

/// The ext-proc service.
pub(super) struct Service<P>(Arc<Shared<P>>);

impl<P: Pick> Service<P> {
    /// Nothing is in flight.
    pub(super) fn new(pick: Arc<P>, settings: Settings, metrics: Arc<WireMetrics>) -> Self {
        Self(Arc::new(Shared {
            pick,
            settings,
            metrics,
            exchanges: AtomicUsize::new(0),
            buffered_bytes: AtomicUsize::new(0),
        }))
    }
}

#[tonic::async_trait]
impl<P: Pick> ExternalProcessor for Service<P> {
    type ProcessStream = ExchangeStream<P>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let stream = ExchangeStream::open(Arc::clone(&self.0), request.into_inner());
        Ok(Response::new(stream))
    }
}

type Picking<F> = Pin<Box<dyn Future<Output = Result<F, (Reason, String)>> + Send>>;

/// Answers of one exchange.
pub(super) struct ExchangeStream<P: Pick> {
    shared: Arc<Shared<P>>,
    incoming: Streaming<ProcessingRequest>,
    exchange: Exchange,
    picking: Option<Picking<P::Flight>>,
    flight: Option<P::Flight>,
    /// Runs while the rest of a request body is due.
    body_deadline: Option<Pin<Box<Sleep>>>,
    held_bytes: usize,
    /// How the stream ended, once it has.
    outcome: Option<Outcome>,
}

impl<P: Pick> ExchangeStream<P> {
    fn open(shared: Arc<Shared<P>>, incoming: Streaming<ProcessingRequest>) -> Self {
        shared.metrics.stream_opened();
        let settings = &shared.settings;
        let mut exchange = Exchange::new(
            settings.default_body_mode,
            settings.max_body_bytes,
            settings.test_headers,
        );
        let others = shared.exchanges.fetch_add(1, Ordering::Relaxed);
        if others >= settings.max_exchanges {
            exchange.refuse(Reason::Overloaded, "too many requests in flight");
        }
        Self {
            exchange,
            shared,
            incoming,
            picking: None,
            flight: None,
            body_deadline: None,
            held_bytes: 0,
            outcome: None,
        }
    }

    /// Takes a step; an answer goes out.
    fn take(&mut self, step: Step) -> Option<ProcessingResponse> {
        let metrics = &self.shared.metrics;
        match step {
            Step::Answer(answer) => return Some(answer),
            Step::Pick(head, body) => {
                self.body_deadline = None;
                let shared = Arc::clone(&self.shared);
                self.picking = Some(Box::pin(pick(shared, head, body)));
            }
            Step::Tell(news) => {
                if let Some(flight) = &mut self.flight {
                    tell(flight, news);
                }
            }
            Step::Odd(oddity) => metrics.odd(oddity),
            Step::UnparsedSubset(entries) => metrics.unparsed_subset_entries(entries),
            Step::End(reason) => {
                metrics.rejected(reason);
                self.outcome = Some(Outcome::Rejected);
            }
        }
        None
    }

    fn receive(&mut self, message: ProcessingRequest) {
        let body = match &message.request {
            Some(processing_request::Request::RequestBody(body)) => {
                Some((Direction::Request, body.body.len()))
            }
            Some(processing_request::Request::ResponseBody(body)) => {
                Some((Direction::Response, body.body.len()))
            }
            _ => None,
        };
        if let Some((direction, bytes)) = body {
            self.shared.metrics.body(direction, bytes);
            let held = direction == Direction::Request && self.exchange.would_hold_body();
            if held && !self.hold(bytes) {
                let text = "the request bodies in flight are over the picker's memory limit";
                self.exchange.refuse(Reason::Overloaded, text);
                return;
            }
        }
        self.exchange.receive(message);
    }

    /// Books memory for a request body; false when there is none left.
    fn hold(&mut self, bytes: usize) -> bool {
        let total = &self.shared.buffered_bytes;
        let before = total.fetch_add(bytes, Ordering::Relaxed);
        self.held_bytes += bytes;
        before.saturating_add(bytes) <= self.shared.settings.max_buffered_bytes
    }

    fn release(&mut self) {
        let bytes = std::mem::take(&mut self.held_bytes);
        if bytes > 0 {
            self.shared
                .buffered_bytes
                .fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The gateway ends the stream.
    fn closed(&mut self, end: End) -> Outcome {
        match self.exchange.close(end) {
            Close::Completed => Outcome::Completed,
            Close::NoResponsePhase => {
                if let Some(flight) = self.flight.take() {
                    flight.no_response_phase();
                }
                Outcome::NoResponsePhase
            }
            Close::Cancelled => Outcome::Cancelled,
        }
    }

    /// A message could not be read. One that is over the receive limit is a body over the cap in one piece.
    fn broken(&mut self, status: Status) -> Option<Status> {
        if status.code() == Code::OutOfRange && self.exchange.may_refuse() {
            let limit = self.shared.settings.max_body_bytes;
            let text = format!("the request body is over {limit} bytes");
            self.exchange.refuse(Reason::TooLarge, &text);
            return None;
        }
        tracing::debug!(%status, "ext-proc stream broken");
        self.outcome = Some(Outcome::Broken);
        Some(status)
    }

    fn poll_pick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(picking) = &mut self.picking {
            let result = ready!(picking.as_mut().poll(cx));
            self.picking = None;
            match result {
                Ok(flight) => {
                    self.exchange.picked(Destination {
                        addresses: flight.destination(),
                        rank: flight.rank(),
                    });
                    self.flight = Some(flight);
                }
                Err((reason, message)) => self.exchange.refuse(reason, &message),
            }
        }
        Poll::Ready(())
    }

    /// Ready when the deadline of the request body has passed; it begins with the first wait for a message.
    fn poll_body_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.exchange.gathers() {
            return Poll::Pending;
        }
        let limit = self.shared.settings.body_timeout;
        let deadline = self
            .body_deadline
            .get_or_insert_with(|| Box::pin(sleep(limit)));
        deadline.as_mut().poll(cx)
    }
}

impl<P: Pick> Stream for ExchangeStream<P> {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Nothing in here is pinned in place: futures are boxed, and a flight is only ever moved.
        let this = Pin::into_inner(self);
        loop {
            while let Some(step) = this.exchange.next_step() {
                if let Some(answer) = this.take(step) {
                    return Poll::Ready(Some(Ok(answer)));
                }
            }
            if this.outcome.is_some() {
                return Poll::Ready(None);
            }
            if this.picking.is_some() {
                ready!(this.poll_pick(cx));
                continue;
            }
            if !this.exchange.gathers() {
                // Everything that was held has been handed to the transport.
                this.release();
            }
            match Pin::new(&mut this.incoming).poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => this.receive(message),
                Poll::Ready(Some(Err(status))) => {
                    if let Some(status) = this.broken(status) {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                Poll::Ready(None) => this.outcome = Some(this.closed(End::HalfClose)),
                Poll::Pending => {
                    ready!(this.poll_body_deadline(cx));
                    let text = "the request body did not arrive in time";
                    this.exchange.refuse(Reason::BodyTimeout, text);
                }
            }
        }
    }
}

impl<P: Pick> Unpin for ExchangeStream<P> {}

impl<P: Pick> Drop for ExchangeStream<P> {
    fn drop(&mut self) {
        self.release();
        self.shared.exchanges.fetch_sub(1, Ordering::Relaxed);
        let outcome = match self.outcome {
            Some(outcome) => outcome,
            // Dropped before its end: that is how a reset looks from here.
            None => self.closed(End::Reset),
        };
        self.shared.metrics.stream_ended(outcome);
    }
}

/// Picks within the time limit: first with the body, then on load alone.
async fn pick<P: Pick>(
    shared: Arc<Shared<P>>,
    head: RequestHead,
    body: RequestBody,
) -> Result<P::Flight, (Reason, String)> {
    let limit = shared.settings.pick_timeout;
    if !matches!(body, RequestBody::Unseen) {
        match timeout(limit, shared.pick.pick(head.clone(), body)).await {
            Ok(result) => return result.map_err(reason),
            Err(_) => shared.metrics.pick_timed_out(),
        }
    }
    match timeout(limit, shared.pick.pick(head, RequestBody::Unseen)).await {
        Ok(result) => result.map_err(reason),
        Err(_) => {
            let text = "no endpoint could be picked in time".to_owned();
            Err((Reason::PickTimeout, text))
        }
    }
}

/// The one place where a rejection gets its reason, and by it its status.
fn reason(rejection: Rejection) -> (Reason, String) {
    match rejection {
        Rejection::Malformed(text) => (Reason::Malformed, text),
        Rejection::Unavailable(text) => (Reason::Unavailable, text),
        Rejection::Overloaded(text) => (Reason::Overloaded, text),
        Rejection::TooLarge(limit) => (
            Reason::TooLarge,
            format!("the request body is over {limit} bytes"),
        ),
    }
}

fn tell(flight: &mut impl Flight, news: News) {
    match news {
        News::Started(status) => flight.response_started(status),
        News::Refused(retry_after) => flight.refused(retry_after),
        News::ServedBy(address) => flight.served_by(address),
        News::FirstData => flight.first_data(),
        News::MoreData => flight.more_data(),
        News::Usage(usage) => flight.usage(usage),
        News::Completed => flight.completed(),
    }
}
