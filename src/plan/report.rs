//! The plan for a person or a script: every figure with the way it came.

use std::fmt::Write as _;

use serde_json::json;

mod found;

use super::inputs::Inputs;
use super::measure::Measured;
use super::resolve::Resolved;
use super::sums::{Fleet, Sums};
use super::verdict::{Choice, Verdict};

pub(super) use found::Found;

/// All there is to tell.
pub(super) struct Plan<'a> {
    pub(super) resolved: &'a Resolved,
    pub(super) measured: Option<&'a Measured>,
    /// What pools find of the recording, when the sums stand on that.
    pub(super) found: Option<Found>,
    pub(super) sums: &'a Sums,
    pub(super) verdict: &'a Verdict,
}

/// For scripts. The keys are those of the types.
pub(super) fn json(plan: &Plan<'_>) -> String {
    let result = json!({
        "inputs": plan.resolved.inputs,
        "origins": plan.resolved.origins,
        "sources": plan.resolved.sources,
        "measured": plan.measured,
        "found": plan.found,
        "sums": plan.sums,
        "verdict": plan.verdict,
    });
    format!("{result:#}")
}

/// For a person.
pub(super) fn text(plan: &Plan<'_>) -> String {
    let mut page = Page::default();
    let (inputs, sums) = (&plan.resolved.inputs, plan.sums);
    given(&mut page, plan.resolved);
    if let Some(measured) = plan.measured {
        trace(&mut page, measured);
    }
    hit(&mut page, inputs, sums);
    room(&mut page, inputs, sums);
    decoding(&mut page, inputs, sums);
    if let Some(found) = &plan.found {
        found.tell(&mut page);
    }
    fleets(&mut page, inputs, sums, plan.found.is_some());
    hot(&mut page, inputs, sums);
    verdict(&mut page, plan.verdict);
    if plan.measured.is_some() && plan.found.is_none() {
        page.text.push_str(
            "  What pools keep is worked out as if requests came independently: the order in the trace says nothing of a load whose prefixes or lengths were given otherwise.\n",
        );
    }
    page.text.trim_end().to_owned()
}

