//! Sequence numbers of one event source: contiguous, gap, duplicate, restart.
