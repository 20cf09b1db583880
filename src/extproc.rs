//! The request, in and out: Envoy's external processing protocol.
//!
//! ```text
//! request_headers ─▶ request_body … (end_of_stream | request_trailers) ─▶ pick
//!        ◀─ headers answer with the destination ◀─ body chunks ◀─ trailers
//! response_headers ─▶ response_body … ─▶ response_trailers, each answered as it comes
//! ```

pub mod pick;
pub mod proto;
pub mod server;
