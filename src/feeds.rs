//! The world, coming in: who the endpoints are, what they cache, how they are.
//!
//! ```text
//! pool ─▶ supervisor ─▶ one group of tasks a member: probe ─▶ KV followers ─▶ life ─▶ routing
//!                                                    load loop ─────────────▶
//! ```

mod adapters;
pub mod kube;
pub mod life;
pub mod pool;
pub mod presence;
pub mod static_file;
pub mod supervisor;

pub mod client;
pub mod probe;

pub mod load;
pub mod load_text;
mod unpicked;

pub mod kv_cursor;
pub mod kv_events;
pub mod kv_wire;
