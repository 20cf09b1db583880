//! The operator's port: metrics, state, decisions.
