//! Metrics of how token ids are made: by whom, why not better, how long, and what became of loads and calls.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Why a request's tokens were not made in the best way: a closed set, because these are labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Degradation {
    /// The model name means nothing here, and the engines serve more than one model.
    UnknownModel,
    /// Neither configuration nor engines name a place for this model's files.
    NoSource,
    /// The places named hold no `tokenizer.json`.
    NoFiles,
    /// The files are being read or downloaded.
    Loading,
    /// The files could not be had, or are of a kind that cannot be used.
    LoadFailed,
    /// The tokenizer here cannot make this request's tokens (images, a template that refuses, …); the model
    /// says why in a word of its own closed set.
    NotRenderable(&'static str),
    /// The tokenizer here was seen to make other ids than the engine: the engine's own is asked.
    Parity,
    /// The ids of the engine's `/tokenize` were seen not to be those that it prefills.
    EngineParity,
    /// The work was lost on a blocking thread.
    Lost,
    /// No engine is known that could tokenize.
    NoEngine,
    /// This API's requests have no form that an engine's `/tokenize` takes.
    NoEngineForm,
    /// More prompts in one request than are worth as many calls.
    ManyPrompts,
    /// All engines that could be asked failed a moment ago.
    EnginePaused,
    /// As many calls as allowed are under way.
    EngineBusy,
    /// The engine did not answer in time.
    EngineTimeout,
    /// The engine cannot be reached.
    EngineUnreachable,
    /// The engine has no `/tokenize`, or none for this model (404, 405).
    EngineWithoutTokenize,
    /// The engine wants a key that the request does not have (401, 403).
    EngineDenied,
    /// The engine says the request is wrong (other 4xx).
    EngineRefused,
    /// The engine failed (5xx).
    EngineFailed,
    /// The engine's answer is not what `/tokenize` answers.
    EngineUnreadable,
}

impl Degradation {
    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownModel => "unknown_model",
            Self::NoSource => "no_source",
            Self::NoFiles => "no_files",
            Self::Loading => "loading",
            Self::LoadFailed => "load_failed",
            Self::NotRenderable(reason) => reason,
            Self::Parity => "parity",
            Self::EngineParity => "engine_parity",
            Self::Lost => "lost",
            Self::NoEngine => "no_engine",
            Self::NoEngineForm => "no_engine_form",
            Self::ManyPrompts => "many_prompts",
            Self::EnginePaused => "engine_paused",
            Self::EngineBusy => "engine_busy",
            Self::EngineTimeout => "engine_timeout",
            Self::EngineUnreachable => "engine_unreachable",
            Self::EngineWithoutTokenize => "engine_without_tokenize",
            Self::EngineDenied => "engine_denied",
            Self::EngineRefused => "engine_refused",
            Self::EngineFailed => "engine_failed",
            Self::EngineUnreadable => "engine_unreadable",
        }
    }
}

/// How one wish to ask an engine's `/tokenize` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineCall {
    /// It answered.
    Answered,
    /// The answer was known from an earlier call.
    Cached,
    /// No tokens; the degradations say why.
    Failed,
}

/// What came of one canary at one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CanaryOutcome {
    /// The same ids as here, or a refusal as here.
    Equal,
    /// Other ids.
    Differs,
    /// The engine gave no answer that could be compared.
    NotAsked,
    /// Requests of its kind are not tokenized here.
    NotComparable,
}

/// What became of the first block of a prompt whose ids are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstBlockOutcome {
    /// The engine stored it.
    Stored,
    /// The engine stored other tokens in its place.
    Missing,
    /// The engine stored the same tokens under another adapter or salt.
    OtherScope,
    /// Nothing can be said.
    Unclear,
}

/// How one attempt to load a model ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadOutcome {
    /// It serves.
    Loaded,
    /// There are no files in that place.
    Absent,
    /// Files are there and cannot be read.
    ReadFailed,
    /// The hub did not give them.
    DownloadFailed,
    /// The files are of a kind that cannot be used.
    Unusable,
    /// The work was lost on its thread.
    Lost,
}

impl LoadOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Absent => "absent",
            Self::ReadFailed => "read_failed",
            Self::DownloadFailed => "download_failed",
            Self::Unusable => "unusable",
            Self::Lost => "lost",
        }
    }
}

/// One of the three ways to token ids.
pub struct Way {
    requests: IntCounter,
    durations: Histogram,
}

impl Way {
    /// A request's token ids were made this way.
    pub fn made(&self, took: Duration) {
        self.requests.inc();
        self.durations.observe(took.as_secs_f64());
    }
}

