//! Every metric, by subject: name, unit, help, labels from closed sets only.

pub mod events;
pub mod picks;
pub mod reports;
pub mod token_sources;
pub mod wire;
