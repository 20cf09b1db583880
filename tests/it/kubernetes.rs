//! The picker with its pool in Kubernetes: a real API server, simulated engines, a real Envoy in front.
//!
//! Every test has a namespace, a picker process and an Envoy of its own; the API server is one for all.

// What the server is that the others stand on.
mod server;
// What a test starts.
mod world;

// Pods and ports come and go.
mod scaling;
// The pool itself comes and goes; rights and selectors.
mod pool;
// Addresses and Pods outlive engines.
mod lives;
// The API server goes away.
mod outage;

// The chart, installed.
mod chart;
// Who owns the pool that the chart makes.
mod handover;
// The rights that the chart grants, and those that are used.
mod rbac;
// The examples in deploy/.
mod examples;
