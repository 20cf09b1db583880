//! One integration binary (one link on few cores); a line on each part.

// Tells clippy that all of this is test code, so that helpers may expect and index like the tests do.
#![cfg(test)]

mod support;

// The shipped Envoy configuration, and the support itself.
mod gateway;
