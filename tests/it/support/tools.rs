//! Where is the real program that a test needs?

use std::env;
use std::path::PathBuf;

use warmpath::demo::program;

/// The program `name`: from the variable `WARMPATH_<NAME>`, else from the folder that
/// `scripts/tools.sh` fills, else from `PATH`.
///
/// Where it is missing, a test that needs it is left out and says so; with `CI` set that is a failure.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let override_name = format!("WARMPATH_{}", name.to_uppercase().replace('-', "_"));
    if let Some(chosen) = variable(&override_name) {
        // Somebody's explicit choice is never replaced by another program without a word.
        assert!(
            chosen.is_file(),
            "{override_name} names {}, which is no file",
            chosen.display()
        );
        return Some(chosen);
    }
    present(program::installed(name, variable), name)
}

/// The folder that holds etcd, kube-apiserver and kubectl: `KUBEBUILDER_ASSETS`, as is customary, else
/// the folder that `scripts/tools.sh` fills. Missing ones are handled as in [`tool`].
pub(crate) fn kubernetes() -> Option<PathBuf> {
    const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
    let holds_all = |folder: &PathBuf| {
        PROGRAMS
            .iter()
            .all(|name| program::is_program(&folder.join(name)))
    };
    if let Some(chosen) = variable("KUBEBUILDER_ASSETS") {
        assert!(
            holds_all(&chosen),
            "KUBEBUILDER_ASSETS is {}, which does not hold all of {PROGRAMS:?}",
            chosen.display()
        );
        return Some(chosen);
    }
    let bin = program::tools_folder(variable)?.join("bin");
    present(Some(bin).filter(holds_all), "kubernetes")
}

/// The folder with the definitions of InferencePool and of the Gateway API: `WARMPATH_CRDS`, else where
/// `scripts/tools.sh` puts them.
pub(crate) fn crds() -> Option<PathBuf> {
    if let Some(chosen) = variable("WARMPATH_CRDS") {
        assert!(
            chosen.is_dir(),
            "WARMPATH_CRDS names {}, which is no folder",
            chosen.display()
        );
        return Some(chosen);
    }
    let tools = program::tools_folder(variable)?;
    let versions = std::fs::read_dir(tools).into_iter().flatten().flatten();
    let versions =
        versions.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"crds-"));
    present(versions.map(|entry| entry.path()).max(), "crds")
}

/// Says of something missing that tests are left out for it; with `CI` set that is a failure.
fn present(found: Option<PathBuf>, name: &str) -> Option<PathBuf> {
    if found.is_none() {
        assert!(
            env::var_os("CI").is_none(),
            "{name} is missing: scripts/tools.sh {name} installs it"
        );
        println!("left out: {name} is missing (scripts/tools.sh {name} installs it)");
    }
    found
}

/// Reads the environment.
fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from)
}
