//! What does the engine say of itself: does it answer, what is it, what does it serve, how does it cache?

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use tokio::sync::watch;

use super::engine::{Engine, Unanswered};
use super::finding::{Findings, Topic};
use crate::feeds::client::Client;
use crate::feeds::load_text::{self, Page};
use crate::feeds::probe::{ProbeLoop, Profile, read_models};
use crate::routing::endpoint::{EndpointName, Report};
use crate::tokens::ServedModel;

/// The first vLLM that publishes KV events.
const FIRST_WITH_EVENTS: (u32, u32) = (0, 9);
/// Up to this one, hashes by sha256 are integers too large for its own encoding: nothing is published.
const FIRST_THAT_SENDS_SHA256: (u32, u32) = (0, 10);

/// What an engine told.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    /// As it tells it.
    pub(super) version_text: Option<String>,
    pub(super) models: Vec<ServedModel>,
    /// What the picker's own probe made of its answers.
    pub(super) profile: Profile,
    pub(super) report: Option<Report>,
    /// The ranks that its page speaks of.
    pub(super) page_ranks: BTreeSet<u32>,
}

impl About {
    /// Asks; `None` when nobody answers.
    pub(super) async fn ask(engine: &Engine, findings: &mut Findings) -> Option<Self> {
        if !reach(engine, findings).await {
            return None;
        }
        let mut about = Self {
            version_text: version(engine).await,
            profile: profile(engine).await,
            ..Self::default()
        };
        about.judge_version(findings);
        about.ask_models(engine, findings).await;
        about.read_page(engine, findings).await;
        Some(about)
    }

    fn judge_version(&self, findings: &mut Findings) {
        let Some(text) = &self.version_text else {
            findings.warn(
                Topic::Version,
                "the engine does not tell its version (GET /version)",
                "prompts whose rendering depends on the version (the developer role) are tokenized by the engine",
            );
            return;
        };
        match self.profile.version {
            Some(version) if version < FIRST_WITH_EVENTS => findings.fail(
                Topic::Version,
                format!("vLLM {text} publishes no KV events"),
                "update the engine to 0.9 or later; until then what was sent where stands for its cache",
            ),
            _ => findings.ok(Topic::Version, text),
        }
    }

    /// Asked once more with the user's key: the picker asks without one.
    async fn ask_models(&mut self, engine: &Engine, findings: &mut Findings) {
        match engine.get("/v1/models").await {
            Ok(text) => {
                self.models = read_models(text.as_bytes()).unwrap_or_default();
                if self.profile.models.is_empty() && !self.models.is_empty() {
                    findings.warn(
                        Topic::Model,
                        "GET /v1/models needs the engine's key, which the picker does not have",
                        "without it adapters are taken for base models, and tokenizers have to be named in the settings file \
                         (tokenizers.models)",
                    );
                    self.profile.models.clone_from(&self.models);
                    return;
                }
                self.judge_models(findings);
            }
            Err(why) if matches!(why.status(), Some(401 | 403)) => findings.fail(
                Topic::Model,
                why.to_string(),
                "name the engine's key by --api-key or WARMPATH_API_KEY",
            ),
            Err(why) => findings.fail(
                Topic::Model,
                why.to_string(),
                "see that the port is that of the engine's OpenAI API, or ask again with a longer --timeout",
            ),
        }
    }

    fn judge_models(&self, findings: &mut Findings) {
        let base = |model: &&ServedModel| model.parent.is_none();
        let bases: Vec<String> = self.models.iter().filter(base).map(told).collect();
        let adapters = self.models.len() - bases.len();
        if bases.is_empty() {
            findings.fail(
                Topic::Model,
                "GET /v1/models names no model",
                "wait until the engine has loaded, and see that the port is that of its OpenAI API",
            );
            return;
        }
        let more = match adapters {
            0 => String::new(),
            1 => " and 1 adapter".to_owned(),
            n => format!(" and {n} adapters"),
        };
        findings.ok(Topic::Model, format!("{}{more}", bases.join(", ")));
    }

    async fn read_page(&mut self, engine: &Engine, findings: &mut Findings) {
        let page = match engine.get("/metrics").await {
            Ok(page) => page,
            Err(why) => {
                match why.status() {
                    // As the picker takes it: no such page, or one that cannot be had now.
                    Some(404) => findings.warn(
                        Topic::StateReport,
                        why.to_string(),
                        "without the page the guards (KV usage, age of the report) do not apply to this engine",
                    ),
                    _ => findings.fail(
                        Topic::StateReport,
                        why.to_string(),
                        "while the page cannot be had the engine is left out of picks as soon as it is busy (report_age)",
                    ),
                }
                self.leave_out_caching(findings, "there is no metrics page");
                return;
            }
        };
        match load_text::parse(page.as_bytes()) {
            Page::Told(report, _) if report.asleep => {
                findings.fail(
                    Topic::StateReport,
                    "the engine is asleep: its cache is gone, and it takes no requests",
                    "wake it (POST /wake_up), then check again",
                );
                self.report = Some(report);
            }
            Page::Told(report, ranks) => {
                findings.ok(Topic::StateReport, summary(&report, ranks.len()));
                self.report = Some(report);
                self.page_ranks = ranks.into_keys().collect();
            }
            Page::Announced => findings.ok(
                Topic::StateReport,
                "the page has no values yet: the engine has not computed anything",
            ),
            Page::Foreign => findings.warn(
                Topic::StateReport,
                "GET /metrics answers, but with nothing that vLLM, SGLang or TensorRT-LLM would tell",
                "the guards do not apply; SGLang shows its page with --enable-metrics",
            ),
        }
        self.judge_caching(&page, findings);
    }

