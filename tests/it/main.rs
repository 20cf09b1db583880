//! One integration binary (one link on few cores); a line on each part.

mod support;

// The shipped Envoy configuration, and the support itself.
mod gateway;
