//! One integration binary (one link on few cores); a line on each part.

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
