//! Can this file be written? Asked before the work whose result it is to take.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;

/// Opens the file for writing, and leaves everything as it was.
///
/// # Errors
/// When it cannot be opened: its folder does not exist, it is itself a folder, or permission is missing.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let is_new = !path.exists();
    // For appending, so that what is in it stays until there is something to take its place.
    let file = File::options().append(true).create(true).open(path);
    drop(file.with_context(cannot)?);
    if is_new {
        std::fs::remove_file(path).with_context(cannot)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_a_file_as_it_was_and_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new.html");
        check(&new).unwrap();
        assert!(!new.exists());
        std::fs::write(&new, "old").unwrap();
        check(&new).unwrap();
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "old");
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_with_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let error = check(&folder.path().join("none/x.html")).unwrap_err();
        assert!(error.to_string().contains("none/x.html"), "{error}");
        check(folder.path()).unwrap_err();
    }
}
