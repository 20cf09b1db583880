//! Which endpoint holds which block: store, remove, longest prefix of a prompt per endpoint.
