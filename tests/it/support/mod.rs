//! What integration tests stand on: real tools, a real Envoy, a real API server, whole fleets, free ports, requests down to the bytes.

pub(crate) mod cluster;
pub(crate) mod envoy;
pub(crate) mod envoy_config;
pub(crate) mod fleet;
pub(crate) mod gate;
pub(crate) mod guarded;
pub(crate) mod http;
pub(crate) mod picker;
pub(crate) mod ports;
pub(crate) mod stage;
pub(crate) mod tools;
pub(crate) mod waiting;
