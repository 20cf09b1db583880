//! The request's path between wire and decision: parse, tokenize, hash, pick.
//!
//! [`Picker::pick`] reads top to bottom. What a request's head and body allow is decided in `routable`, what
//! becomes of a pick afterwards in [`flight`].

pub mod flight;
mod routable;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tracing::{debug, info, warn};

use self::flight::PickedFlight;
use self::routable::routable;
use crate::decisions::{Decisions, Picked, Understood, shortened};
use crate::extproc::pick::{Pick, Rejection, RequestBody, RequestHead};
use crate::metrics::picks::{LoadOnly, PickMetrics};
use crate::routing::block::{Scope, Sequence};
use crate::routing::endpoint::EndpointId;
use crate::routing::request::Request;
use crate::routing::router::{Ask, Decision, Router};
use crate::tokens::{Provenance, Tokenized, Tokens};

/// Asks something of an endpoint: for a fresh report, or that what it has cached be read anew.
pub type Wake = Arc<dyn Fn(EndpointId) + Send + Sync>;

/// Makes picks for all streams.
pub struct Picker {
    tokens: Arc<Tokens>,
    router: Arc<Router>,
    decisions: Arc<Decisions>,
    metrics: Arc<PickMetrics>,
    wake: Wake,
    rebuild: Wake,
    alternates: usize,
}

/// A request as the router needs it.
struct Prompt {
    sequences: Vec<Sequence>,
    scope: Scope,
    understood: Understood,
    provenance: Option<Provenance>,
}

impl Picker {
    /// A picker that names `alternates` further endpoints beside the one chosen. It calls `wake` for an endpoint that
    /// was idle and got a request, and `rebuild` for one whose view is found to hold what the engine has not.
    pub fn new(
        tokens: Arc<Tokens>,
        router: Arc<Router>,
        decisions: Arc<Decisions>,
        metrics: Arc<PickMetrics>,
        wake: Wake,
        rebuild: Wake,
        alternates: usize,
    ) -> Self {
        Self {
            tokens,
            router,
            decisions,
            metrics,
            wake,
            rebuild,
            alternates,
        }
    }

    /// What the request asks to prefill, as well as it can be known.
    async fn prompt(&self, head: &RequestHead, body: RequestBody) -> Result<Prompt, Rejection> {
        let (api, body) = match routable(head, body) {
            Ok(readable) => readable,
            Err(reason) => return Ok(Prompt::by_load(reason)),
        };
        let bytes = body.clone();
        let parse = move || Request::parse(api, &bytes);
        let offload = self.tokens.offload();
        let request = match offload.run(parse_time(body.len()), parse).await {
            Ok(Ok(request)) => Arc::new(request),
            Ok(Err(malformed)) => {
                self.metrics.malformed();
                return Err(Rejection::Malformed(malformed.to_string()));
            }
            Err(error) => {
                warn!(%error, "reading a request was lost");
                return Ok(Prompt::by_load(LoadOnly::Lost));
            }
        };
        let authorization = head.authorization.as_deref();
        let tokenized = self.tokens.tokenize(&request, &body, authorization).await;
        Ok(Prompt::by_content(&request, tokenized))
    }

    /// Everything that follows from a decision: log, metrics, waking, and the flight that owns its booking.
    fn depart(
        &self,
        decision: Decision,
        understood: Understood,
        provenance: Option<Provenance>,
        request_id: Option<&str>,
        started: Instant,
    ) -> PickedFlight {
        let picked_at = Instant::now();
        let took = picked_at.duration_since(started);
        if decision.woke {
            (self.wake)(decision.id);
        }
        log(&decision, &understood, request_id, took.as_micros());
        log_overflow(&decision);
        let load_only = match &understood {
            Understood::LoadOnly(reason) => Some(*reason),
            Understood::Content { .. } => None,
        };
        let series = self.metrics.picked(&decision, load_only, took);
        let destination = destination(&decision);
        let record = self.decisions.push(Picked {
            at: SystemTime::now(),
            request_id: request_id.map(shortened),
            understood,
            id: decision.id,
            name: decision.name,
            address: decision.address,
            rank: decision.rank,
            prompt: decision.prompt,
            cached: decision.cached,
            queued: decision.queued,
            price: decision.price,
            guards_overruled: decision.guards_overruled,
            considered: decision.considered,
            took,
        });
        PickedFlight::new(
            self,
            destination,
            decision.reservation,
            record,
            series,
            picked_at,
            provenance,
        )
    }
}

