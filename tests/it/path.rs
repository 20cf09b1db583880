//! The whole path with a real Envoy in front: client, Envoy, picker, engines.
//!
//! One folder of claims a subject. Every test has a fleet of its own and ends with nothing booked.

mod warmth;
