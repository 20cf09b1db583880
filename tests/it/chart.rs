//! Does the Helm chart render what we mean, refuse what it must, and agree with the program that it starts?

mod agreement;
mod alerts;
mod goldens;
mod names;
mod nulls;
mod readme;
mod refusals;
mod standalone;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::tools::tool;

/// Name and namespace of the release in every rendering.
const RELEASE: &str = "warm";
const NAMESPACE: &str = "models";

/// A file of this repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every values file, by its name without the ending.
fn values_files() -> Vec<(String, PathBuf)> {
    let folder = std::fs::read_dir(file("tests/data/chart")).expect("the folder of values files");
    let mut files: Vec<_> = folder
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| {
            let name = path.file_stem().and_then(|stem| stem.to_str());
            (name.expect("a name in UTF-8").to_owned(), path)
        })
        .collect();
    files.sort();
    files
}

/// The real helm.
struct Helm(PathBuf);

impl Helm {
    fn find() -> Option<Self> {
        tool("helm").map(Self)
    }

    /// What it prints, or why it refuses. It sees no cluster and nobody's plugins.
    fn run(&self, words: &[&str], values: &Path) -> Result<String, String> {
        let home = tempfile::tempdir().expect("a temporary folder");
        let chart = file("charts/warmpath");
        let output = Command::new(&self.0)
            .args(words)
            .arg(chart)
            .args(["--namespace", NAMESPACE, "--values"])
            .arg(values)
            .env_clear()
            .env("HOME", home.path())
            .env("KUBECONFIG", home.path().join("no-cluster"))
            .stdin(Stdio::null())
            .output()
            .expect("the helm program starts");
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).expect("UTF-8"))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn template(&self, values: &Path) -> Result<String, String> {
        self.run(&["template", RELEASE], values)
    }

    /// What is rendered for these values.
    fn manifests(&self, values: &Path) -> Vec<Value> {
        let text = self
            .template(values)
            .unwrap_or_else(|error| panic!("{}: {error}", values.display()));
        serde_yaml::from_multiple(&text).expect("YAML documents")
    }

    /// What a user is told after an installation with these values.
    fn notes(&self, values: &Path) -> String {
        let shown = self
            .run(&["install", RELEASE, "--dry-run=client"], values)
            .unwrap_or_else(|error| panic!("{}: {error}", values.display()));
        let (_, notes) = shown.split_once("\nNOTES:\n").expect("notes");
        notes.to_owned()
    }
}

/// The manifest of this kind and name.
fn manifest<'a>(manifests: &'a [Value], kind: &str, name: &str) -> &'a Value {
    manifests
        .iter()
        .find(|manifest| manifest["kind"] == kind && manifest["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name} is rendered"))
}

/// The Deployment of the pickers, whatever it is called.
fn pickers(manifests: &[Value]) -> &Value {
    manifests
        .iter()
        .find(|manifest| {
            manifest["kind"] == "Deployment"
                && manifest["metadata"]["labels"]["app.kubernetes.io/component"]
                    == "endpoint-picker"
        })
        .expect("a Deployment of pickers")
}
