//! What a metrics page says of an engine's state. Pure; total on any bytes.
//!
//! Only the few series of a [`Report`] are read, under the names that vLLM, SGLang and
//! TensorRT-LLM give them; every other line costs one comparison of its first bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::pool::LAST_RANK;
use crate::routing::endpoint::Report;
use crate::routing::tokens::TokenCount;

/// How much of a report a page holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Page {
    /// At least one sample of ours: the whole server's report, and those of vLLM's data-parallel
    /// ranks where its series name them.
    Told(Report, BTreeMap<u32, Report>),
    /// No sample, but the families are announced: an engine before its first step. All gauges are 0.
    Announced,
    /// Nothing of ours: a filter that found nothing, or another kind of page.
    Foreign,
}

/// What a series tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Series {
    KvUsage,
    Running,
    Waiting,
    /// vLLM: block size and capacity stand in the labels.
    VllmCacheConfig,
    /// SGLang and TensorRT-LLM: tokens a block.
    TokensPerBlock,
    /// SGLang: tokens the pool holds.
    CapacityTokens,
    /// TensorRT-LLM: blocks the pool holds.
    CapacityBlocks,
    /// Requests finished, split by reason or by another label. vLLM leaves out those whose client left.
    Finished,
    /// Prompt tokens, cached ones included, when their prefill (SGLang: their request) ends.
    Prompt,
    /// Output tokens.
    Generated,
    /// vLLM: prompt tokens looked for in the cache, when their request is scheduled.
    LookedUp,
    /// Prompt tokens found in the cache, counted at the same moments as `LookedUp`, or else as `Prompt`.
    FoundCached,
    /// vLLM: one sample a state, 1 for the one it is in.
    Sleep,
}

/// The samples of vLLM that are asked for by name, where its server obeys the filter.
pub(super) const ASKED_OF_VLLM: [&str; 10] = [
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:cache_config_info",
    "vllm:request_success_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:engine_sleep_state",
];

/// Prefixes by which a line is worth reading.
const PREFIXES: [&str; 3] = ["vllm:", "sglang:", "trtllm_"];

fn series(name: &str) -> Option<Series> {
    Some(match name {
        // `gpu_cache_usage_perc` is the name up to vLLM 0.11.
        "vllm:kv_cache_usage_perc"
        | "vllm:gpu_cache_usage_perc"
        | "sglang:token_usage"
        | "trtllm_kv_cache_utilization" => Series::KvUsage,
        "vllm:num_requests_running" | "sglang:num_running_reqs" | "trtllm_num_requests_running" => {
            Series::Running
        }
        "vllm:num_requests_waiting" | "sglang:num_queue_reqs" | "trtllm_num_requests_waiting" => {
            Series::Waiting
        }
        "vllm:cache_config_info" => Series::VllmCacheConfig,
        "sglang:page_size" | "trtllm_kv_cache_tokens_per_block" => Series::TokensPerBlock,
        "sglang:max_total_num_tokens" => Series::CapacityTokens,
        "trtllm_kv_cache_max_blocks" => Series::CapacityBlocks,
        "vllm:request_success_total"
        | "sglang:num_requests_total"
        | "trtllm_request_success_total" => Series::Finished,
        "vllm:prompt_tokens_total"
        | "sglang:prompt_tokens_total"
        | "trtllm_prompt_tokens_total" => Series::Prompt,
        "vllm:generation_tokens_total"
        | "sglang:generation_tokens_total"
        | "trtllm_generation_tokens_total" => Series::Generated,
        // `gpu_prefix_cache_…` is the name up to vLLM 0.11.
        "vllm:prefix_cache_queries_total" | "vllm:gpu_prefix_cache_queries_total" => {
            Series::LookedUp
        }
        "vllm:prefix_cache_hits_total"
        | "vllm:gpu_prefix_cache_hits_total"
        | "sglang:cached_tokens_total"
        | "trtllm_prompt_cached_tokens_total" => Series::FoundCached,
        "vllm:engine_sleep_state" => Series::Sleep,
        _ => return None,
    })
}

/// Reads a page in the Prometheus text format.
pub fn parse(page: &[u8]) -> Page {
    let mut gathered = Gathered::default();
    for line in page.split(|byte| *byte == b'\n') {
        // A line that is not UTF-8 is none of ours.
        if let Ok(line) = std::str::from_utf8(line) {
            gathered.line(line.trim_end_matches('\r'));
        }
    }
    gathered.page()
}

