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
