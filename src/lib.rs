//! Warmpath: an endpoint picker for the Gateway API Inference Extension.
//!
//! A request goes **extproc → picker → routing → extproc**. The world comes in
//! through **feeds → routing**. [`routing`] is pure: time, randomness and
//! settings are arguments, so the simulator, the benches and the property tests
//! drive the very code that serves.
//!
//! The modules in reading order:

// The request, in and out.
pub mod extproc;
pub mod picker;
pub mod tokens;
// The decision.
pub mod routing;
// The world, coming in.
pub mod feeds;
// The process: parse, validate, wire, run, operate.
pub mod admin;
pub mod app;
pub mod args;
pub mod config;
pub mod decisions;
pub mod metrics;
pub mod readiness;
pub mod telemetry;
pub mod yaml;
// What stands beside the picker.
pub mod bench;
pub mod check;
pub mod demo;
pub mod engine;
pub mod plan;
pub mod simulate;
