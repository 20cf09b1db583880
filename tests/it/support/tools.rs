//! Where is the real program that a test needs?

use std::env;
use std::path::{Path, PathBuf};

/// The program `name`: from the variable `WARMPATH_<NAME>`, else from the folder that
/// `scripts/tools.sh` fills, else from `PATH`.
///
/// Where it is missing, a test that needs it is left out and says so; with `CI` set that is a failure.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let found = find(name, |variable| env::var_os(variable).map(PathBuf::from));
    present(found, name)
}

/// The folder that holds etcd, kube-apiserver and kubectl: `KUBEBUILDER_ASSETS`, as is customary, else
/// the folder that `scripts/tools.sh` fills. Missing ones are handled as in [`tool`].
pub(crate) fn kubernetes() -> Option<PathBuf> {
    const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
    let holds_all = |folder: &PathBuf| PROGRAMS.iter().all(|name| is_program(&folder.join(name)));
    if let Some(chosen) = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) {
        assert!(
            holds_all(&chosen),
            "KUBEBUILDER_ASSETS is {}, which does not hold all of {PROGRAMS:?}",
            chosen.display()
        );
        return Some(chosen);
    }
    let bin = folder(|variable| env::var_os(variable).map(PathBuf::from))?.join("bin");
    present(Some(bin).filter(holds_all), "kubernetes")
}

/// The folder with the definitions of InferencePool and of the Gateway API: `WARMPATH_CRDS`, else where
/// `scripts/tools.sh` puts them.
pub(crate) fn crds() -> Option<PathBuf> {
    if let Some(chosen) = env::var_os("WARMPATH_CRDS").map(PathBuf::from) {
        assert!(
            chosen.is_dir(),
            "WARMPATH_CRDS names {}, which is no folder",
            chosen.display()
        );
        return Some(chosen);
    }
    let tools = folder(|variable| env::var_os(variable).map(PathBuf::from))?;
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

/// The folder that `scripts/tools.sh` fills.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("WARMPATH_TOOLS").or_else(|| Some(cache?.join("warmpath")))
}

/// Looks for `name` in the places that `variable` names.
fn find(name: &str, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
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
    let installed = folder(&variable).map(|tools| tools.join("bin"));
    let path = variable("PATH").unwrap_or_default();
    installed
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with an empty program in it.
    fn folder_with(program: &str) -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(program);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        folder
    }

    #[test]
    fn installed_tool_wins_over_path() {
        let (tools, path) = (folder_with("bin/thing"), folder_with("thing"));
        let both = |variable: &str| match variable {
            "WARMPATH_TOOLS" => Some(tools.path().to_owned()),
            "PATH" => Some(path.path().to_owned()),
            _ => None,
        };
        assert_eq!(find("thing", both), Some(tools.path().join("bin/thing")));
        assert_eq!(
            find("thing", |v| both(v).filter(|_| v == "PATH")),
            Some(path.path().join("thing"))
        );
        assert_eq!(find("other", both), None);
    }

    #[test]
    fn tools_folder_defaults_to_the_users_cache() {
        let home = folder_with(".cache/warmpath/bin/thing");
        let found = find("thing", |variable| {
            (variable == "HOME").then(|| home.path().to_owned())
        });
        assert_eq!(found, Some(home.path().join(".cache/warmpath/bin/thing")));
    }
}
