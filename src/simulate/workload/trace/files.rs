//! Which files does a recording consist of, what are they, and what are their lines?

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::Format;
use crate::simulate::workload::spec::OpenError;

/// Endings of files that are read in a folder; others lie beside them.
const ENDINGS: [&str; 3] = ["json", "jsonl", "csv"];
/// So much of a file tells what it is.
const HEAD_BYTES: u64 = 64 << 10;

/// The files of a recording, in order of their names.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let about = std::fs::metadata(path).map_err(|error| OpenError::read(path, error))?;
    if !about.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).map_err(|error| OpenError::read(&folder, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| OpenError::read(&folder, error))?;
            let kind = entry.file_type();
            let path = entry.path();
            if kind
                .map_err(|error| OpenError::read(&path, error))?
                .is_dir()
            {
                folders.push(path);
            } else if ending(&path).is_some_and(|ending| ENDINGS.contains(&ending)) {
                found.push(path);
            }
        }
    }
    // A folder lists its files in any order.
    found.sort();
    if found.is_empty() {
        return Err(OpenError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// The ending of a file's name, but for `.gz`.
fn ending(path: &Path) -> Option<&str> {
    let ending = path.extension()?.to_str()?;
    if ending == "gz" {
        return Path::new(path.file_stem()?).extension()?.to_str();
    }
    Some(ending)
}

/// Opens a file, unpacked if it is gzipped.
pub(super) fn open(path: &Path) -> Result<Box<dyn BufRead>, OpenError> {
    let fail = |error| OpenError::read(path, error);
    let mut file = BufReader::with_capacity(256 << 10, File::open(path).map_err(fail)?);
    let head = file.fill_buf().map_err(fail)?;
    if head.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(BufReader::with_capacity(
            256 << 10,
            MultiGzDecoder::new(file),
        )));
    }
    if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let problem = "is packed with zstd; unpack it first: zstd -d, or tar xf for a .tar.zst";
        return Err(fail(std::io::Error::other(problem)));
    }
    Ok(Box::new(file))
}

/// Tells the form of a recording from the beginning of its first file.
pub(super) fn detect(path: &Path, files: &[PathBuf]) -> Result<Format, OpenError> {
    let first = files.first().map_or(path, PathBuf::as_path);
    let mut head = Vec::new();
    open(first)?
        .take(HEAD_BYTES)
        .read_to_end(&mut head)
        .map_err(|error| OpenError::read(first, error))?;
    let head = String::from_utf8_lossy(&head);
    let head = head.trim_start_matches('\u{feff}').trim_start();
    let line = head.lines().next().unwrap_or_default();
    let has = |text: &str, key: &str| text.contains(&format!("\"{key}\""));
    if head.starts_with('{') {
        if has(line, "hash_ids") && has(line, "input_length") {
            return Ok(Format::Mooncake);
        }
    }
    let problem = if head.is_empty() {
        return Err(OpenError::Empty {
            path: first.to_owned(),
        });
    } else {
        let shown: String = line.chars().take(60).collect();
        format!("`{shown}…` begins none of the known formats")
    };
    Err(OpenError::UnknownFormat {
        path: first.to_owned(),
        problem,
    })
}

/// The lines of a file, with their numbers.
pub(super) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            path: path.to_owned(),
            reader: open(path)?,
            line: Vec::new(),
            number: 0,
        })
    }

    /// The next line that is not empty, without its end.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, OpenError> {
        loop {
            self.line.clear();
            self.number += 1;
            let read = self.reader.read_until(b'\n', &mut self.line);
            let read = read.map_err(|error| OpenError::read(&self.path, error))?;
            if read == 0 {
                return Ok(None);
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        let mark = if self.number == 1 { "\u{feff}" } else { "" };
        let line = self.line.trim_ascii_end();
        Ok(Some(line.strip_prefix(mark.as_bytes()).unwrap_or(line)))
    }

    /// The next line as JSON.
    pub(super) fn next_json<T: serde::de::DeserializeOwned>(
        &mut self,
    ) -> Result<Option<T>, OpenError> {
        let read = match self.next()? {
            None => return Ok(None),
            Some(line) => serde_json::from_slice(line),
        };
        read.map(Some)
            .map_err(|error| self.wrong(format!("not a request of this format: {error}")))
    }

    /// An error about the line read last.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> OpenError {
        OpenError::line(&self.path, self.number, problem)
    }
}
