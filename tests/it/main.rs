//! One integration binary (one link on few cores); a line on each part.

// The server half of ext-proc, driven by a client over real sockets.
#[cfg(test)]
mod wire;
