//! What is to be seen while traffic runs? One row an endpoint, or one line of everything.

use std::time::Duration;

use super::operator::{Decision, EndpointState};
use super::phase::{EngineSeen, Policy, Seen};
use super::report::{median, milliseconds, percent, thousands};

/// All that is known at one moment.
pub(super) struct Moment {
    /// Whose turn it is.
    pub(super) policy: Policy,
    /// Since it began.
    pub(super) elapsed: Duration,
    /// How long requests are sent.
    pub(super) duration: Duration,
    /// By the clients.
    pub(super) seen: Seen,
    /// By the picker.
    pub(super) state: Vec<EndpointState>,
    /// Blocks of the hot prefix at each engine, by its own books.
    pub(super) hot_blocks: Vec<usize>,
    /// Blocks of the hot prefix.
    pub(super) hot_total: usize,
    /// The last pick.
    pub(super) decision: Option<Decision>,
}

/// What is not known.
const UNKNOWN: &str = "-";

/// The table, for a terminal of 80 columns.
pub(super) fn whole(moment: &Moment) -> Vec<String> {
    let number = match moment.policy {
        Policy::RoundRobin => 1,
        Policy::LeastPrefill => 2,
    };
    let mut lines = vec![
        format!("{number}/2 {}: {}", moment.policy.name(), progress(moment)),
        row([
            "endpoint",
            "requests",
            "cached",
            "in flight",
            "queued",
            "pool filled",
            "in use",
            "hot prefix",
        ]),
    ];
    for (place, engine) in moment.seen.engines.iter().enumerate() {
        lines.push(endpoint(moment, place, engine));
    }
    lines.push(match (&moment.decision, moment.policy) {
        (Some(decision), _) => last_pick(decision),
        (None, Policy::LeastPrefill) => "last pick: none yet".to_owned(),
        (None, Policy::RoundRobin) => {
            "queued is - because nobody counts prompt tokens: the picker is not asked".to_owned()
        }
    });
    lines
}

/// One line, for a file or a pipe.
pub(super) fn line(moment: &Moment) -> String {
    let engines = &moment.seen.engines;
    let each = |of: &dyn Fn(usize, &EngineSeen) -> String| {
        let words: Vec<String> = engines
            .iter()
            .enumerate()
            .map(|(place, engine)| of(place, engine))
            .collect();
        words.join("/")
    };
    let owners = moment.hot_blocks.iter();
    let owners = owners.filter(|blocks| **blocks == moment.hot_total).count();
    format!(
        "{:13} {}; requests {}, cached {}, queued {}; hot prefix on {owners} of {}",
        moment.policy.name(),
        progress(moment),
        each(&|_, engine| engine.requests.to_string()),
        percent(cached_share(engines)),
        each(&|place, _| queued(moment, place)),
        engines.len(),
    )
}

fn progress(moment: &Moment) -> String {
    let Seen {
        first_data, errors, ..
    } = &moment.seen;
    format!(
        "{:4.1} of {:.0} s, {} answered, {errors} failed, median TTFT {}",
        moment
            .elapsed
            .as_secs_f64()
            .min(moment.duration.as_secs_f64()),
        moment.duration.as_secs_f64(),
        first_data.len(),
        median(first_data).map_or_else(|| UNKNOWN.to_owned(), milliseconds),
    )
}

fn endpoint(moment: &Moment, place: usize, engine: &EngineSeen) -> String {
    let state = state(moment, place);
    let share = |share: Option<f64>| share.map_or_else(|| UNKNOWN.to_owned(), |s| percent(Some(s)));
    let hot = moment.hot_blocks.get(place).copied().unwrap_or_default();
    let hot = if hot == moment.hot_total {
        format!("yes {hot}/{}", moment.hot_total)
    } else {
        format!("no {hot}/{}", moment.hot_total)
    };
    row([
        &format!("engine-{place}"),
        &engine.requests.to_string(),
        &percent(cached_share(std::slice::from_ref(engine))),
        &engine.in_flight.to_string(),
        &queued(moment, place),
        &share(state.and_then(EndpointState::filled)),
        &share(state.and_then(EndpointState::kv_usage)),
        &hot,
    ])
}

fn state(moment: &Moment, place: usize) -> Option<&EndpointState> {
    let address = moment.seen.engines.get(place)?.address;
    moment
        .state
        .iter()
        .find(|endpoint| endpoint.address == address)
}

fn queued(moment: &Moment, place: usize) -> String {
    match (moment.policy, state(moment, place)) {
        (Policy::LeastPrefill, Some(state)) => thousands(state.queued_tokens),
        _ => UNKNOWN.to_owned(),
    }
}

/// Cached prompt tokens of all prompt tokens.
pub(super) fn cached_share(engines: &[EngineSeen]) -> Option<f64> {
    let prompt: u64 = engines.iter().map(|engine| engine.prompt_tokens).sum();
    let cached: u64 = engines.iter().map(|engine| engine.cached_tokens).sum();
    (prompt > 0).then(|| cached as f64 / prompt as f64)
}

fn last_pick(decision: &Decision) -> String {
    let short = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let others = decision
        .candidates
        .iter()
        .filter(|candidate| candidate.endpoint != decision.endpoint);
    let next_best = others.map(|candidate| candidate.cost_tokens).min();
    let uncached = decision
        .prompt_tokens
        .saturating_sub(decision.cached_tokens);
    let elsewhere = next_best.map_or_else(String::new, |cost| {
        format!("; elsewhere {} or more", thousands(cost))
    });
    let here = decision
        .candidates
        .iter()
        .find(|candidate| candidate.endpoint == decision.endpoint);
    let price = if decision.price > 1.005 {
        format!(" × {:.2}", decision.price)
    } else {
        String::new()
    };
    format!(
        "last pick: {}: {} queued + {} uncached{price} = {}{elsewhere}",
        short(&decision.endpoint),
        thousands(decision.queued_tokens),
        thousands(uncached),
        here.map_or_else(|| UNKNOWN.to_owned(), |here| thousands(here.cost_tokens)),
    )
}

fn row(cells: [&str; 8]) -> String {
    let [
        endpoint,
        requests,
        cached,
        in_flight,
        queued,
        filled,
        used,
        hot,
    ] = cells;
    format!(
        "{endpoint:<10}{requests:>8}{cached:>8}{in_flight:>11}{queued:>9}{filled:>13}{used:>8}{hot:>13}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_fits_a_terminal_of_eighty_columns() {
        let widest = [
            "engine-15",
            "99999",
            "100.0 %",
            "9999",
            "999,999",
            "100.0 %",
            "100.0 %",
            "yes 999/999",
        ];
        assert_eq!(row(widest).chars().count(), 80);
    }
}
