//! What of `deploy/Dockerfile` can be checked without building it.

use std::path::{Path, PathBuf};

use clap::Parser as _;
use serde_json::Value;
use warmpath::args::{Args, Command};

use super::{file, package};

/// The instructions, continued lines joined, without comments.
fn instructions() -> Vec<(String, String)> {
    let text = file("deploy/Dockerfile");
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    joined
        .lines()
        .map(|line| {
            let (name, rest) = line.split_once(' ').unwrap();
            (name.to_owned(), rest.trim().to_owned())
        })
        .collect()
}

fn all(name: &str) -> Vec<String> {
    instructions()
        .into_iter()
        .filter_map(|(instruction, rest)| (instruction == name).then_some(rest))
        .collect()
}

fn only(name: &str) -> String {
    let found = all(name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.concat()
}

/// Whether `.dockerignore` lets a path through. All of its lines are plain paths: first what is out, then what is in.
fn reaches_the_builder(path: &Path) -> bool {
    let ignore = file(".dockerignore");
    let mut lines = ignore.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"));
    lines.any(|line| path.starts_with(line.strip_prefix('!').unwrap()))
}

/// Paths that sources take in at compile time.
fn taken_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            taken_in(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for part in text.split("include_").skip(1) {
            let argument = part
                .strip_prefix("str!(\"")
                .or_else(|| part.strip_prefix("bytes!(\""));
            if let Some((name, _)) = argument.and_then(|argument| argument.split_once('"')) {
                found.push(folder.join(name).canonicalize().unwrap());
            }
        }
    }
}

#[test]
fn everything_that_the_build_reads_reaches_the_builder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .canonicalize()
        .unwrap();
    let mut read = Vec::new();
    taken_in(&root.join("src"), &mut read);
    assert!(read.len() > 3, "{read:?}");
    let named = ["Cargo.toml", "Cargo.lock", "build.rs", "LICENSE"];
    let folders = ["src", "proto", "tests/it/main.rs", "benches/pick.rs"];
    read.extend(named.iter().chain(&folders).map(|name| root.join(name)));
    for path in read {
        let path = path.strip_prefix(&root).unwrap();
        assert!(root.join(path).exists(), "{}", path.display());
        assert!(reaches_the_builder(path), "{}", path.display());
    }
    assert!(!reaches_the_builder(Path::new("target")));
    assert!(!reaches_the_builder(Path::new(".git")));
}

#[test]
fn what_is_copied_exists_and_lands_where_it_is_run() {
    let entry: Value = serde_json::from_str(&only("ENTRYPOINT")).unwrap();
    let copies = all("COPY");
    for copy in &copies {
        let words: Vec<_> = copy.split_whitespace().collect();
        match words.as_slice() {
            ["--from=build", from, to] => {
                assert!(only("RUN").contains(&format!("-o {from} target/release/warmpath")));
                assert_eq!(entry[0], *to);
            }
            [from, _] => {
                let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(from);
                assert!(from.exists(), "{copy}");
            }
            _ => panic!("{copy}"),
        }
    }
    assert_eq!(copies.len(), 3);
}

#[test]
fn the_entry_point_takes_the_flags_of_serve_and_listens_on_the_ports_exposed() {
    let entry: Vec<String> = serde_json::from_str(&only("ENTRYPOINT")).unwrap();
    let flags = ["--endpoints-file", "/etc/warmpath/endpoints.yaml"].map(str::to_owned);
    let Command::Serve(serve) = Args::try_parse_from(entry.iter().chain(&flags))
        .unwrap()
        .command
    else {
        panic!("{entry:?} does not serve");
    };
    let ports = [serve.grpc_port, serve.grpc_health_port, serve.metrics_port];
    assert_eq!(only("EXPOSE"), ports.map(|port| port.to_string()).join(" "));
    assert_eq!(only("USER"), "65532:65532");
}

#[test]
fn base_images_are_pinned_and_fit_each_other_and_the_package() {
    let rust = package("rust-version");
    let from = all("FROM");
    assert_eq!(
        from,
        [
            format!("rust:{rust}-bookworm AS build"),
            // Bookworm is Debian 12: the libraries are those that the binary was linked with.
            "gcr.io/distroless/cc-debian12:nonroot".to_owned(),
        ]
    );
    let version = package("version");
    assert!(all("ARG").contains(&format!("VERSION={version}")));
    let build = only("RUN");
    assert!(build.contains("cargo build --release --locked"), "{build}");
    assert!(
        build.contains(r#"[ "$TARGETARCH" = arm64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16"#),
        "{build}"
    );
}

/// The labels, as name and value.
pub(super) fn labels() -> Vec<(String, String)> {
    let label = only("LABEL");
    let version = package("version");
    label
        .split("org.")
        .skip(1)
        .map(|pair| {
            let (name, value) = pair.trim().split_once('=').unwrap();
            let value = value.trim_matches('"').replace("${VERSION}", &version);
            (format!("org.{name}"), value)
        })
        .collect()
}

/// What an image has to say of itself: entry point, user, ports.
pub(super) fn runs() -> (Value, String, Vec<String>) {
    let entry = serde_json::from_str(&only("ENTRYPOINT")).unwrap();
    let ports = only("EXPOSE");
    let ports = ports.split(' ').map(|port| format!("{port}/tcp")).collect();
    (entry, only("USER"), ports)
}
