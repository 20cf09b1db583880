//! A pick's life until its stream ends: it owns the booking, and learns what came of the request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Picker, Wake};
use crate::decisions::{Record, Understood};
use crate::extproc::pick::{Flight, Usage};
use crate::metrics::picks::{Ended, EndpointSeries, PickMetrics, Prediction};
use crate::routing::router::{Agreement, DoubtCause, Reservation, TrustChange};
use crate::routing::tokens::TokenCount;
use crate::tokens::{Provenance, TokenSource, Tokens};

/// One pick. Dropping it gives the booking back and closes its record, however the stream ended.
pub struct PickedFlight {
    destination: String,
    /// `None` once it was handed on for want of a response phase.
    reservation: Option<Reservation>,
    record: Arc<Record>,
    metrics: Arc<PickMetrics>,
    /// `None` if its endpoint left as it was picked.
    series: Option<Arc<EndpointSeries>>,
    rebuild: Wake,
    picked_at: Instant,
    ended: Ended,
    proof: Option<Proof>,
}

/// Who made the request's token ids, and who wants to know what its engine stored of them.
struct Proof {
    tokens: Arc<Tokens>,
    provenance: Provenance,
}

impl PickedFlight {
    pub(super) fn new(
        picker: &Picker,
        destination: String,
        reservation: Reservation,
        record: Arc<Record>,
        series: Option<Arc<EndpointSeries>>,
        picked_at: Instant,
        provenance: Option<Provenance>,
    ) -> Self {
        let proof = provenance.map(|provenance| Proof {
            tokens: Arc::clone(&picker.tokens),
            provenance,
        });
        Self {
            destination,
            reservation: Some(reservation),
            record,
            metrics: Arc::clone(&picker.metrics),
            series,
            rebuild: Arc::clone(&picker.rebuild),
            picked_at,
            ended: Ended::Cut,
            proof,
        }
    }

    /// Has the request's first block looked at: its answer ended well where it was sent.
    fn prove(&mut self) {
        let outcome = self.record.outcome();
        let reported = outcome.reported_cached.map(TokenCount::new);
        if outcome.served_by.is_none()
            && let Some(proof) = self.proof.take()
            && let Some(reservation) = &self.reservation
            && let Some(block) = reservation.first_block(reported)
        {
            proof.tokens.ended(proof.provenance, block);
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
            Some(reported) => self.compare(reported),
        })
    }

    /// Has the report learnt from; how it compares with the prediction.
    fn compare(&self, reported: u64) -> Prediction {
        let picked = &self.record.picked;
        let predicted = picked.cached.get();
        if let Some(series) = &self.series {
            series.compared(predicted, reported);
        }
        let compared = self
            .reservation
            .as_ref()
            .map(|reservation| reservation.reported(TokenCount::new(reported), Instant::now()));
        if let Some(change) = compared
            .as_ref()
            .and_then(|compared| compared.trust.as_ref())
        {
            self.trust_changed(change);
        }
        match compared.map(|compared| compared.agreement) {
            Some(Agreement::Equal) => Prediction::Equal,
            Some(Agreement::TooLow) => Prediction::TooLow,
            Some(Agreement::TooHigh) => Prediction::TooHigh,
            Some(Agreement::Overtaken) => Prediction::Overtaken,
            // Its endpoint left before the answer had ended: the figures are all there is.
            None | Some(Agreement::Unknown) if predicted < reported => Prediction::TooLow,
            None | Some(Agreement::Unknown) if predicted > reported => Prediction::TooHigh,
            None | Some(Agreement::Unknown) => Prediction::Equal,
        }
    }

    fn trust_changed(&self, change: &TrustChange) {
        let endpoint = &self.record.picked.name;
        match change {
            TrustChange::Doubted { cause, reason } => {
                warn!(%endpoint, reason, "the endpoint's KV events are doubted: it is served by what was sent to it");
                if let Some(series) = &self.series {
                    series.doubted();
                }
                if *cause == DoubtCause::TooHigh {
                    (self.rebuild)(self.record.picked.id);
                }
            }
            TrustChange::Trusted => {
                info!(%endpoint, "the endpoint's KV events have been right for a while and serve again");
            }
        }
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
        self.metrics.ended(ended);
        let is_success = matches!(self.record.outcome().status, Some(200..=299));
        if ended == Ended::Completed && is_success {
            if let Some(result) = self.prediction() {
                self.metrics.predicted(result);
                self.record
                    .note(|outcome| outcome.prediction = Some(result));
            }
            self.prove();
        }
        if let Some(reservation) = self.reservation.take() {
            reservation.end(Instant::now());
        }
        // Last, so that whoever sees the end sees all that came of it.
        self.record.note(|outcome| outcome.ended = Some(ended));
    }
}
