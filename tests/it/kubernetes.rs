//! The picker with its pool in Kubernetes: a real API server, simulated engines, a real Envoy in front.

// What the server is that the others stand on.
mod server;
