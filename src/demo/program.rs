//! Which Envoy is run? The one that is named, else the installed one, else the one on PATH. Tests find their programs likewise.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Why there is no Envoy to run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProgramError {
    /// The one that was asked for.
    #[error("{} is not a program (named by --envoy or WARMPATH_ENVOY)", .0.display())]
    NotAProgram(PathBuf),
    /// Nobody named one, and none was found.
    #[error(
        "Envoy is missing: `make demo` installs it and runs the demo; \
         or name one with --envoy FILE or WARMPATH_ENVOY"
    )]
    Missing,
}

/// The Envoy program. One that is `named` is never replaced by another.
///
/// # Errors
/// When there is none.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, ProgramError> {
    find_in(named, |variable| env::var_os(variable).map(PathBuf::from))
}

fn find_in(
    named: Option<&Path>,
    variable: impl Fn(&str) -> Option<PathBuf>,
) -> Result<PathBuf, ProgramError> {
    if let Some(named) = named {
        return if is_program(named) {
            // Envoy is started in another folder.
            Ok(std::path::absolute(named).unwrap_or_else(|_| named.to_owned()))
        } else {
            Err(ProgramError::NotAProgram(named.to_owned()))
        };
    }
    installed("envoy", variable).ok_or(ProgramError::Missing)
}

/// The program `name` in the folder that `scripts/tools.sh` fills, else on `PATH`; `variable` reads the environment.
pub fn installed(name: &str, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let tools = tools_folder(&variable).map(|tools| tools.join("bin"));
    let path = variable("PATH").unwrap_or_default();
    tools
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

/// The folder that `scripts/tools.sh` fills.
pub fn tools_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("WARMPATH_TOOLS").or_else(|| Some(cache?.join("warmpath")))
}

/// A file that may be executed.
pub fn is_program(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(program: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(program);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    #[test]
    fn the_named_one_goes_before_the_installed_one_and_that_before_path() {
        let (tools, path) = (folder_with("bin/envoy"), folder_with("envoy"));
        let variable = |name: &str| match name {
            "WARMPATH_TOOLS" => Some(tools.path().to_owned()),
            "PATH" => Some(path.path().to_owned()),
            _ => None,
        };
        let named = path.path().join("envoy");
        assert_eq!(find_in(Some(&named), variable), Ok(named.clone()));
        assert_eq!(find_in(None, variable), Ok(tools.path().join("bin/envoy")));
        let only_path = |name: &str| variable(name).filter(|_| name == "PATH");
        assert_eq!(find_in(None, only_path), Ok(named));
    }

    #[test]
    fn the_tools_folder_is_in_the_users_cache_unless_it_is_named() {
        let home = folder_with(".cache/warmpath/bin/envoy");
        let variable = |name: &str| (name == "HOME").then(|| home.path().to_owned());
        let envoy = home.path().join(".cache/warmpath/bin/envoy");
        assert_eq!(find_in(None, variable), Ok(envoy));
    }

    #[test]
    fn a_missing_envoy_names_the_make_target_and_a_wrong_name_is_never_replaced() {
        let missing = find_in(None, |_| None).unwrap_err();
        assert!(missing.to_string().contains("`make demo`"), "{missing}");
        let (path, wrong) = (folder_with("envoy"), Path::new("/no/envoy"));
        let on_path = |name: &str| (name == "PATH").then(|| path.path().to_owned());
        assert_eq!(
            find_in(Some(wrong), on_path),
            Err(ProgramError::NotAProgram(wrong.to_owned()))
        );
    }
}
