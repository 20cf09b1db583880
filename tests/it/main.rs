//! One integration binary (one link on few cores); a line on each part.

/// The simulated engine's HTTP side.
#[cfg(test)]
mod engine;
