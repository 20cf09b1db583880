//! Chat templates as transformers renders them.
