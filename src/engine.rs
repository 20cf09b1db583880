//! A simulated vLLM: one pure model, driven here by a real clock and sockets.