impl Pick for Picker {
    type Flight = PickedFlight;

    async fn pick(&self, head: RequestHead, body: RequestBody) -> Result<PickedFlight, Rejection> {
        let started = Instant::now();
        let prompt = self.prompt(&head, body).await?;
        let mut prepared = self.router.prepare(&prompt.sequences, &prompt.scope);
        if !prompt.understood.reads_cache() {
            prepared = prepared.bypassing_cache();
        }
        let ask = Ask {
            subset: head.subset.as_deref(),
            alternates: self.alternates,
            now: Instant::now(),
            chance: fastrand::u64(..),
        };
        let decision = self.router.pick(&prepared, &ask).map_err(|refusal| {
            self.metrics.refused(refusal);
            Rejection::Unavailable(refusal.to_string())
        })?;
        Ok(self.depart(
            decision,
            prompt.understood,
            prompt.provenance,
            head.request_id.as_deref(),
            started,
        ))
    }
}

impl Prompt {
    fn by_content(request: &Request, tokenized: Tokenized) -> Self {
        let prompts = tokenized.sequences.len();
        Self {
            sequences: tokenized.sequences,
            provenance: tokenized.provenance,
            scope: Scope {
                adapter: tokenized.adapter,
                salt: request.salt.as_deref().map(Arc::from),
            },
            understood: Understood::Content {
                api: request.api,
                model: request.model.as_deref().map(shortened),
                source: tokenized.source,
                degraded: tokenized.degraded,
                prompts,
                reads_cache: request.reads_cache,
            },
        }
    }

    fn by_load(reason: LoadOnly) -> Self {
        Self {
            sequences: Vec::new(),
            scope: Scope::default(),
            provenance: None,
            understood: Understood::LoadOnly(reason),
        }
    }
}

/// How long reading a body takes at most: 0.5 to 1 ns a byte was measured on chats of 8 to 170 KB.
const fn parse_time(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64)
}

/// The chosen address, then the alternates, as the gateway reads them.
fn destination(decision: &Decision) -> String {
    let mut destination = decision.address.to_string();
    for alternate in &decision.alternates {
        destination.push(',');
        destination.push_str(&alternate.to_string());
    }
    destination
}

/// The one line of a request.
fn log(decision: &Decision, understood: &Understood, request_id: Option<&str>, elapsed_us: u128) {
    let (model, token_source) = match understood {
        Understood::Content { model, source, .. } => (model.as_deref(), source.as_str()),
        Understood::LoadOnly(_) => (None, "none"),
    };
    let seen = &decision.considered;
    let chosen = seen.iter().find(|candidate| candidate.id == decision.id);
    debug!(
        request_id,
        endpoint = %decision.name,
        model,
        prompt_tokens = decision.prompt.get(),
        cached_tokens = decision.cached.get(),
        queued_tokens = decision.queued.get(),
        cost_tokens = chosen.map(|chosen| chosen.cost.get()),
        price = decision.price,
        token_source,
        elapsed_us,
        "picked endpoint"
    );
}

/// An approximate endpoint that no longer fits, or fits again.
fn log_overflow(decision: &Decision) {
    let endpoint = &decision.name;
    match decision.overflow {
        Some(true) => warn!(
            %endpoint,
            "what is asked for again and again does not fit the endpoint's KV pool: without KV events its cache is foreseen wrongly"
        ),
        Some(false) => {
            info!(%endpoint, "what is asked for again and again fits the endpoint's KV pool");
        }
        None => {}
    }
}

#[cfg(test)]
mod tests;