/// Handles, resolved once.
pub struct TokenMetrics {
    /// Tokenizer and template in this process.
    pub local: Way,
    /// The engine's `/tokenize`.
    pub engine: Way,
    /// A length estimate.
    pub estimate: Way,
    degradations: IntCounterVec,
    answered: IntCounter,
    cached: IntCounter,
    failed: IntCounter,
    loads: IntCounterVec,
    models: IntGauge,
    parity: IntGaugeVec,
    canaries: IntCounterVec,
    first_blocks: IntCounterVec,
}

impl TokenMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name: &str, help: &str, label: &str| {
            let vec = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(vec.clone()))?;
            prometheus::Result::Ok(vec)
        };
        let requests = counters(
            "warmpath_tokenized_requests_total",
            "Requests by who made their token ids.",
            "source",
        )?;
        let degradations = counters(
            "warmpath_token_degradations_total",
            "Steps of making token ids that were not possible, by reason; one request may count twice.",
            "reason",
        )?;
        let engine_calls = counters(
            "warmpath_engine_tokenize_calls_total",
            "Calls of engines' /tokenize by outcome.",
            "outcome",
        )?;
        let loads = counters(
            "warmpath_model_loads_total",
            "Attempts to load a model's tokenizer and template by outcome.",
            "outcome",
        )?;
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "warmpath_tokenize_duration_seconds",
                "Time to make a request's token ids, waiting included.",
            )
            .buckets(vec![
                25e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5,
                1.0,
            ]),
            &["source"],
        )?;
        registry.register(Box::new(durations.clone()))?;
        let models = IntGauge::new(
            "warmpath_models_loaded",
            "Models whose tokenizer and template are loaded.",
        )?;
        registry.register(Box::new(models.clone()))?;
        let parity = IntGaugeVec::new(
            Opts::new(
                "warmpath_tokenizer_parity",
                "Whether engines make the token ids that are made here; absent while none could be asked.",
            ),
            &["model"],
        )?;
        registry.register(Box::new(parity.clone()))?;
        let canaries = counters(
            "warmpath_token_canaries_total",
            "Canaries tokenized here and by an engine, by outcome.",
            "outcome",
        )?;
        let first_blocks = counters(
            "warmpath_first_blocks_total",
            "First blocks of prompts that were cold when picked for, by what the engine stored.",
            "outcome",
        )?;
        let way = |source| Way {
            requests: requests.with_label_values(&[source]),
            durations: durations.with_label_values(&[source]),
        };
        let engine_call = |outcome| engine_calls.with_label_values(&[outcome]);
        Ok(Self {
            local: way("local"),
            engine: way("engine"),
            estimate: way("estimate"),
            degradations,
            answered: engine_call("answered"),
            cached: engine_call("cached"),
            failed: engine_call("failed"),
            loads,
            models,
            parity,
            canaries,
            first_blocks,
        })
    }

    /// A better way was not possible.
    pub fn degraded(&self, reason: Degradation) {
        self.degradations
            .with_label_values(&[reason.as_str()])
            .inc();
    }

    /// An engine was (or was not) asked.
    pub fn engine_call(&self, outcome: EngineCall) {
        match outcome {
            EngineCall::Answered => self.answered.inc(),
            EngineCall::Cached => self.cached.inc(),
            EngineCall::Failed => self.failed.inc(),
        }
    }

    /// A load ended.
    pub fn loaded(&self, outcome: LoadOutcome) {
        self.loads.with_label_values(&[outcome.as_str()]).inc();
    }

    /// A canary was compared, or was not.
    pub fn canary(&self, outcome: CanaryOutcome) {
        let outcome = match outcome {
            CanaryOutcome::Equal => "equal",
            CanaryOutcome::Differs => "differs",
            CanaryOutcome::NotAsked => "not_asked",
            CanaryOutcome::NotComparable => "not_comparable",
        };
        self.canaries.with_label_values(&[outcome]).inc();
    }

    /// What a request's engine stored is known, or will not be.
    pub fn first_block(&self, outcome: FirstBlockOutcome) {
        let outcome = match outcome {
            FirstBlockOutcome::Stored => "stored",
            FirstBlockOutcome::Missing => "missing",
            FirstBlockOutcome::OtherScope => "other_scope",
            FirstBlockOutcome::Unclear => "unclear",
        };
        self.first_blocks.with_label_values(&[outcome]).inc();
    }

    /// Whether a model's engines have our ids; `None` takes its series away. The name is one that configuration or
    /// engines gave, never a client's.
    pub fn set_parity(&self, model: &str, equal: Option<i64>) {
        match equal {
            Some(equal) => self.parity.with_label_values(&[model]).set(equal),
            // An error says that there is none, which is what is wanted.
            None => drop(self.parity.remove_label_values(&[model])),
        }
    }

    /// So many distinct models are loaded.
    pub fn set_models(&self, models: usize) {
        self.models.set(i64::try_from(models).unwrap_or(i64::MAX));
    }
}
