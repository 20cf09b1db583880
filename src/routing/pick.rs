//! The least cost, and what decides between equals.
