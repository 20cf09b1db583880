//! What does a test ask of its fleet? The rest is as shipped.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::Fleet;
use crate::support::envoy_config::EnvoyConfig;

/// Engines that compute in no time: what a test claims does not depend on how busy the machine is.
pub(crate) const INSTANT: [&str; 6] = [
    "--prefill-us-per-token",
    "0",
    "--base-ms-per-step",
    "0",
    "--decode-ms-per-step",
    "0",
];

/// The wishes of one test.
pub(crate) struct Setup {
    pub(super) engines: usize,
    pub(super) unlisted: usize,
    pub(super) echoes: usize,
    pub(super) dead: usize,
    pub(super) doubles: Vec<(String, SocketAddr)>,
    pub(super) usual_ports: bool,
    pub(super) tokenizer: bool,
    pub(super) engine_options: Vec<&'static str>,
    pub(super) second_engine_options: Vec<&'static str>,
    pub(super) settings: Value,
    pub(super) secure: bool,
    pub(super) picker_flags: Vec<&'static str>,
    pub(super) envoy: Box<dyn FnOnce(&mut EnvoyConfig)>,
}

impl Setup {
    /// So many engines without files of a model: they make token ids of their own, and the picker asks them.
    pub(crate) fn engines(engines: usize) -> Self {
        Self {
            engines,
            unlisted: 0,
            echoes: 0,
            dead: 0,
            doubles: Vec::new(),
            usual_ports: false,
            tokenizer: false,
            engine_options: INSTANT.to_vec(),
            second_engine_options: Vec::new(),
            settings: json!({
                // A test machine may be busy for longer than an engine may be silent.
                "guards": { "report_age_limit": "30s" },
                "limits": { "pick_timeout": "30s" },
                "tokenizers": { "hub": false, "engine_timeout": "30s" },
            }),
            secure: true,
            picker_flags: Vec::new(),
            envoy: Box::new(|_| {}),
        }
    }

    /// So many doubles that answer with what they got, and no engines.
    pub(crate) fn echoes(echoes: usize) -> Self {
        Self {
            echoes,
            ..Self::engines(0)
        }
    }

    /// So many further engines that Envoy knows and the endpoints file does not list yet.
    pub(crate) fn and_unlisted(mut self, engines: usize) -> Self {
        self.unlisted = engines;
        self
    }

    /// So many further endpoints that refuse every connection.
    pub(crate) fn and_dead(mut self, endpoints: usize) -> Self {
        self.dead = endpoints;
        self
    }

    /// A further endpoint of the test's own making; it must answer `GET /metrics` with 404.
    pub(crate) fn and_double(mut self, name: &str, address: SocketAddr) -> Self {
        self.doubles.push((name.to_owned(), address));
        self
    }

    /// Engines publish their events at the ports where everybody looks who is not told.
    pub(crate) fn usual_event_ports(mut self) -> Self {
        self.usual_ports = true;
        self
    }

    /// Engines and picker use the tokenizer and template of Qwen3.
    pub(crate) fn with_tokenizer(mut self) -> Self {
        self.tokenizer = true;
        self
    }

    /// Further options of every engine.
    pub(crate) fn engine_options(mut self, options: &[&'static str]) -> Self {
        self.engine_options.extend(options);
        self
    }

    /// Further options of every second engine, to mix engines of two kinds.
    pub(crate) fn second_engine_options(mut self, options: &[&'static str]) -> Self {
        self.second_engine_options.extend(options);
        self
    }

    /// Keys of the picker's settings file, over those that every fleet has.
    pub(crate) fn settings(mut self, settings: Value) -> Self {
        merge(&mut self.settings, settings);
        self
    }

    /// A further flag of the picker.
    pub(crate) fn picker_flag(mut self, flag: &'static str) -> Self {
        self.picker_flags.push(flag);
        self
    }

    /// The picker speaks plain HTTP/2.
    pub(crate) fn insecure(mut self) -> Self {
        self.secure = false;
        self
    }

    /// What Envoy does otherwise than shipped.
    pub(crate) fn envoy(mut self, change: impl FnOnce(&mut EnvoyConfig) + 'static) -> Self {
        self.envoy = Box::new(change);
        self
    }

    /// Starts it all, runs `test`, and asserts that nothing is left booked. Without an Envoy the test is left out.
    pub(crate) async fn run(self, test: impl AsyncFnOnce(&mut Fleet)) {
        let Some(mut fleet) = Fleet::start(self).await else {
            return;
        };
        test(&mut fleet).await;
        fleet.picker.nothing_is_booked().await;
    }
}

/// Puts `over` on `value`, object by object.
pub(crate) fn merge(value: &mut Value, over: Value) {
    match (value, over) {
        (Value::Object(fields), Value::Object(over)) => {
            for (key, over) in over {
                merge(fields.entry(key).or_insert(Value::Null), over);
            }
        }
        (value, over) => *value = over,
    }
}
