//! The index for endpoints without events: what was sent where, bounded by what fits there.
