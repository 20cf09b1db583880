//! The request, in and out: Envoy's external processing protocol.
//!
//! ```text
//! request_headers ─▶ request_body … (end_of_stream | request_trailers) ─▶ pick
//!        ◀─ headers answer with the destination ◀─ body chunks ◀─ trailers
//! response_headers ─▶ response_body … ─▶ response_trailers, each answered as it comes
//! ```

// The seam to the decision.
pub mod pick;
// One exchange, pure: what came, what is answered, what an answer tells while it passes.
mod answer;
pub mod exchange;
mod head;
pub mod metadata;
pub mod proto;
pub mod reply;
mod sse;
mod usage;
// Sockets and streams.
mod accept;
mod health;
pub mod server;
mod service;
mod tls;
