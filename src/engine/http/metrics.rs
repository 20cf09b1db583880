//! What does the metrics page say? vLLM's names and labels, whole at `/metrics`, by sample name at `/metrics/?name[]=…`.
//!
//! The slash decides, as it does in vLLM: without it the query is ignored.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::engine::fault::Fault;
use crate::engine::observed::{Histogram, Observed};

pub(super) async fn whole(State(app): State<Arc<App>>) -> Response {
    page(&app, &[], "text/plain; version=1.0.0; charset=utf-8")
}

pub(super) async fn filtered(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let names: Vec<_> = query
        .into_iter()
        .filter_map(|(key, value)| (key == "name[]").then_some(value))
        .collect();
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    if app.settings.ranks.api_servers > 1 {
        // Several processes gather their samples in a way that knows no filter; vLLM then answers with nothing.
        return ([(header::CONTENT_TYPE, content_type)], String::new()).into_response();
    }
    page(&app, &names, content_type)
}

fn page(app: &App, names: &[String], content_type: &'static str) -> Response {
    let faults = app.faults();
    if faults.has(Fault::Metrics500) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
    }
    if faults.has(Fault::NoMetrics) {
        return (StatusCode::NOT_FOUND, "Not Found").into_response();
    }
    let observed = observed(app);
    let ranks = app.ranks.iter().zip(&observed);
    let mut page = Page {
        text: String::new(),
        names,
        app,
        ranks: ranks
            .map(|(rank, observed)| (rank.number, observed))
            .collect(),
    };
    if !faults.has(Fault::EmptyMetrics) {
        page.write();
    }
    ([(header::CONTENT_TYPE, content_type)], page.text).into_response()
}

fn observed(app: &App) -> Vec<Observed> {
    let now = app.ranks.iter().map(|rank| rank.observed.lock().clone());
    let now: Vec<_> = now.collect();
    let mut stale = app.stale_page.lock();
    if app.faults().has(Fault::StaleMetrics) {
        stale.get_or_insert(now).clone()
    } else {
        *stale = None;
        now
    }
}

/// A figure of one rank.
type Figure = fn(&Observed) -> f64;

/// Gauges that vLLM sets with each step.
const GAUGES: [(&str, &str, Figure); 2] = [
    (
        "vllm:num_requests_running",
        "Requests being computed.",
        |seen| seen.gauges.running as f64,
    ),
    (
        "vllm:num_requests_waiting",
        "Requests waiting to be scheduled.",
        |seen| seen.gauges.waiting as f64,
    ),
];
const WAITING_BY_REASON: [(&str, Figure); 2] = [
    ("capacity", |seen| seen.gauges.waiting as f64),
    ("deferred", |_| 0.0),
];
const SLEEP_STATES: [(&str, Figure); 3] = [
    ("awake", |seen| f64::from(u8::from(seen.asleep.is_none()))),
    ("weights_offloaded", |seen| {
        f64::from(u8::from(seen.asleep == Some(1)))
    }),
    ("discard_all", |seen| {
        f64::from(u8::from(seen.asleep.is_some_and(|level| level > 1)))
    }),
];
const COUNTERS: [(&str, &str, Figure); 6] = [
    (
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in the cache.",
        |seen| seen.totals.prefix_queries as f64,
    ),
    (
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found in the cache.",
        |seen| seen.totals.prefix_hits as f64,
    ),
    (
        "vllm:num_preemptions_total",
        "Requests that lost their blocks.",
        |seen| seen.totals.preemptions as f64,
    ),
    (
        "vllm:prompt_tokens_total",
        "Prompt tokens prefilled.",
        |seen| seen.totals.prompt_tokens as f64,
    ),
    (
        "vllm:prompt_tokens_cached_total",
        "Prompt tokens taken from the cache.",
        |seen| seen.totals.prompt_tokens_cached as f64,
    ),
    (
        "vllm:generation_tokens_total",
        "Tokens generated.",
        |seen| seen.totals.generation_tokens as f64,
    ),
];
const SOURCES: [(&str, Figure); 3] = [
    ("local_compute", |seen| {
        let totals = seen.totals;
        totals
            .prompt_tokens
            .saturating_sub(totals.prompt_tokens_cached) as f64
    }),
    ("local_cache_hit", |seen| {
        let totals = seen.totals;
        totals
            .prompt_tokens_cached
            .saturating_sub(totals.prompt_tokens_loaded) as f64
    }),
    ("external_kv_transfer", |seen| {
        seen.totals.prompt_tokens_loaded as f64
    }),
];
/// Clients that leave are not counted: vLLM's "abort" is for those that the engine gave up.
const ENDS: [(&str, Figure); 4] = [
    ("stop", |seen| seen.totals.stopped as f64),
    ("length", |seen| seen.totals.length as f64),
    ("abort", |seen| seen.totals.aborted as f64),
    ("error", |_| 0.0),
];
type HistogramOf = fn(&Observed) -> &Histogram;
const HISTOGRAMS: [(&str, &str, HistogramOf); 4] = [
    ("vllm:iteration_tokens_total", "Tokens of a step.", |seen| {
        &seen.step_tokens
    }),
    (
        "vllm:time_to_first_token_seconds",
        "Time to the first token.",
        |seen| &seen.first_token,
    ),
    (
        "vllm:request_queue_time_seconds",
        "Time spent waiting.",
        |seen| &seen.queue,
    ),
    (
        "vllm:request_prefill_time_seconds",
        "Time spent prefilling.",
        |seen| &seen.prefill,
    ),
];

/// A family's name, type and help.
#[derive(Clone, Copy)]
struct Family {
    kind: &'static str,
    name: &'static str,
    help: &'static str,
}

