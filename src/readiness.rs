//! What has to be ready before we are.