    fn leave_out_caching(&self, findings: &mut Findings, why: &str) {
        findings.left_out(Topic::PrefixCaching, why);
        findings.left_out(Topic::HashAlgorithm, why);
    }

    fn judge_caching(&self, page: &str, findings: &mut Findings) {
        let config = page
            .lines()
            .find(|line| line.starts_with("vllm:cache_config_info{"));
        let Some(config) = config else {
            self.leave_out_caching(
                findings,
                "the page does not tell how the cache is configured",
            );
            return;
        };
        match label(config, "enable_prefix_caching") {
            Some("False") => findings.fail(
                Topic::PrefixCaching,
                "prefix caching is off",
                "start the engine with --enable-prefix-caching (its default for most models)",
            ),
            Some(on) => findings.ok(Topic::PrefixCaching, format!("on ({on})")),
            None => findings.left_out(Topic::PrefixCaching, "the page does not tell"),
        }
        match label(config, "prefix_caching_hash_algo") {
            Some("sha256")
                if self
                    .profile
                    .version
                    .is_some_and(|version| version < FIRST_THAT_SENDS_SHA256) =>
            {
                findings.fail(
                    Topic::HashAlgorithm,
                    "sha256, whose hashes this version cannot send: no KV event ever comes",
                    "start the engine with --prefix-caching-hash-algo builtin, or update it",
                );
            }
            // The index is keyed by the tokens themselves, so that any will do.
            Some(algorithm) => findings.ok(Topic::HashAlgorithm, algorithm),
            None => findings.left_out(Topic::HashAlgorithm, "the page does not tell"),
        }
    }
}

async fn reach(engine: &Engine, findings: &mut Findings) -> bool {
    let asked = Instant::now();
    let health = engine.get("/health").await;
    let took = asked.elapsed().as_millis();
    match health {
        Ok(_) => findings.ok(Topic::Reachable, format!("answers in {took} ms")),
        // Others have no such page; an answer is an answer.
        Err(Unanswered::Status { status: 404, .. }) => {
            findings.ok(
                Topic::Reachable,
                format!("answers in {took} ms (without /health)"),
            );
        }
        Err(why @ Unanswered::Status { .. }) => findings.fail(
            Topic::Reachable,
            why.to_string(),
            "the engine says that it is not well: see its log",
        ),
        Err(why) => {
            findings.fail(
                Topic::Reachable,
                why.to_string(),
                format!(
                    "see that an engine listens on {}, and that no network policy keeps this place from it",
                    engine.address()
                ),
            );
            return false;
        }
    }
    true
}

async fn version(engine: &Engine) -> Option<String> {
    #[derive(Deserialize)]
    struct Told {
        version: String,
    }
    let text = engine.get("/version").await.ok()?;
    let told: Told = serde_json::from_str(&text).ok()?;
    Some(told.version)
}

/// One round of the picker's own questions.
async fn profile(engine: &Engine) -> Profile {
    let Ok(client) = Client::new() else {
        return Profile::default();
    };
    let (sender, mut profile) = watch::channel(Profile::default());
    let probe = ProbeLoop {
        name: EndpointName::new("check", "engine"),
        address: engine.address(),
        engine: client.engine(engine.address()),
        came_back: Arc::default(),
        profile: sender,
    };
    tokio::select! {
        () = probe.run(|| ()) => {}
        _ = tokio::time::timeout(engine.patience(), profile.changed()) => {}
    }
    profile.borrow().clone()
}

fn told(model: &ServedModel) -> String {
    let context = model
        .max_model_len
        .map(|length| format!(", context {length}"));
    let root = model
        .root
        .as_deref()
        .filter(|root| *root != model.id)
        .map(|root| format!(" from {root}"));
    format!(
        "{}{}{}",
        model.id,
        root.unwrap_or_default(),
        context.unwrap_or_default()
    )
}

fn summary(report: &Report, ranks: usize) -> String {
    let capacity = report
        .kv_capacity
        .map(|tokens| format!(", KV pool of {} tokens", tokens.get()));
    let ranks = match ranks {
        0 | 1 => String::new(),
        n => format!(", {n} ranks"),
    };
    format!(
        "KV usage {:.0} %, {} running, {} waiting{}{ranks}",
        report.kv_usage * 100.0,
        report.running,
        report.waiting,
        capacity.unwrap_or_default()
    )
}

/// The value of a label in a sample's line; those asked for here have no escapes.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = line.split_once(&format!("{name}=\""))?;
    Some(value.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    fn judged(version: (u32, u32), labels: &str) -> Vec<(Topic, Level)> {
        let about = About {
            profile: Profile {
                version: Some(version),
                ..Profile::default()
            },
            ..About::default()
        };
        let mut findings = Findings::default();
        about.judge_caching(
            &format!("# TYPE x gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"),
            &mut findings,
        );
        let all = findings.all().iter();
        all.map(|finding| (finding.topic, finding.level)).collect()
    }

    #[test]
    fn a_cache_that_is_off_and_hashes_that_cannot_be_sent_are_failures() {
        let off =
            r#"block_size="16",enable_prefix_caching="False",prefix_caching_hash_algo="sha256""#;
        assert_eq!(
            judged((0, 9), off),
            [
                (Topic::PrefixCaching, Level::Failed),
                (Topic::HashAlgorithm, Level::Failed)
            ]
        );
        let on = r#"enable_prefix_caching="True",prefix_caching_hash_algo="sha256""#;
        assert_eq!(
            judged((0, 31), on),
            [
                (Topic::PrefixCaching, Level::Ok),
                (Topic::HashAlgorithm, Level::Ok)
            ]
        );
        assert_eq!(
            judged((0, 31), r#"engine="0""#),
            [
                (Topic::PrefixCaching, Level::LeftOut),
                (Topic::HashAlgorithm, Level::LeftOut)
            ]
        );
    }
}
