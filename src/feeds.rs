//! The world, coming in: who the endpoints are, what they cache, how they are.

pub mod kv_cursor;
pub mod kv_events;
pub mod kv_wire;
