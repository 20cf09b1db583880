//! The decision: which endpoint takes a request for the least added prefill.
//!
//! ```text
//! cost(endpoint) = prompt tokens already queued there + this request's tokens not cached there
//! pick           = the endpoint with the least cost
//! ```
//!
//! Nothing here reads a clock, the environment or a random generator, and nothing
//! here names tokio, tonic, Kubernetes or ZMQ (`tests/layers.rs` holds it to that).
//! The modules in the order a request meets them:

pub mod approximate;
pub mod block;
pub mod cache;
pub mod candidates;
pub mod cost;
pub mod endpoint;
pub mod event;
pub mod index;
pub mod ledger;
mod lru;
pub mod model;
pub mod pick;
pub mod price;
pub mod request;
pub mod router;
pub mod template;
mod ticks;
pub mod tokenize;
pub mod tokens;
