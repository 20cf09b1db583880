//! A simulated vLLM: a pure model of its engine core behind real sockets, for tests, load tests and the demo.
//!
//! ```text
//! HTTP ─▶ ranks ─▶ driver (real clock) ─▶ model ─▶ scheduler, block cache
//!   ◀────── tokens ─┘      └─▶ KV events (ZMQ)
//! ```
//!
//! From the driver on everything is there once for each data-parallel rank.
//!
//! The modules in reading order: first the pure model, then the shell around it.

pub mod model;

mod block_cache;
mod content_table;
mod free_list;
mod lower_tier;
mod memory;
mod scheduler;
mod sequence;

mod args;
mod driver;
mod event_ports;
mod fault;
mod http;
mod kv_encode;
mod kv_groups;
mod observed;
mod prepare;
mod publish;
mod ranks;
mod running;
mod tokenizer;
#[cfg(test)]
mod unpack;

pub use args::{Args, ArgsError, RankSettings, Settings, Version, VersionError};
pub use block_cache::CachedBlock;
pub use event_ports::PortError;
pub use fault::{Fault, RankFault, RankFaultError, UnknownFault};
pub use kv_encode::{Encoding, HashForm};
pub use prepare::StartError;
pub use publish::{BindError, EventSettings};
pub use running::{Running, run, start};
pub use tokenizer::TokenizerError;
