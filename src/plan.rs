//! What would a fleet cost, with and without affinity, and is affinity worth having? Sums on paper, before any GPU.
