//! Where is an unpacked model? The assets carry Qwen3's tokenizer packed; tests unpack it once for all runs.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::read::GzDecoder;

use super::MODEL;

/// A folder of models with Qwen3 in it.
pub(crate) fn folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(unpack).clone()
}

fn unpack() -> PathBuf {
    let models = Path::new(env!("CARGO_TARGET_TMPDIR")).join("models");
    let folder = models.join(MODEL);
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/qwen3");
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests takes a folder");
    let packed = std::fs::File::open(assets.join("tokenizer.json.gz")).expect("an asset");
    let mut tokenizer = Vec::new();
    let unpacked = GzDecoder::new(packed).read_to_end(&mut tokenizer);
    unpacked.expect("the asset is whole");
    place(&folder, "tokenizer.json", &tokenizer);
    let config = std::fs::read(assets.join("tokenizer_config.json")).expect("an asset");
    place(&folder, "tokenizer_config.json", &config);
    models
}

/// Puts a file where it belongs at once: another run may be reading the old one.
fn place(folder: &Path, name: &str, content: &[u8]) {
    let written = tempfile::NamedTempFile::new_in(folder).expect("a temporary file");
    std::fs::write(written.path(), content).expect("the disk takes it");
    written.persist(folder.join(name)).expect("the same folder");
}
