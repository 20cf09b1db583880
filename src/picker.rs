//! The request's path between wire and decision: parse, tokenize, hash, pick.
