//! One integration binary (one link on few cores); a line on each part.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "all of it is tests, their helper functions too, which clippy.toml does not know"
)]

// Reads the data that is shared between projects and too big, or not free enough, to carry.
mod golden_data;
// Chat templates against transformers and Python's Jinja.
mod golden_templates;
// Our ids against those that real engines report.
mod golden_captures;
// Tokenizers against vectors made elsewhere.
mod golden_tokenizers;
// Recorded bodies of real clients.
mod golden_requests;
