//! What does one engine make of the canaries? Asked one after the other, off the request path.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use xxhash_rust::xxh3::Xxh3;

use super::canary::{Canary, DEVELOPER, LONG, Ours, canaries, ours};
use super::verdict::{Difference, Finding};
use super::watched::Job;
use crate::metrics::token_sources::{CanaryOutcome, Degradation, TokenMetrics};
use crate::routing::model::RenderContext;
use crate::routing::request::Api;
use crate::tokens::engine::EngineTokenizer;
use crate::tokens::offload::Offload;
use crate::tokens::unix_time;

/// Work that leaves the runtime's threads: all canaries together are some 10 KB of text.
const CANARY_WORK: Duration = Duration::from_millis(5);

/// Who answers and counts.
pub(in crate::tokens) struct Asking<'a> {
    pub(in crate::tokens) engine: &'a EngineTokenizer,
    pub(in crate::tokens) offload: &'a Offload,
    pub(in crate::tokens) metrics: &'a TokenMetrics,
}

/// What has been heard of one engine so far.
#[derive(Default)]
struct Heard {
    first: Option<Difference>,
    /// Of all answers that its version does not explain.
    reading: Xxh3,
    compared: usize,
    /// It made tokens of a chat, so a refusal is one of that chat.
    takes_chats: bool,
}

impl Asking<'_> {
    /// Asks an engine all that can be compared.
    ///
    /// # Errors
    /// Why nothing could be compared. An engine that fails half-way is not asked the rest; what it said counts.
    pub(super) async fn all(&self, job: &Job) -> Result<Finding, Degradation> {
        let mut heard = Heard::default();
        let mut failed = None;
        for (canary, ours) in self.ours(job, canaries()).await? {
            if let Ours::Apart(why) = ours {
                debug!(canary = canary.name, why, "canary not compared");
                self.metrics.canary(CanaryOutcome::NotComparable);
                continue;
            }
            match self.one(job, &canary, ours, &mut heard).await {
                Ok(outcome) => self.metrics.canary(outcome),
                Err(why) => {
                    self.metrics.canary(CanaryOutcome::NotAsked);
                    failed = Some(why);
                    if why != Degradation::EngineRefused {
                        break;
                    }
                }
            }
        }
        match heard {
            Heard {
                first: Some(difference),
                reading,
                ..
            } => Ok(Finding::Differs(Difference {
                reading: reading.digest(),
                ..difference
            })),
            Heard { compared: 0, .. } => {
                Err(failed.unwrap_or(Degradation::NotRenderable("nothing_comparable")))
            }
            Heard { takes_chats, .. } => match failed {
                // Half of the answers do not prove the rest; the long one may be too long for it.
                Some(why) if why != Degradation::EngineRefused || !takes_chats => Err(why),
                _ => Ok(Finding::Agrees),
            },
        }
    }

    /// One canary. A refusal here and there is agreement; one of the two alone is a difference.
    async fn one(
        &self,
        job: &Job,
        canary: &Canary,
        ours: Ours,
        heard: &mut Heard,
    ) -> Result<CanaryOutcome, Degradation> {
        let payload = self.payload(job, canary)?;
        let theirs = match self.engine.canary(job.engine, payload).await {
            Ok(theirs) => Some(theirs),
            Err(Degradation::EngineRefused) if ours == Ours::Refused => None,
            Err(Degradation::EngineRefused) if heard.takes_chats && canary.name != LONG => None,
            Err(why) => return Err(why),
        };
        heard.compared += 1;
        if let Some(theirs) = &theirs {
            heard.takes_chats |= canary.api == Api::Chat;
            if canary.name != DEVELOPER {
                heard.reading.update(canary.name.as_bytes());
                for token in theirs {
                    heard.reading.update(&token.to_le_bytes());
                }
            }
        }
        let difference = match differs(canary, &ours, theirs.as_deref()) {
            // The day may have changed between the two.
            Some(difference) if job.loaded.model.tells_time() => {
                let again = self.ours(job, vec![canary.clone()]).await?;
                let again = again.first().map(|(_, ours)| ours);
                again.map_or(Some(difference), |ours| {
                    differs(canary, ours, theirs.as_deref())
                })
            }
            other => other,
        };
        let Some(difference) = difference else {
            return Ok(CanaryOutcome::Equal);
        };
        heard.first.get_or_insert(difference);
        Ok(CanaryOutcome::Differs)
    }

    /// What this process makes of canaries now.
    async fn ours(
        &self,
        job: &Job,
        canaries: Vec<Canary>,
    ) -> Result<Vec<(Canary, Ours)>, Degradation> {
        let loaded = Arc::clone(&job.loaded);
        let context = RenderContext {
            engine_version: job.version,
            unix_time: unix_time(),
            max_model_len: job.entry.max_model_len,
        };
        let work = move || {
            let made = |canary: Canary| {
                let ours = ours(&loaded.model, &canary, &context);
                (canary, ours)
            };
            canaries.into_iter().map(made).collect()
        };
        let work = self.offload.run(CANARY_WORK, work).await;
        work.map_err(|_lost| Degradation::Lost)
    }

    fn payload(&self, job: &Job, canary: &Canary) -> Result<Vec<u8>, Degradation> {
        self.engine.payload(&job.entry, canary.api, &canary.body)
    }
}

fn differs(canary: &Canary, ours: &Ours, theirs: Option<&[u32]>) -> Option<Difference> {
    match (ours, theirs) {
        (Ours::Ids(ours), Some(theirs)) => Difference::between(canary.name, ours, theirs),
        (Ours::Ids(ours), None) => Difference::between(canary.name, ours, &[]),
        (Ours::Refused, Some(theirs)) => Difference::between(canary.name, &[], theirs),
        (Ours::Refused | Ours::Apart(_), _) => None,
    }
}
