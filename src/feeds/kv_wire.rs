//! KV events off the wire: msgpack of every dialect into our own events; total on any bytes.
