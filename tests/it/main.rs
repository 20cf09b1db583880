//! One integration binary (one link on few cores); a line on each part.

#![expect(
    clippy::unwrap_used,
    reason = "tests: a failed unwrap is a failed test"
)]

// The settings file and its documentation.
mod config;
// The world coming in: the endpoints file, probe and reports against doubles of engines.
mod feeds;
// The whole process on port 0: pages, shutdown, errors at start.
mod serve;
// The documentation of metrics names those that there are.
mod metrics;
// The server half of ext-proc, driven by a client over real sockets.
#[cfg(test)]
mod wire;
// Reads the data that is shared between projects and too big, or not free enough, to carry.
mod golden_data;
// Chat templates against transformers and Python's Jinja.
mod golden_templates;
// Our ids against those that real engines report.
mod golden_captures;
// Tokenizers against vectors made elsewhere.
mod golden_tokenizers;
// Recorded bodies of real clients.
mod golden_requests;
/// Model files from a stub of the hub: which are asked for, when again, and by whom.
mod hub;
/// Token ids by the three ways, against a double of an engine.
mod tokens;
// Tells clippy that all of this is test code, so that helpers may expect and index like the tests do.
#![cfg(test)]

mod support;

// The shipped Envoy configuration, and the support itself.
mod gateway;
/// The simulated engine's HTTP side.
mod engine;
