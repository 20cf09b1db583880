//! Metrics of the wire: streams, refusals, bodies and messages that were not as they should be.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response passed in full.
    Completed,
    /// We answered instead of an engine.
    Rejected,
    /// The gateway closed after the request and never showed a response.
    NoResponsePhase,
    /// Reset, or closed in the middle: the client or the gateway left.
    Cancelled,
    /// What came could not be read as ext-proc.
    Broken,
}

/// Why a request was answered by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// 400: the body is not what its path asks for.
    Malformed,
    /// 503: no endpoint that may be chosen is ready.
    Unavailable,
    /// 429: over our own limits.
    Overloaded,
    /// 413: the body is over the cap.
    TooLarge,
    /// 408: the rest of the body did not come in time.
    BodyTimeout,
    /// 503: not even a pick on load alone came in time.
    PickTimeout,
}

/// What was odd about a message. None of these ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// No phase in it.
    Empty,
    /// A phase that cannot come here.
    OutOfOrder,
    /// Request body after its end (envoy#46237).
    DuplicateEnd,
    /// A body mode we do not know.
    UnknownMode,
    /// `metadata_context` that does not decode.
    Metadata,
    /// A served endpoint that is not `ip:port`.
    Served,
    /// A `usage` object that does not read, or is over the cap.
    Usage,
}

/// Which way a body goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the engine.
    Request,
    /// To the client.
    Response,
}

const OUTCOMES: [&str; 5] = [
    "completed",
    "rejected",
    "no_response_phase",
    "cancelled",
    "broken",
];
const REASONS: [&str; 6] = [
    "malformed",
    "unavailable",
    "overloaded",
    "too_large",
    "body_timeout",
    "pick_timeout",
];
const ODDITIES: [&str; 7] = [
    "empty",
    "out_of_order",
    "duplicate_end",
    "unknown_mode",
    "metadata",
    "served",
    "usage",
];
const DIRECTIONS: [&str; 2] = ["request", "response"];

impl Reason {
    /// The label, which is also the value of the refusal's header.
    pub fn as_str(self) -> &'static str {
        REASONS.get(self as usize).copied().unwrap_or_default()
    }
}

/// Handles, resolved once.
pub struct WireMetrics {
    in_flight: IntGauge,
    streams: [IntCounter; 5],
    rejections: [IntCounter; 6],
    oddities: [IntCounter; 7],
    body_bytes: [IntCounter; 2],
    chunks: [IntCounter; 2],
    unparsed_subset_entries: IntCounter,
    pick_timeouts: IntCounter,
    handshake_failures: IntCounter,
    certificate_reloads: [IntCounter; 2],
}

impl WireMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let single = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let in_flight = IntGauge::new(
            "warmpath_streams_in_flight",
            "Ext-proc streams open now, one for each HTTP exchange.",
        )?;
        registry.register(Box::new(in_flight.clone()))?;
        Ok(Self {
            in_flight,
            streams: family(
                registry,
                "warmpath_streams_total",
                "Ext-proc streams ended, by how.",
                "outcome",
                OUTCOMES,
            )?,
            rejections: family(
                registry,
                "warmpath_rejections_total",
                "Requests answered by the picker instead of an engine, by reason.",
                "reason",
                REASONS,
            )?,
            oddities: family(
                registry,
                "warmpath_message_oddities_total",
                "Ext-proc messages that were not as expected, by kind; none ends a stream.",
                "kind",
                ODDITIES,
            )?,
            body_bytes: family(
                registry,
                "warmpath_body_bytes_total",
                "Bytes of HTTP bodies that gateways sent, by direction.",
                "direction",
                DIRECTIONS,
            )?,
            chunks: family(
                registry,
                "warmpath_body_chunks_total",
                "Body messages that gateways sent, by direction.",
                "direction",
                DIRECTIONS,
            )?,
            unparsed_subset_entries: single(
                "warmpath_subset_entries_unparsed_total",
                "Entries of subset hints that are neither ip:port nor ip and were left out.",
            )?,
            pick_timeouts: single(
                "warmpath_pick_timeouts_total",
                "Picks that took too long and were made again on load alone.",
            )?,
            handshake_failures: single(
                "warmpath_tls_handshake_failures_total",
                "TLS handshakes that failed or did not end in time.",
            )?,
            certificate_reloads: family(
                registry,
                "warmpath_certificate_reloads_total",
                "Changed certificates, by whether they were taken.",
                "result",
                ["taken", "refused"],
            )?,
        })
    }

    pub(crate) fn stream_opened(&self) {
        self.in_flight.inc();
    }

    pub(crate) fn stream_ended(&self, outcome: Outcome) {
        self.in_flight.dec();
        bump(&self.streams, outcome as usize, 1);
    }

    pub(crate) fn rejected(&self, reason: Reason) {
        bump(&self.rejections, reason as usize, 1);
    }

    pub(crate) fn odd(&self, oddity: Oddity) {
        bump(&self.oddities, oddity as usize, 1);
    }

    pub(crate) fn body(&self, direction: Direction, bytes: usize) {
        bump(&self.body_bytes, direction as usize, bytes as u64);
        bump(&self.chunks, direction as usize, 1);
    }

    pub(crate) fn unparsed_subset_entries(&self, entries: usize) {
        self.unparsed_subset_entries.inc_by(entries as u64);
    }

    pub(crate) fn pick_timed_out(&self) {
        self.pick_timeouts.inc();
    }

    pub(crate) fn handshake_failed(&self) {
        self.handshake_failures.inc();
    }

    pub(crate) fn certificate_changed(&self, taken: bool) {
        bump(&self.certificate_reloads, usize::from(!taken), 1);
    }
}

fn bump(counters: &[IntCounter], index: usize, by: u64) {
    if let Some(counter) = counters.get(index) {
        counter.inc_by(by);
    }
}

/// One counter for each value of a label from a closed set, so that every series exists from the start.
fn family<const N: usize>(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
    values: [&str; N],
) -> prometheus::Result<[IntCounter; N]> {
    let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
    registry.register(Box::new(counters.clone()))?;
    Ok(values.map(|value| counters.with_label_values(&[value])))
}