/// Values by the rank they belong to; the rank's label differs by engine.
#[derive(Default)]
struct Gathered {
    announced: bool,
    told: bool,
    kv_usage: f64,
    /// A tensor-parallel engine reports one number once a rank: the greatest counts once a data-parallel rank.
    running: BTreeMap<String, u64>,
    waiting: BTreeMap<String, u64>,
    block_size: Option<u32>,
    capacity_tokens: Option<u64>,
    capacity_blocks: Option<u64>,
    counted: Counted,
    asleep: bool,
    /// vLLM's `num_gpu_blocks` is the sum over ranks, and each rank has a series of its own.
    n_config_series: u64,
    /// The same for the samples of one engine (vLLM's data-parallel rank) alone.
    ranks: BTreeMap<u32, Self>,
}

/// What has been counted since the engine started; `None` is a counter that the page does not have.
#[derive(Default)]
struct Counted {
    finished: Option<u64>,
    prompt: Option<u64>,
    generated: Option<u64>,
    looked_up: Option<u64>,
    found_cached: Option<u64>,
}

impl Counted {
    fn counter(&mut self, series: Series) -> Option<&mut Option<u64>> {
        Some(match series {
            Series::Finished => &mut self.finished,
            Series::Prompt => &mut self.prompt,
            Series::Generated => &mut self.generated,
            Series::LookedUp => &mut self.looked_up,
            Series::FoundCached => &mut self.found_cached,
            _ => return None,
        })
    }

    fn generated(&self) -> u64 {
        self.generated.unwrap_or_default()
    }

    /// Tokens computed, those found in the cache included, as prompts are counted.
    fn computed(&self) -> Option<u64> {
        Some(self.prompt?.saturating_add(self.generated()))
    }

    /// Tokens computed that were not found in the cache.
    fn fresh(&self) -> Option<u64> {
        let looked_up = self.looked_up.or(self.prompt)?;
        let uncached = looked_up.saturating_sub(self.found_cached?);
        Some(uncached.saturating_add(self.generated()))
    }
}

impl Gathered {
    fn line(&mut self, line: &str) {
        if let Some(comment) = line.strip_prefix("# TYPE ") {
            let name = comment.split(' ').next().unwrap_or_default();
            self.announced |= series(name).is_some();
            return;
        }
        if !PREFIXES.iter().any(|prefix| line.starts_with(prefix)) {
            return;
        }
        let end = line.find(['{', ' ', '\t']).unwrap_or(line.len());
        let Some((name, rest)) = line.split_at_checked(end) else {
            return;
        };
        let Some(series) = series(name) else { return };
        let Some((labels, value)) = labels_and_value(rest) else {
            return;
        };
        let rank = label(&labels, "engine").and_then(|rank| rank.parse().ok());
        if let Some(rank) = rank.filter(|rank| *rank <= LAST_RANK) {
            let of_rank = self.ranks.entry(rank).or_default();
            of_rank.sample(series, &labels, value);
        }
        self.sample(series, &labels, value);
    }

    fn sample(&mut self, series: Series, labels: &Labels<'_>, value: f64) {
        // With priority scheduling SGLang splits the same requests by priority as well.
        if label(labels, "priority").is_some_and(|priority| !priority.is_empty()) {
            return;
        }
        if let Some(counter) = self.counted.counter(series) {
            // Each tensor-parallel rank of SGLang counts the same tokens.
            if label(labels, "tp_rank").is_none_or(|rank| rank == "0") {
                let before = counter.unwrap_or_default();
                *counter = Some(before.saturating_add(whole(value)));
            }
            // A page of nothing but counters would tell of gauges that they are 0.
            return;
        }
        self.told = true;
        match series {
            Series::Sleep => self.asleep |= is_asleep(labels, value),
            Series::KvUsage => self.kv_usage = self.kv_usage.max(value.clamp(0.0, 1.0)),
            Series::Running => raise(&mut self.running, labels, value),
            Series::Waiting => raise(&mut self.waiting, labels, value),
            Series::VllmCacheConfig => self.cache_config(labels),
            Series::TokensPerBlock => self.block_size = u32::try_from(whole(value)).ok(),
            Series::CapacityTokens => self.capacity_tokens = Some(whole(value)),
            Series::CapacityBlocks => self.capacity_blocks = Some(whole(value)),
            Series::Finished
            | Series::Prompt
            | Series::Generated
            | Series::LookedUp
            | Series::FoundCached => {}
        }
    }

