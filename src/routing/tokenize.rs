//! Token ids from text: fastokens first, the reference tokenizer where it cannot load.