/// Text in three columns: what, how much, how it comes.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, words: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        // A string takes whatever is written to it.
        let _infallible = writeln!(self.text, "{gap}{words}");
    }

    fn line(&mut self, what: &str, figure: &str, how: &str) {
        let line = format!("  {what:<30} {figure:>18}   {how}");
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

fn given(page: &mut Page, resolved: &Resolved) {
    page.head("Inputs");
    for origin in &resolved.origins {
        page.line(
            origin.field,
            &number(origin.value),
            &format!("{:<10} {}", origin.unit, origin.from),
        );
    }
    for source in &resolved.sources {
        let _infallible = writeln!(page.text, "  {source}");
    }
}

fn trace(page: &mut Page, measured: &Measured) {
    page.head("Measured in the trace");
    let of = format!("of {} requests", grouped(measured.requests as f64));
    let rate = measured.rate.map_or_else(
        || "all at once".to_owned(),
        |rate| format!("{} /s", number(rate)),
    );
    page.line("rate", &rate, &of);
    page.line("prompt", &tokens(measured.prompt_tokens), "mean");
    page.line("answer", &tokens(measured.output_tokens), "mean");
    page.line(
        "distinct shared prefixes",
        &grouped(measured.distinct_prefixes as f64),
        "that two requests or more have; the longest of those that contain one another",
    );
    if let Some(hot_share) = measured.hot_share {
        page.line("their length", &tokens(measured.prefix_tokens), "mean");
        let fit = "Zipf exponent that fits best";
        page.line("their skew", &number(measured.skew), fit);
        let set = tokens(measured.set_tokens);
        page.line("all of them", &set, "each token once");
        page.line("hottest", &percent(hot_share), "of the requests");
    }
    page.line(
        "warm requests",
        &percent(measured.warm_share),
        "an earlier one had a block or more",
    );
    page.line(
        "shared part of these",
        &tokens(measured.shared_tokens),
        "mean",
    );
    page.line(
        "shared fraction",
        &percent(measured.shared_share),
        "of all prompt tokens",
    );
}

fn hit(page: &mut Page, inputs: &Inputs, sums: &Sums) {
    page.head("What a hit saves");
    page.line(
        "prefill a token",
        &format!("{:.1} µs", sums.prefill_per_token_s * 1e6),
        &format!(
            "2 × {} parameters / ({} GPUs × {} TFLOP/s × {})",
            grouped(inputs.active_parameters as f64),
            inputs.tensor_parallel,
            number(inputs.tflops),
            number(inputs.mfu)
        ),
    );
    page.line(
        "saved by a hit",
        &ms(sums.saved_per_hit_s),
        &format!(
            "{} shared tokens × prefill a token",
            number(inputs.shared_tokens)
        ),
    );
    page.line(
        "spill threshold",
        &tokens(sums.spill_threshold_tokens),
        &format!(
            "= {}: a warm replica is worth waiting for while no more than this is queued there beyond the others",
            ms(sums.saved_per_hit_s)
        ),
    );
    page.line(
        "TTFT compute, cold",
        &ms(sums.ttft_cold_s),
        &format!(
            "{} prompt tokens × prefill a token",
            number(inputs.prompt_tokens)
        ),
    );
    page.line("TTFT compute, warm", &ms(sums.ttft_warm_s), "cold − saved");
    page.line(
        "prompt tokens saved",
        &percent(sums.saved_share),
        &format!(
            "{} of requests warm × {} of a prompt shared",
            percent(sums.affinity.warm_share),
            percent(inputs.shared_tokens / inputs.prompt_tokens)
        ),
    );
}

fn room(page: &mut Page, inputs: &Inputs, sums: &Sums) {
    page.head("What fits");
    page.line(
        "KV pool of a replica",
        &tokens(sums.pool_tokens),
        &format!(
            "({} GPUs × ({} GB × {} − {} GB) − {:.2} GB weights) / {} bytes a token",
            inputs.tensor_parallel,
            number(inputs.gpu_memory_gb),
            number(inputs.memory_fraction),
            number(inputs.reserved_gb),
            inputs.weight_bytes as f64 / 1e9,
            number(super::sums::kv_bytes_held(inputs)),
        ),
    );
    page.line(
        "unshared, at the decode batch",
        &tokens(sums.unshared_tokens),
        &format!(
            "{} requests × ({} − {} + {} / 2)",
            inputs.decode_batch,
            number(inputs.prompt_tokens),
            number(inputs.shared_tokens),
            number(inputs.output_tokens)
        ),
    );
    page.line(
        "room for prefixes",
        &sums.room_prefixes.map_or_else(
            || "nothing shared".to_owned(),
            |n| format!("{} prefixes", grouped(n as f64)),
        ),
        "(pool − unshared) / shared tokens, whole ones",
    );
    let copies = match inputs.copies() {
        1 => String::new(),
        copies => format!(" × {copies} tenants with salts"),
    };
    page.line(
        "all prefixes",
        &tokens(sums.set_tokens),
        &format!(
            "{} prefixes{copies} × {} tokens = {:.1} pools ({:.2})",
            grouped(inputs.prefixes as f64),
            number(inputs.shared_tokens),
            sums.set_pools,
            sums.set_pools
        ),
    );
}

fn decoding(page: &mut Page, inputs: &Inputs, sums: &Sums) {
    page.head("What decoding costs");
    page.line(
        "decode step",
        &ms_fine(sums.decode_step_s),
        &format!(
            "(weights + {} × ({} + {} / 2) tokens × KV bytes) / ({} GPUs × {} TB/s × {})",
            inputs.decode_batch,
            number(inputs.prompt_tokens),
            number(inputs.output_tokens),
            inputs.tensor_parallel,
            number(inputs.bandwidth_tb_per_s),
            number(inputs.mbu)
        ),
    );
    page.line(
        "replica token rate",
        &format!("{} tok/s", grouped(sums.decode_tokens_per_s)),
        "decode batch / decode step",
    );
    page.line(
        "decoding a request",
        &format!("{:.2} replica-s", sums.decode_per_request_s),
        &format!(
            "{} output tokens / token rate",
            number(inputs.output_tokens)
        ),
    );
}

fn fleets(page: &mut Page, inputs: &Inputs, sums: &Sums, measured: bool) {
    page.head(&format!(
        "The fleet, for {} requests a second at {} of its time in use",
        number(inputs.rate),
        percent(inputs.utilisation)
    ));
    let header = [
        "",
        "warm",
        "prefill",
        "decode",
        "busy",
        "replicas",
        "GPUs",
        "$/M output",
    ];
    row(page, header.map(str::to_owned));
    for (name, fleet) in [
        ("without hits", &sums.cold),
        ("with hits by chance", &sums.chance),
        ("with affinity", &sums.affinity),
    ] {
        row(page, cells(name, fleet));
    }
    let warm = if measured {
        "warm: found tokens / shared tokens, by chance and with affinity as measured for so many pools"
    } else {
        "warm by chance: what an LRU cache as large as one pool keeps; with affinity: as large as all pools together"
    };
    for line in [
        "prefill, decode, busy: replica-seconds a second = rate × (cold − warm share × saved), rate × decoding a request, their sum",
        "replicas = busy / utilisation, rounded up; GPUs × price / 3600 / (rate × output tokens) × 10^6 = $ per million",
        warm,
    ] {
        let _infallible = writeln!(page.text, "  {line}");
    }
    let each = sums.prefixes_per_replica;
    let figure = if each < 1.0 {
        number(each)
    } else {
        format!("about {each:.0}")
    };
    page.line(
        "prefixes a replica",
        &figure,
        "with affinity: all prefixes / replicas",
    );
}

fn row(page: &mut Page, cells: [String; 8]) {
    let [name, warm, prefill, decode, busy, replicas, gpus, dollars] = cells;
    let line = format!(
        "  {name:<20} {warm:>8} {prefill:>9} {decode:>9} {busy:>9} {replicas:>9} {gpus:>9} {dollars:>11}"
    );
    page.text.push_str(line.trim_end());
    page.text.push('\n');
}

fn cells(name: &str, fleet: &Fleet) -> [String; 8] {
    [
        name.to_owned(),
        percent(fleet.warm_share),
        three(fleet.prefill_load),
        three(fleet.decode_load),
        three(fleet.load),
        grouped(fleet.replicas as f64),
        grouped(fleet.gpus as f64),
        fleet
            .dollars_per_million_output
            .map_or_else(|| "no price".to_owned(), |dollars| format!("${dollars:.2}")),
    ]
}

/// Nothing, where no prefix is shared.
fn hot(page: &mut Page, inputs: &Inputs, sums: &Sums) {
    let (Some(share), Some(rate), Some(owners)) =
        (inputs.hot_share, sums.hot_rate, sums.hot_owners)
    else {
        return;
    };
    page.head("A hot prefix");
    page.line(
        "a warm request",
        &format!("{:.2} replica-s", sums.warm_request_s),
        "TTFT compute, warm + decoding a request",
    );
    page.line(
        "a replica takes",
        &format!("{} /s", three(sums.warm_requests_per_replica)),
        "of these: utilisation / that",
    );
    page.line(
        "owners it needs",
        &format!("{owners:.1}"),
        &format!(
            "{} of the traffic = {} /s, / what a replica takes",
            percent(share),
            number(rate)
        ),
    );
}

fn verdict(page: &mut Page, verdict: &Verdict) {
    let choice = match verdict.choice {
        Choice::Affinity => "affinity",
        Choice::LeastQueuedTokens => "least queued tokens",
        Choice::Indifferent => "indifferent",
    };
    page.head(&format!("Verdict: {choice}"));
    for words in verdict.reasons.iter().chain(&verdict.notes) {
        let _infallible = writeln!(page.text, "  {words}.");
    }
    page.text.push_str(
        "  These sums know a steady load and no queue; `warmpath simulate` shows the queueing of the same fleet.\n",
    );
}

fn tokens(value: f64) -> String {
    format!("{} tokens", grouped(value))
}

fn ms(seconds: f64) -> String {
    if seconds < 0.01 {
        ms_fine(seconds)
    } else {
        format!("{} ms", grouped(seconds * 1e3))
    }
}

fn ms_fine(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn percent(share: f64) -> String {
    format!("{} %", number((share * 1e3).round() / 10.0))
}

/// Three significant digits, and all before the point.
fn three(value: f64) -> String {
    match value {
        _ if value >= 100.0 => grouped(value),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// As short as four digits after the point allow.
fn number(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1e4 {
        return grouped(value);
    }
    if value.abs() >= 100.0 {
        return format!("{value:.1}");
    }
    if value.abs() < 1e-3 {
        return format!("{value:.2e}");
    }
    let digits = format!("{value:.4}");
    digits
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

/// A whole number, its thousands set apart.
fn grouped(value: f64) -> String {
    crate::simulate::report::grouped(&format!("{value:.0}"))
}
