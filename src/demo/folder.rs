//! Where do the demo's files live? In a folder of its own that goes when the demo does.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Names tried before giving up: each is random in 64 bits, so one is enough.
const TRIES: usize = 8;

/// A folder for this process alone, removed with everything in it on drop.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes one in the system's place for temporary files.
    ///
    /// # Errors
    /// When nothing can be made there.
    pub(super) fn create() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        let mut tries = TRIES;
        loop {
            let path = parent.join(format!("warmpath-demo-{:016x}", fastrand::u64(..)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries > 1 => {
                    tries -= 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "a temporary folder stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_goes_with_everything_in_it() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_owned();
        std::fs::create_dir(path.join("inner")).unwrap();
        std::fs::write(path.join("inner/file"), "text").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
