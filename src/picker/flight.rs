//! A pick's life until its stream ends: it owns the booking, and learns what came of the request.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::decisions::{Record, Understood};
use crate::extproc::pick::{Flight, Usage};
use crate::metrics::picks::{Ended, EndpointSeries, PickMetrics, Prediction};
use crate::routing::router::Reservation;
use crate::tokens::TokenSource;

/// One pick. Dropping it gives the booking back and closes its record, however the stream ended.
pub struct PickedFlight {
    destination: String,
    /// `None` once it was handed on for want of a response phase.
    reservation: Option<Reservation>,
    record: Arc<Record>,
    metrics: Arc<PickMetrics>,
    /// `None` if its endpoint left as it was picked.
    series: Option<Arc<EndpointSeries>>,
    picked_at: Instant,
    ended: Ended,
}

impl PickedFlight {
    pub(super) fn new(
        destination: String,
        reservation: Reservation,
        record: Arc<Record>,
        metrics: Arc<PickMetrics>,
        series: Option<Arc<EndpointSeries>>,
        picked_at: Instant,
    ) -> Self {
        Self {
            destination,
            reservation: Some(reservation),
            record,
            metrics,
            series,
            picked_at,
            ended: Ended::Cut,
        }
    }

    /// What became of the prediction; `None` if there was none, the content not having been looked at.
    fn prediction(&self) -> Option<Prediction> {
        let picked = &self.record.picked;
        let Understood::Content {
            source,
            prompts,
            reads_cache,
            ..
        } = picked.understood
        else {
            return None;
        };
        let outcome = self.record.outcome();
        Some(match outcome.reported_cached {
            _ if outcome.served_by.is_some() => Prediction::ServedElsewhere,
            _ if !reads_cache => Prediction::CacheNotRead,
            _ if source == TokenSource::Estimate => Prediction::Estimated,
            // vLLM reports the cached tokens of the last one alone.
            _ if prompts > 1 => Prediction::SeveralPrompts,
            None => Prediction::NotReported,
            Some(reported) => {
                let predicted = picked.cached.get();
                if let Some(series) = &self.series {
                    series.compared(predicted, reported);
                }
                match predicted.cmp(&reported) {
                    Ordering::Less => Prediction::TooLow,
                    Ordering::Equal => Prediction::Equal,
                    Ordering::Greater => Prediction::TooHigh,
                }
            }
        })
    }
}

impl Flight for PickedFlight {
    fn destination(&self) -> &str {
        &self.destination
    }

    fn rank(&self) -> Option<u32> {
        self.record.picked.rank
    }

    fn response_started(&mut self, status: u16) {
        self.metrics.responded(status);
        self.record.note(|outcome| outcome.status = Some(status));
        if let Some(reservation) = &mut self.reservation {
            reservation.answered(status);
        }
    }

    fn refused(&mut self, retry_after: Option<Duration>) {
        if let Some(reservation) = &mut self.reservation {
            reservation.refused(retry_after, Instant::now());
        }
    }

    fn served_by(&mut self, address: SocketAddr) {
        let known = self.record.outcome().served_by;
        if known.unwrap_or(self.record.picked.address) == address {
            return;
        }
        self.metrics.served_elsewhere();
        self.record
            .note(|outcome| outcome.served_by = Some(address));
        if let Some(reservation) = &mut self.reservation {
            reservation.served_by(address, Instant::now());
        }
    }

    fn first_data(&mut self) {
        if self.record.outcome().first_data.is_some() {
            return;
        }
        let now = Instant::now();
        let after = now.duration_since(self.picked_at);
        self.metrics.first_data(after);
        self.record.note(|outcome| outcome.first_data = Some(after));
        if let Some(reservation) = &mut self.reservation {
            reservation.prefilled(now);
        }
    }

    fn more_data(&mut self) {
        if let Some(reservation) = &self.reservation {
            reservation.more_data();
        }
    }

    fn usage(&mut self, usage: Usage) {
        // An SSE stream may report more than once; a later report without a figure takes none back.
        self.record.note(|outcome| {
            outcome.reported_prompt = usage.prompt_tokens.or(outcome.reported_prompt);
            outcome.reported_cached = usage.cached_tokens.or(outcome.reported_cached);
        });
    }

    fn completed(&mut self) {
        self.ended = Ended::Completed;
    }

    fn no_response_phase(mut self) {
        self.ended = Ended::Unseen;
        if let Some(reservation) = self.reservation.take() {
            reservation.detach(Instant::now());
        }
    }
}

impl Drop for PickedFlight {
    fn drop(&mut self) {
        let ended = self.ended;
        self.record.note(|outcome| outcome.ended = Some(ended));
        self.metrics.ended(ended);
        let is_success = matches!(self.record.outcome().status, Some(200..=299));
        if ended == Ended::Completed
            && is_success
            && let Some(result) = self.prediction()
        {
            self.metrics.predicted(result);
        }
        if let Some(reservation) = self.reservation.take() {
            reservation.end(Instant::now());
        }
    }
}
