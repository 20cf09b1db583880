//! One integration binary (one link on few cores); a line on each part.

// Reads the data that is shared between projects and too big, or not free enough, to carry.
mod golden_data;
// Chat templates against transformers and Python's Jinja.
mod golden_templates;
