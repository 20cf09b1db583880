//! Is the image what it says: for users (`deploy/Dockerfile`), and packed without a container runtime (`scripts/image.sh`)?

use std::path::Path;
use std::process::Command;

mod archive;
mod confined;
mod dockerfile;

/// Runs `scripts/image.sh` on the binary of these tests.
fn pack(kind: &str, to: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/image.sh");
    let output = Command::new(script)
        .arg(kind)
        .arg(to)
        .arg(env!("CARGO_BIN_EXE_warmpath"))
        .env_remove("TAG")
        .env_remove("SOURCE_DATE_EPOCH")
        .output()
        .expect("the script can be started");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
}

/// A file of this repository.
fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A field of the package's table in `Cargo.toml`.
fn package(field: &str) -> String {
    let manifest = file("Cargo.toml");
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(" = "));
    line.unwrap().trim_matches('"').to_owned()
}
