//! What integration tests stand on: real tools, a real Envoy, whole fleets, processes, free ports, requests down to the bytes.

pub(crate) mod envoy;
pub(crate) mod envoy_config;
pub(crate) mod fleet;
pub(crate) mod http;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod tools;
