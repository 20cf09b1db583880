//! Small requests of our own: do their blocks come as events, are they cached, and is that reported?

use serde_json::{Value, json};

use super::Context;
use super::about::About;
use super::cached;
use super::engine::{Engine, Unanswered};
use super::events::{Follow, Followed, HOW_TO_PUBLISH, store_of};
use super::finding::{Findings, Topic};

/// Blocks of the prompt that is sent; the last one is not full.
const BLOCKS: u32 = 3;
/// The largest block size in use anywhere.
const LARGEST_BLOCK: u32 = 256;
/// Ids below this exist in every vocabulary of today, and above the lowest there are no control tokens.
const IDS: std::ops::Range<u32> = 1_000..20_000;

/// The path of completions.
pub(super) const COMPLETIONS: &str = "/v1/completions";

/// Sends them, one rank after the other.
pub(super) async fn run(
    context: &Context,
    engine: &Engine,
    about: &About,
    followed: Followed,
    findings: &mut Findings,
) {
    let base = about.models.iter().find(|model| model.parent.is_none());
    let model = context
        .model
        .as_deref()
        .or_else(|| base.map(|base| base.id.as_str()));
    let Some(model) = model else {
        for topic in [
            Topic::Events,
            Topic::BlockSize,
            Topic::CachedTokens,
            Topic::StreamUsage,
        ] {
            findings.left_out(topic, "no model is known to send a request for (--model)");
        }
        return;
    };
    if followed.ranks.is_empty() {
        findings.left_out(Topic::Events, "there is nothing to follow");
        findings.left_out(Topic::BlockSize, "there are no events");
        let trial = Trial::new(model, None);
        if trial.send(engine, findings, true).await {
            cached::judge(engine, &trial, about.reported_block_size(), findings).await;
        }
        return;
    }
    for (n, follows) in followed.by_request().enumerate() {
        let pinned = follows.first().filter(|_| followed.pinned);
        let rank = pinned.map(|follow| follow.source.rank);
        let trial = Trial::new(model, rank);
        if !trial.send(engine, findings, n == 0).await {
            return;
        }
        let block_size = trial.see_blocks(context, follows, about, findings).await;
        if follows.len() > 1 {
            findings.left_out(
                Topic::CachedTokens,
                "the engine has several ranks, and the same request again may come to another",
            );
            cached::judge_stream(engine, &trial, findings).await;
        } else if n == 0 {
            let block_size = block_size.or_else(|| about.reported_block_size());
            cached::judge(engine, &trial, block_size, findings).await;
        }
    }
}

impl About {
    fn reported_block_size(&self) -> Option<u32> {
        self.report.and_then(|report| report.block_size)
    }
}

/// One prompt that nobody has sent before, as token ids, so that no tokenizer stands between.
pub(super) struct Trial {
    model: String,
    rank: Option<u32>,
    pub(super) prompt: Vec<u32>,
}

impl Trial {
    fn new(model: &str, rank: Option<u32>) -> Self {
        let length = BLOCKS * LARGEST_BLOCK - 1;
        Self {
            model: model.to_owned(),
            rank,
            prompt: (0..length).map(|_| fastrand::u32(IDS)).collect(),
        }
    }

    /// The request; `more` is added to it.
    pub(super) fn body(&self, more: Value) -> Value {
        let mut body = json!({
            "model": self.model, "prompt": self.prompt, "max_tokens": 1, "temperature": 0,
        });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        body
    }

    pub(super) const fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// Sends it; what keeps it from being answered is said once for all that depends on it.
    async fn send(&self, engine: &Engine, findings: &mut Findings, is_first: bool) -> bool {
        let Err(why) = engine
            .post(COMPLETIONS, &self.body(json!({})), self.rank)
            .await
        else {
            return true;
        };
        let advice = advice(&why);
        if !findings.has(Topic::Events) {
            findings.fail(Topic::Events, why.to_string(), advice);
        } else if is_first {
            findings.fail(Topic::CachedTokens, why.to_string(), advice);
        }
        for topic in [Topic::BlockSize, Topic::CachedTokens, Topic::StreamUsage] {
            if !findings.has(topic) {
                findings.left_out(topic, "the request for it was not answered");
            }
        }
        false
    }

    /// Waits for the event that stores its blocks; their size.
    async fn see_blocks(
        &self,
        context: &Context,
        follows: &[Follow],
        about: &About,
        findings: &mut Findings,
    ) -> Option<u32> {
        let of_rank = self.rank.map(|rank| format!("rank {rank}: "));
        let of_rank = of_rank.unwrap_or_default();
        let sent = std::time::Instant::now();
        let Some(stored) = store_of(follows, &self.prompt, context.timeout).await else {
            let live: Vec<&str> = follows.iter().map(|f| f.source.live.as_str()).collect();
            let live = live.join(" or ");
            findings.fail(
                Topic::Events,
                format!(
                    "{of_rank}a request was answered, but no event at {live} stored its blocks within {} s",
                    context.timeout.as_secs_f64()
                ),
                format!(
                    "{HOW_TO_PUBLISH}; only endpoints with `*` are bound (`tcp://*:5557`, not `tcp://0.0.0.0:5557`), each rank \
                     publishes at the port plus its number, and the port must not be kept from here by a network policy"
                ),
            );
            findings.left_out(Topic::BlockSize, "no event told");
            return None;
        };
        findings.ok(
            Topic::Events,
            format!(
                "{of_rank}the blocks of a request were stored as events tell, {} ms after its answer",
                sent.elapsed().as_millis()
            ),
        );
        let size = stored.block_size;
        match about.reported_block_size() {
            Some(reported) if reported != size => findings.warn(
                Topic::BlockSize,
                format!("{of_rank}{size} tokens in events, {reported} on the metrics page"),
                "events count: nothing has to be set",
            ),
            _ => findings.ok(Topic::BlockSize, format!("{of_rank}{size} tokens")),
        }
        Some(size)
    }
}

fn advice(why: &Unanswered) -> String {
    match why.status() {
        Some(401 | 403) => "name the engine's key by --api-key or WARMPATH_API_KEY".to_owned(),
        Some(404) => {
            "see that the model named by --model is served, and that the engine has /v1/completions"
                .to_owned()
        }
        Some(400) => {
            "the prompt is 767 token ids: the engine's context must be longer (--max-model-len)"
                .to_owned()
        }
        Some(503 | 429) => "the engine takes no more requests now: ask again later".to_owned(),
        _ => "see the engine's log".to_owned(),
    }
}
