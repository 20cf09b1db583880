//! A running picker from outside: where it listens, and what its pages say.

pub(crate) mod process;
pub(crate) mod thread;

use serde_json::Value;
use warmpath::app::Addresses;

use super::http;
use super::waiting::until;

/// Every decision that is kept.
const ALL: &str = "/debug/decisions?n=100000";
/// Where a request of a moment ago is looked for: many are costly to read, few may be others' under load.
const LAST: [&str; 2] = ["/debug/decisions?n=5", "/debug/decisions?n=100"];

/// What there is to see of a picker, in a thread or a process.
pub(crate) struct Pages {
    pub(crate) addresses: Addresses,
}

impl Pages {
    /// A page; it must be there.
    pub(crate) async fn page(&self, path: &str) -> String {
        let answer = http::get(self.addresses.metrics, path).await;
        assert_eq!(answer.status, 200, "{path}");
        String::from_utf8(answer.body.to_vec()).expect("a page is text")
    }

    /// A page of JSON.
    pub(crate) async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.page(path).await).expect("a page of JSON")
    }

    /// All endpoints as it sees them.
    pub(crate) async fn endpoints(&self) -> Vec<Value> {
        let state = self.json("/debug/state").await;
        state["endpoints"].as_array().expect("a list").clone()
    }

    /// One endpoint as it sees it; it must be there.
    pub(crate) async fn endpoint(&self, name: &str) -> Value {
        let found = self.find_endpoint(name).await;
        found.unwrap_or_else(|| panic!("no endpoint {name}"))
    }

    async fn find_endpoint(&self, name: &str) -> Option<Value> {
        let endpoints = self.endpoints().await;
        endpoints.into_iter().find(|endpoint| {
            endpoint["name"]
                .as_str()
                .is_some_and(|full| full.ends_with(name))
        })
    }

    /// Waits until all endpoints together are as `holds` wants them.
    pub(crate) async fn sees(&self, what: &str, mut holds: impl FnMut(&[Value]) -> bool) {
        until(what, async || holds(&self.endpoints().await).then_some(())).await;
    }

    /// Waits until an endpoint of this full name is there.
    pub(crate) async fn lists(&self, name: &str) {
        self.sees(&format!("{name} is an endpoint"), |endpoints| {
            endpoints.iter().any(|endpoint| endpoint["name"] == name)
        })
        .await;
    }

    /// Waits until so many engines have reported and told their models, and so many doubles have no report page.
    pub(crate) async fn knows(&self, engines: usize, echoes: usize) {
        let told = |endpoint: &&Value| {
            let models = endpoint["engine"]["models"].as_array();
            endpoint["report"]["age_ms"].is_u64() && models.is_some_and(|models| !models.is_empty())
        };
        let silent = |endpoint: &&Value| endpoint["report"]["no_page"] == true;
        let what = format!("{engines} engines and {echoes} doubles are known");
        self.sees(&what, |endpoints| {
            endpoints.iter().filter(told).count() == engines
                && endpoints.iter().filter(silent).count() == echoes
        })
        .await;
    }

    /// Waits until an endpoint is there and has event feeds, all of them in this state.
    pub(crate) async fn feed_is(&self, name: &str, state: &str) {
        let what = format!("the feeds of {name} are {state}");
        until(&what, async || {
            let endpoint = self.find_endpoint(name).await?;
            feed_is(&endpoint, state).then_some(())
        })
        .await;
    }

    /// The sample of a metric, its labels as they are written; 0 where there is none.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until a metric has a value.
    pub(crate) async fn metric_is(&self, name: &str, value: f64) {
        let what = format!("{name} is {value}");
        until(&what, async || {
            (self.metric(name).await == value).then_some(())
        })
        .await;
    }

    /// Waits until a metric is at least this.
    pub(crate) async fn metric_reaches(&self, name: &str, least: f64) {
        until(&format!("{name} reaches {least}"), async || {
            (self.metric(name).await >= least).then_some(())
        })
        .await;
    }

    /// The last decisions, newest first.
    pub(crate) async fn decisions(&self) -> Vec<Value> {
        self.list(ALL).await
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        match self.json(path).await {
            Value::Array(list) => list,
            other => panic!("{path} is no list: {other}"),
        }
    }

    /// The decision on a request, once the pick was made.
    pub(crate) async fn picked(&self, request_id: &str) -> Value {
        let what = format!("a decision on {request_id}");
        until(&what, async || self.find_decision(request_id).await).await
    }

    /// The decision on a request, once its exchange has ended.
    pub(crate) async fn ended(&self, request_id: &str) -> Value {
        let what = format!("the end of {request_id}");
        until(&what, async || self.find_ended(request_id).await).await
    }

    /// The decision on a request, if it was made here and its exchange has ended.
    pub(crate) async fn find_ended(&self, request_id: &str) -> Option<Value> {
        let found = self.find_decision(request_id).await;
        found.filter(|decision| !decision["outcome"]["ended"].is_null())
    }

    async fn find_decision(&self, request_id: &str) -> Option<Value> {
        for path in LAST {
            let mut decisions = self.list(path).await.into_iter();
            let found = decisions.find(|decision| decision["request_id"] == request_id);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Asserts what must hold after every test: no tokens are booked and nothing is in flight, anywhere.
    pub(crate) async fn nothing_is_booked(&self) {
        self.metric_is("warmpath_streams_in_flight", 0.0).await;
        self.sees("nothing is booked or in flight", |endpoints| {
            endpoints
                .iter()
                .all(|endpoint| endpoint["queued_tokens"] == 0 && endpoint["in_flight"] == 0)
        })
        .await;
    }
}

/// An endpoint has event feeds, and all of them are in this state.
pub(crate) fn feed_is(endpoint: &Value, state: &str) -> bool {
    let feeds = endpoint["feeds"].as_array().expect("a list");
    !feeds.is_empty() && feeds.iter().all(|feed| feed["state"] == state)
}
