//! A simulated vLLM: a pure model of its engine core behind real sockets, for tests, load tests and the demo.
//!
//! ```text
//! HTTP ─▶ driver (real clock) ─▶ model ─▶ scheduler, block cache
//!   ◀─ tokens ─┘      └─▶ KV events (ZMQ)
//! ```
//!
//! The modules in reading order: first the pure model, then the shell around it.

pub mod model;

mod block_cache;
mod free_list;
mod scheduler;
mod sequence;

mod args;
mod driver;
mod fault;
mod http;
mod kv_encode;
mod observed;
mod publish;
mod running;
mod tokenizer;
#[cfg(test)]
mod unpack;

pub use args::{Args, ArgsError, Settings, Version, VersionError};
pub use block_cache::CachedBlock;
pub use fault::{Fault, UnknownFault};
pub use kv_encode::Encoding;
pub use publish::{BindError, EventSettings};
pub use running::{Running, StartError, run, start};
pub use tokenizer::TokenizerError;
