//! Which files does a recording consist of, what are they, and what are their lines?

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::{Format, csv};
use crate::simulate::workload::spec::OpenError;

/// Endings of files that are read in a folder; others lie beside them.
const ENDINGS: [&str; 3] = ["json", "jsonl", "csv"];
/// So much of a file tells what it is.
const HEAD_BYTES: u64 = 64 << 10;

/// Bytes of the longest line, or file where a file is a conversation: the token ids of the longest prompt, written out.
pub(super) const MOST_BYTES: u64 = 128 << 20;

/// What is said of anything longer.
pub(super) fn too_long() -> String {
    format!("longer than {} MiB", MOST_BYTES >> 20)
}

/// The files of a recording, in order of their names.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let about = std::fs::metadata(path).map_err(|error| OpenError::read(path, error))?;
    if about.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if !about.is_dir() {
        // Each policy reads it anew, which a pipe does not allow.
        let problem = "is neither a file nor a folder; write what a pipe has into a file";
        return Err(OpenError::Unusable {
            path: path.to_owned(),
            problem: problem.to_owned(),
        });
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
        return Err(OpenError::Unusable {
            path: path.to_owned(),
            problem: problem.to_owned(),
        });
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
    if head.is_empty() {
        return Err(OpenError::Empty {
            path: first.to_owned(),
        });
    }
    if let Some(format) = form_of(head, line) {
        return Ok(format);
    }
    let shown = line.chars().take(60).flat_map(char::escape_debug);
    let shown: String = shown.collect();
    let problem = format!("`{shown}…` begins none of the known formats");
    Err(OpenError::UnknownFormat {
        path: first.to_owned(),
        problem,
    })
}

/// The form of what begins like this. The first line of a form with long lines may be cut off here.
fn form_of(head: &str, line: &str) -> Option<Format> {
    let has = |text: &str, key: &str| text.contains(&format!("\"{key}\""));
    if !head.starts_with('{') {
        return csv::is_header(line).then_some(Format::Csv);
    }
    if has(head, "requests") && has(head, "block_size") {
        Some(Format::ClaudeCode)
    } else if has(line, "hash_ids") && has(line, "input_length") {
        Some(Format::Mooncake)
    } else if has(line, "input_tok_ids") {
        Some(Format::ServingSim)
    } else if has(line, "timestamp") && has(line, "input") {
        Some(Format::Lmcache)
    } else {
        None
    }
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
            let mut reader = self.reader.by_ref().take(MOST_BYTES + 1);
            let read = reader.read_until(b'\n', &mut self.line);
            let read = read.map_err(|error| OpenError::read(&self.path, error))?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > MOST_BYTES {
                return Err(self.wrong(too_long()));
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
