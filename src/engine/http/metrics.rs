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
    page(&app, &names, "text/plain; version=0.0.4; charset=utf-8")
}

fn page(app: &App, names: &[String], content_type: &'static str) -> Response {
    if app.faults.has(Fault::Metrics500) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
    }
    if app.faults.has(Fault::NoMetrics) {
        return (StatusCode::NOT_FOUND, "Not Found").into_response();
    }
    let mut page = Page {
        text: String::new(),
        names,
        app,
    };
    if !app.faults.has(Fault::EmptyMetrics) {
        page.write(&observed(app));
    }
    ([(header::CONTENT_TYPE, content_type)], page.text).into_response()
}

fn observed(app: &App) -> Observed {
    let now = app.observed.lock().clone();
    let mut stale = app.stale_page.lock();
    if app.faults.has(Fault::StaleMetrics) {
        stale.get_or_insert(now).clone()
    } else {
        *stale = None;
        now
    }
}

struct Page<'a> {
    text: String,
    /// Sample names wanted; empty for all.
    names: &'a [String],
    app: &'a App,
}

impl Page<'_> {
    fn write(&mut self, observed: &Observed) {
        let (gauges, totals) = (observed.gauges, observed.totals);
        self.one(
            "gauge",
            "vllm:num_requests_running",
            "Requests being computed.",
            gauges.running as f64,
        );
        self.one(
            "gauge",
            "vllm:num_requests_waiting",
            "Requests waiting to be scheduled.",
            gauges.waiting as f64,
        );
        let reasons = [("capacity", gauges.waiting as f64), ("deferred", 0.0)];
        self.many(
            "gauge",
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by reason.",
            "reason",
            &reasons,
        );
        self.one(
            "gauge",
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache in use, 0 to 1.",
            gauges.kv_usage,
        );
        let sleep = [
            ("awake", 1.0),
            ("weights_offloaded", 0.0),
            ("discard_all", 0.0),
        ];
        self.many(
            "gauge",
            "vllm:engine_sleep_state",
            "Whether the engine sleeps.",
            "sleep_state",
            &sleep,
        );
        self.cache_config();
        let counters = [
            (
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the cache.",
                totals.prefix_queries,
            ),
            (
                "vllm:prefix_cache_hits",
                "Prompt tokens found in the cache.",
                totals.prefix_hits,
            ),
            (
                "vllm:num_preemptions",
                "Requests that lost their blocks.",
                totals.preemptions,
            ),
            (
                "vllm:prompt_tokens",
                "Prompt tokens prefilled.",
                totals.prompt_tokens,
            ),
            (
                "vllm:prompt_tokens_cached",
                "Prompt tokens taken from the cache.",
                totals.prompt_tokens_cached,
            ),
            (
                "vllm:generation_tokens",
                "Tokens generated.",
                totals.generation_tokens,
            ),
        ];
        for (name, help, value) in counters {
            self.one("counter", &format!("{name}_total"), help, value as f64);
        }
        let cached = totals.prompt_tokens_cached;
        let sources = [
            (
                "local_compute",
                totals.prompt_tokens.saturating_sub(cached) as f64,
            ),
            ("local_cache_hit", cached as f64),
            ("external_kv_transfer", 0.0),
        ];
        self.many(
            "counter",
            "vllm:prompt_tokens_by_source_total",
            "Prompt tokens by source.",
            "source",
            &sources,
        );
        // Clients that leave are not counted: vLLM's "abort" stays at zero for them.
        let ends = [
            ("stop", totals.stopped as f64),
            ("length", totals.length as f64),
            ("abort", 0.0),
            ("error", 0.0),
        ];
        self.many(
            "counter",
            "vllm:request_success_total",
            "Requests answered.",
            "finished_reason",
            &ends,
        );
        self.histogram(
            "vllm:iteration_tokens_total",
            "Tokens of a step.",
            &observed.step_tokens,
        );
        self.histogram(
            "vllm:time_to_first_token_seconds",
            "Time to the first token.",
            &observed.first_token,
        );
        self.histogram(
            "vllm:request_queue_time_seconds",
            "Time spent waiting.",
            &observed.queue,
        );
        self.histogram(
            "vllm:request_prefill_time_seconds",
            "Time spent prefilling.",
            &observed.prefill,
        );
    }

    fn one(&mut self, kind: &str, name: &str, help: &str, value: f64) {
        self.family(
            kind,
            name,
            help,
            &[(name.to_owned(), self.labels(""), value)],
        );
    }

    fn many(&mut self, kind: &str, name: &str, help: &str, label: &str, values: &[(&str, f64)]) {
        let samples: Vec<_> = values
            .iter()
            .map(|(of, value)| {
                (
                    name.to_owned(),
                    self.labels(&format!(",{label}=\"{of}\"")),
                    *value,
                )
            })
            .collect();
        self.family(kind, name, help, &samples);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let mut sum = 0;
        let mut samples = Vec::new();
        let bounds = histogram.bounds.iter().map(|bound| format!("{bound:?}"));
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.counts) {
            sum += count;
            let labels = self.labels(&format!(",le=\"{bound}\""));
            samples.push((format!("{name}_bucket"), labels, sum as f64));
        }
        samples.push((format!("{name}_count"), self.labels(""), sum as f64));
        samples.push((format!("{name}_sum"), self.labels(""), histogram.sum));
        self.family("histogram", name, help, &samples);
    }

    fn cache_config(&mut self) {
        let core = &self.app.settings.core;
        let block_size = core.block_size.get();
        let labels = format!(
            "block_size=\"{block_size}\",effective_attention_block_size=\"{block_size}\",\
             enable_prefix_caching=\"True\",engine=\"0\",kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{}\",\
             prefix_caching_hash_algo=\"sha256\"",
            core.blocks * block_size as usize,
            core.blocks,
        );
        let name = "vllm:cache_config_info";
        self.family(
            "gauge",
            name,
            "How the KV cache is set up.",
            &[(name.to_owned(), labels, 1.0)],
        );
    }

    fn labels(&self, more: &str) -> String {
        let model = self
            .app
            .settings
            .model
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        format!("engine=\"0\",model_name=\"{model}\"{more}")
    }

    /// Writes the samples that are wanted, under their header.
    fn family(&mut self, kind: &str, name: &str, help: &str, samples: &[(String, String, f64)]) {
        let wanted =
            |sample: &str| self.names.is_empty() || self.names.iter().any(|name| name == sample);
        let lines: String = samples
            .iter()
            .filter(|(sample, _, _)| wanted(sample))
            .map(|(sample, labels, value)| format!("{sample}{{{labels}}} {value:?}\n"))
            .collect();
        if !lines.is_empty() {
            // Writing to a String cannot fail.
            write!(
                self.text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}"
            )
            .ok();
        }
    }
}
