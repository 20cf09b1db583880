//! Replays of runs whose outcome is known.