struct Page<'a> {
    text: String,
    /// Sample names wanted; empty for all.
    names: &'a [String],
    app: &'a App,
    /// Each rank's number and state.
    ranks: Vec<(u32, &'a Observed)>,
}

impl Page<'_> {
    fn write(&mut self) {
        let family = |kind, name, help| Family { kind, name, help };
        for (name, help, figure) in GAUGES {
            self.since_step(family("gauge", name, help), None, &[("", figure)]);
        }
        let name = "vllm:num_requests_waiting_by_reason";
        let waiting = family("gauge", name, "Waiting requests by reason.");
        self.since_step(waiting, Some("reason"), &WAITING_BY_REASON);
        let usage = family(
            "gauge",
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache in use, 0 to 1.",
        );
        self.since_step(usage, None, &[("", |seen| seen.gauges.kv_usage)]);
        let sleep = family(
            "gauge",
            "vllm:engine_sleep_state",
            "Whether the engine sleeps.",
        );
        self.figures(sleep, Some("sleep_state"), &SLEEP_STATES);
        self.cache_config();
        for (name, help, figure) in COUNTERS {
            self.figures(family("counter", name, help), None, &[("", figure)]);
        }
        let name = "vllm:prompt_tokens_by_source_total";
        let sources = family("counter", name, "Prompt tokens by source.");
        self.figures(sources, Some("source"), &SOURCES);
        let ends = family(
            "counter",
            "vllm:request_success_total",
            "Requests answered.",
        );
        self.figures(ends, Some("finished_reason"), &ENDS);
        for (name, help, histogram) in HISTOGRAMS {
            self.histogram(family("histogram", name, help), histogram);
        }
    }

    /// Figures of every rank, one for each value of `label`.
    fn figures(&mut self, family: Family, label: Option<&str>, values: &[(&str, Figure)]) {
        let samples = self.samples(family, label, values, |_| true);
        self.family(family, &samples);
    }

    /// The same for gauges that several API servers do not know of before a rank's first step.
    fn since_step(&mut self, family: Family, label: Option<&str>, values: &[(&str, Figure)]) {
        let one_server = self.app.settings.ranks.api_servers == 1;
        let samples = self.samples(family, label, values, |seen| {
            one_server || seen.totals.steps > 0
        });
        self.family(family, &samples);
    }

    fn samples(
        &self,
        family: Family,
        label: Option<&str>,
        values: &[(&str, Figure)],
        shown: impl Fn(&Observed) -> bool,
    ) -> Vec<(String, String, f64)> {
        let mut samples = Vec::new();
        for (of, figure) in values {
            let more = label.map_or_else(String::new, |label| format!(",{label}=\"{of}\""));
            let ranks = self.ranks.iter().filter(|(_, seen)| shown(seen));
            samples.extend(ranks.map(|(rank, seen)| {
                let labels = self.labels(*rank, &more);
                (family.name.to_owned(), labels, figure(seen))
            }));
        }
        samples
    }

    fn histogram(&mut self, family: Family, histogram: HistogramOf) {
        let name = family.name;
        let mut samples = Vec::new();
        for (rank, seen) in &self.ranks {
            let histogram = histogram(seen);
            let mut sum = 0;
            let bounds = histogram.bounds.iter().map(|bound| format!("{bound:?}"));
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.counts) {
                sum += count;
                let labels = self.labels(*rank, &format!(",le=\"{bound}\""));
                samples.push((format!("{name}_bucket"), labels, sum as f64));
            }
            let labels = self.labels(*rank, "");
            samples.push((format!("{name}_count"), labels.clone(), sum as f64));
            samples.push((format!("{name}_sum"), labels, histogram.sum));
        }
        self.family(family, &samples);
    }

    /// vLLM adds the blocks of all ranks up and tells the sum in every rank's sample; the tokens are one rank's.
    fn cache_config(&mut self) {
        let core = &self.app.settings.core;
        let block_size = core.block_size.get();
        let family = Family {
            kind: "gauge",
            name: "vllm:cache_config_info",
            help: "How the KV cache is set up.",
        };
        let sample = |(rank, _): &(u32, _)| {
            let labels = format!(
                "block_size=\"{block_size}\",effective_attention_block_size=\"{block_size}\",\
                 enable_prefix_caching=\"True\",engine=\"{rank}\",kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{}\",\
                 prefix_caching_hash_algo=\"sha256\"",
                core.blocks * block_size as usize,
                core.blocks * self.ranks.len(),
            );
            (family.name.to_owned(), labels, 1.0)
        };
        let samples: Vec<_> = self.ranks.iter().map(sample).collect();
        self.family(family, &samples);
    }

    fn labels(&self, rank: u32, more: &str) -> String {
        let model = self
            .app
            .settings
            .model
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        format!("engine=\"{rank}\",model_name=\"{model}\"{more}")
    }

    /// Writes the samples that are wanted, under their header; on the whole page a header may stand alone.
    fn family(&mut self, family: Family, samples: &[(String, String, f64)]) {
        let wanted =
            |sample: &str| self.names.is_empty() || self.names.iter().any(|name| name == sample);
        let lines: String = samples
            .iter()
            .filter(|(sample, _, _)| wanted(sample))
            .map(|(sample, labels, value)| format!("{sample}{{{labels}}} {value:?}\n"))
            .collect();
        if !lines.is_empty() || self.names.is_empty() {
            let Family { kind, name, help } = family;
            // Writing to a String cannot fail.
            write!(
                self.text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}"
            )
            .ok();
        }
    }
}
