//! What does an operator see? The picker's own pages, read over HTTP like anybody does.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Longest wait for a page. A busy machine is slow, a dead picker is noticed elsewhere.
const DEADLINE: Duration = Duration::from_secs(10);

/// Reads the pages of one picker.
pub(super) struct Operator {
    client: reqwest::Client,
    picker: SocketAddr,
}

/// One endpoint of `/debug/state`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct EndpointState {
    /// Where it is.
    pub(super) address: SocketAddr,
    ready: bool,
    /// Prompt tokens booked there and not yet prefilled.
    pub(super) queued_tokens: u64,
    /// Blocks known to be cached there.
    pub(super) cached_blocks: u64,
    block_size_tokens: Option<u64>,
    report: Report,
    feeds: Vec<Feed>,
}

#[derive(Clone, Debug, Deserialize)]
struct Report {
    kv_usage: Option<f64>,
    kv_capacity_tokens: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Feed {
    state: String,
}

#[derive(Deserialize)]
struct State {
    endpoints: Vec<EndpointState>,
}

/// One pick of `/debug/decisions`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Decision {
    /// The endpoint's name.
    pub(super) endpoint: String,
    /// Prompt tokens.
    pub(super) prompt_tokens: u64,
    /// Of these, foreseen to be cached there.
    pub(super) cached_tokens: u64,
    /// Prompt tokens queued there before.
    pub(super) queued_tokens: u64,
    /// What a token of work cost.
    pub(super) price: f64,
    /// Everyone who was considered.
    pub(super) candidates: Vec<Candidate>,
}

/// An endpoint as a pick saw it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Candidate {
    /// Its name.
    pub(super) endpoint: String,
    /// What the request would have cost there.
    pub(super) cost_tokens: u64,
}

/// What became of predictions of cached tokens, from `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Predictions {
    /// As the engine reported.
    pub(super) equal: u64,
    /// The engine had fewer or more.
    pub(super) different: u64,
    /// Not to be compared: no report, estimated ids, another endpoint.
    pub(super) not_compared: u64,
}

impl Predictions {
    /// All of them.
    pub(super) const fn total(self) -> u64 {
        self.equal + self.different + self.not_compared
    }

    /// Those that came after `earlier`.
    pub(super) const fn since(self, earlier: Self) -> Self {
        Self {
            equal: self.equal.saturating_sub(earlier.equal),
            different: self.different.saturating_sub(earlier.different),
            not_compared: self.not_compared.saturating_sub(earlier.not_compared),
        }
    }
}

impl EndpointState {
    /// Share of its KV pool that holds cached blocks, 0 to 1, once its size is known.
    pub(super) fn filled(&self) -> Option<f64> {
        let capacity = self
            .report
            .kv_capacity_tokens
            .filter(|tokens| *tokens > 0)?;
        let cached = self.cached_blocks * self.block_size_tokens?;
        Some(cached as f64 / capacity as f64)
    }

    /// Share of its KV pool in use by running requests at its last report, 0 to 1.
    pub(super) const fn kv_usage(&self) -> Option<f64> {
        self.report.kv_usage
    }

    fn is_known(&self) -> bool {
        self.ready
            && self.block_size_tokens.is_some()
            && !self.feeds.is_empty()
            && self.feeds.iter().all(|feed| feed.state == "live")
    }
}

impl Operator {
    /// Reads the pages at `picker`.
    ///
    /// # Errors
    /// When no HTTP client can be set up.
    pub(super) fn new(picker: SocketAddr) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().timeout(DEADLINE).build()?;
        Ok(Self { client, picker })
    }

    /// The endpoints, in the order of the endpoints file.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub(super) async fn state(&self) -> anyhow::Result<Vec<EndpointState>> {
        let state: State = self.json("/debug/state").await?;
        Ok(state.endpoints)
    }

    /// The last pick, if there is one.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub(super) async fn last_decision(&self) -> anyhow::Result<Option<Decision>> {
        let mut decisions: Vec<Decision> = self.json("/debug/decisions?n=1").await?;
        Ok(decisions.pop())
    }

    /// What became of all predictions so far.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub(super) async fn predictions(&self) -> anyhow::Result<Predictions> {
        Ok(predictions(&self.page("/metrics").await?))
    }

    /// What keeps the picker from knowing all of so many engines and their tokenizer; `None` when nothing does.
    ///
    /// # Errors
    /// When a page cannot be read.
    pub(super) async fn missing(&self, engines: usize) -> anyhow::Result<Option<String>> {
        let known = self.state().await?;
        let known = known.iter().filter(|endpoint| endpoint.is_known()).count();
        if known < engines {
            return Ok(Some(format!(
                "the picker knows the KV events of {known} of {engines} engines"
            )));
        }
        let models = sum(&self.page("/metrics").await?, "warmpath_models_loaded", "");
        Ok((models == 0).then(|| "the picker has not loaded the tokenizer".to_owned()))
    }

    async fn json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let page = self.page(path).await?;
        serde_json::from_str(&page)
            .with_context(|| format!("the picker's {path} is not as expected"))
    }

    async fn page(&self, path: &str) -> anyhow::Result<String> {
        let url = format!("http://{}{path}", self.picker);
        let read = async {
            let answer = self.client.get(&url).send().await?;
            answer.error_for_status()?.text().await
        };
        read.await.context("the picker's page cannot be read")
    }
}

fn predictions(metrics: &str) -> Predictions {
    let of = |result: &str| {
        let label = format!("result=\"{result}\"");
        sum(metrics, "warmpath_predictions_total", &label)
    };
    Predictions {
        equal: of("equal"),
        different: of("too_high") + of("too_low"),
        not_compared: [
            "not_reported",
            "estimated",
            "cache_not_read",
            "served_elsewhere",
        ]
        .map(of)
        .iter()
        .sum(),
    }
}

/// The sum of all series of a metric that have this label; of counters and gauges with whole numbers.
fn sum(metrics: &str, name: &str, label: &str) -> u64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let same_name = labels.is_empty() || labels.starts_with('{');
        (same_name && labels.contains(label)).then(|| value.parse::<u64>().ok())?
    };
    metrics.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE warmpath_predictions_total counter
warmpath_predictions_total{result=\"equal\"} 12
warmpath_predictions_total{result=\"too_high\"} 1
warmpath_predictions_total{result=\"too_low\"} 2
warmpath_predictions_total{result=\"not_reported\"} 4
warmpath_predictions_total_of_another{result=\"equal\"} 100
warmpath_models_loaded 1
";

    #[test]
    fn predictions_are_read_by_result_and_name() {
        let expected = Predictions {
            equal: 12,
            different: 3,
            not_compared: 4,
        };
        assert_eq!(predictions(PAGE), expected);
        assert_eq!(expected.total(), 19);
        assert_eq!(sum(PAGE, "warmpath_models_loaded", ""), 1);
        assert_eq!(sum(PAGE, "warmpath_absent", ""), 0);
    }
}