    fn cache_config(&mut self, labels: &Labels<'_>) {
        self.n_config_series += 1;
        let number = |name| label(labels, name).and_then(|text| text.parse::<u64>().ok());
        // Where an engine inflates its blocks (hybrid models), events speak of the effective size.
        let block_size = number("effective_attention_block_size").or_else(|| number("block_size"));
        self.block_size = block_size
            .and_then(|size| u32::try_from(size).ok())
            .or(self.block_size);
        self.capacity_tokens = number("kv_cache_size_tokens").or(self.capacity_tokens);
        self.capacity_blocks = number("num_gpu_blocks").or(self.capacity_blocks);
    }

    fn page(self) -> Page {
        if !self.told {
            return match self.announced {
                true => Page::Announced,
                false => Page::Foreign,
            };
        }
        let block_size = self.block_size.filter(|size| *size > 0);
        let from_blocks = || {
            let blocks = self.capacity_blocks? / self.n_config_series.max(1);
            blocks.checked_mul(u64::from(block_size?))
        };
        let kv_capacity = self
            .capacity_tokens
            .or_else(from_blocks)
            .filter(|tokens| *tokens > 0)
            .map(TokenCount::new);
        let of_rank = |(rank, gathered): (u32, Self)| match gathered.page() {
            // One rank's series gives the sum of all ranks' blocks: the capacity is the whole's, which is a rank's.
            Page::Told(report, _) => Some((
                rank,
                Report {
                    block_size,
                    kv_capacity,
                    ..report
                },
            )),
            Page::Announced | Page::Foreign => None,
        };
        let ranks = self.ranks.into_iter().filter_map(of_rank).collect();
        let whole = Report {
            kv_usage: self.kv_usage,
            running: self.running.into_values().fold(0, u64::saturating_add),
            waiting: self.waiting.into_values().fold(0, u64::saturating_add),
            block_size,
            kv_capacity,
            finished: self.counted.finished,
            computed: self.counted.computed(),
            fresh: self.counted.fresh(),
            asleep: self.asleep,
        };
        Page::Told(whole, ranks)
    }
}

/// Any other state than awake, whether the page says so of this one or of the others. A paused engine (sleep
/// level 0) is none of them; it takes no requests either.
fn is_asleep(labels: &Labels<'_>, value: f64) -> bool {
    match label(labels, "sleep_state") {
        Some("awake") => value == 0.0,
        Some("weights_offloaded" | "discard_all") => value > 0.0,
        _ => false,
    }
}

fn raise(ranks: &mut BTreeMap<String, u64>, labels: &Labels<'_>, value: f64) {
    let rank = label(labels, "engine").or_else(|| label(labels, "dp_rank"));
    let model = label(labels, "model_name").unwrap_or_default();
    let key = format!("{} {model}", rank.unwrap_or_default());
    let highest = ranks.entry(key).or_default();
    *highest = (*highest).max(whole(value));
}

/// A gauge as a whole number; negative ones are 0.
fn whole(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, which is what a nonsensical gauge deserves"
    )]
    {
        value as u64
    }
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

fn label<'a>(labels: &'a Labels<'_>, name: &str) -> Option<&'a str> {
    labels
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.as_ref())
}

/// Splits `{a="b",…} 1.0 [timestamp]`; `None` for what is no sample or not a number.
fn labels_and_value(rest: &str) -> Option<(Labels<'_>, f64)> {
    let mut labels = Labels::new();
    let mut rest = rest;
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            inside = inside.trim_start_matches([',', ' ']);
            if let Some(after) = inside.strip_prefix('}') {
                rest = after;
                break;
            }
            let (name, quoted) = inside.split_once("=\"")?;
            let (value, after) = quoted_value(quoted)?;
            labels.push((name.trim(), value));
            inside = after;
        }
    }
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!value.is_nan()).then_some((labels, value))
}

/// The text up to the closing quote with its escapes undone, and what follows the quote.
fn quoted_value(quoted: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = quoted.find(['"', '\\'])?;
    let (plain, from_mark) = quoted.split_at_checked(end)?;
    if let Some(after) = from_mark.strip_prefix('"') {
        return Some((Cow::Borrowed(plain), after));
    }
    let mut value = plain.to_owned();
    let mut chars = from_mark.chars();
    loop {
        match chars.next()? {
            '"' => return Some((Cow::Owned(value), chars.as_str())),
            '\\' => match chars.next()? {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            plain => value.push(plain),
        }
    }
}

#[cfg(test)]
mod tests;
