//! Compiles the protos without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        ["envoy/service/ext_proc/v3/external_processor.proto"],
        ["proto"],
    )?;
    tonic_prost_build::configure()
        // Bodies stay slices of what came off the socket.
        .bytes(".")
        .include_file("protos.rs")
        .compile_fds(files)?;
    Ok(())
}
