//! The archive that `scripts/image.sh --oci` writes: does every digest hold, and is there nothing in it but what runs?

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::dockerfile;
use super::pack;

fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn unpack(archive: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut tar = Command::new("tar");
    let status = tar.arg("-xf").arg(archive).arg("-C").arg(to).status();
    assert!(status.unwrap().success());
}

/// An unpacked archive.
struct Image {
    folder: PathBuf,
}

impl Image {
    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.folder.join(name)).unwrap()).unwrap()
    }

    /// The file that a descriptor is for, once size and digest are found to be right.
    fn blob(&self, descriptor: &Value) -> PathBuf {
        let named = descriptor["digest"].as_str().unwrap();
        let hex = named.strip_prefix("sha256:").unwrap();
        let path = self.folder.join("blobs/sha256").join(hex);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(descriptor["size"], bytes.len());
        assert_eq!(sha256(&bytes), hex);
        path
    }
}

#[test]
fn every_digest_holds_and_both_kinds_of_reader_find_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("image.tar");
    pack("--oci", &archive);
    let image = Image {
        folder: folder.path().join("unpacked"),
    };
    unpack(&archive, &image.folder);

    assert_eq!(
        image.json("oci-layout"),
        json!({ "imageLayoutVersion": "1.0.0" })
    );
    let index = image.json("index.json");
    let manifest_file = image.blob(&index["manifests"][0]);
    let manifest: Value = serde_json::from_slice(&std::fs::read(manifest_file).unwrap()).unwrap();
    let config_file = image.blob(&manifest["config"]);
    let config: Value = serde_json::from_slice(&std::fs::read(&config_file).unwrap()).unwrap();
    let layer_file = image.blob(&manifest["layers"][0]);
    // The layer is not compressed, so its digest is that of its content.
    assert_eq!(
        config["rootfs"]["diff_ids"],
        json!([manifest["layers"][0]["digest"]])
    );

    let docker = image.json("manifest.json");
    let place = |file: &Path| file.strip_prefix(&image.folder).unwrap().to_owned();
    assert_eq!(docker[0]["Config"], json!(place(&config_file)));
    assert_eq!(docker[0]["Layers"], json!([place(&layer_file)]));
    let tag = docker[0]["RepoTags"][0].as_str().unwrap();
    assert_eq!(
        index["manifests"][0]["annotations"]["io.containerd.image.name"],
        format!("docker.io/library/{tag}")
    );
    let blobs = std::fs::read_dir(image.folder.join("blobs/sha256")).unwrap();
    assert_eq!(blobs.count(), 3, "nothing that nobody names");

    let (entry, user, ports) = dockerfile::runs();
    assert_eq!(config["config"]["Entrypoint"], entry);
    assert_eq!(config["config"]["User"], user);
    let exposed = config["config"]["ExposedPorts"].as_object().unwrap();
    assert!(exposed.keys().eq(&ports), "{exposed:?}");
    for (name, value) in dockerfile::labels() {
        assert_eq!(config["config"]["Labels"][&name], value, "{name}");
    }

    check_layer(&layer_file);

    let again = folder.path().join("again.tar");
    pack("--oci", &again);
    assert!(
        std::fs::read(&archive).unwrap() == std::fs::read(&again).unwrap(),
        "the same binary gives the same bytes"
    );
}

/// Root owns all but the user's home, and nobody else may write but in `/tmp`.
fn check_layer(layer: &Path) {
    let mut tar = Command::new("tar");
    let listed = tar.arg("-tvf").arg(layer).arg("--numeric-owner").output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    for line in listed.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let (mode, owner, name) = (words[0], words[1], words[words.len() - 1]);
        match name {
            "tmp/" => assert_eq!((mode, owner), ("drwxrwxrwt", "0/0")),
            "home/nonroot/" => assert_eq!((mode, owner), ("drwx------", "65532/65532")),
            _ => {
                assert_eq!(owner, "0/0", "{line}");
                assert!(
                    ["drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"].contains(&mode),
                    "{line}"
                );
            }
        }
    }
    assert!(listed.contains(" home/nonroot/"), "{listed}");
}

/// Every file below a folder, as a path from it.
fn files(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            files(root, &path, found);
        } else {
            let path = path.strip_prefix(root).unwrap();
            found.insert(path.to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn the_root_holds_the_binary_its_libraries_and_names_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    pack("--root", &root);
    let mut found = BTreeSet::new();
    files(&root, &root, &mut found);
    let (libraries, others): (BTreeSet<_>, BTreeSet<_>) = found
        .into_iter()
        .partition(|name| name.starts_with("lib") || name.starts_with("usr/lib"));
    let expected = [
        "etc/group",
        "etc/nsswitch.conf",
        "etc/passwd",
        "usr/local/bin/warmpath",
        "usr/share/doc/warmpath/LICENSE",
    ];
    assert!(others.iter().eq(expected), "{others:?}");

    // Those that the binary says it needs, and the loader.
    let binary = root.join("usr/local/bin/warmpath");
    let dynamic = Command::new("readelf").arg("-d").arg(binary).output();
    let dynamic = String::from_utf8(dynamic.unwrap().stdout).unwrap();
    let needed: BTreeSet<_> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .collect();
    let names: BTreeSet<_> = libraries
        .iter()
        .map(|path| path.rsplit('/').next().unwrap())
        .collect();
    assert!(needed.is_subset(&names), "{needed:?} {names:?}");
    for name in names.difference(&needed) {
        assert!(name.starts_with("ld-linux"), "nobody needs {name}");
    }
}

#[test]
fn a_root_that_exists_is_not_filled_up() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/image.sh");
    let mut command = Command::new(script);
    command.arg("--root").arg(folder.path());
    let output = command
        .arg(env!("CARGO_BIN_EXE_warmpath"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("exists: name a new folder"), "{told}");
}
