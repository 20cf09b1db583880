//! The few files of a model that make its tokens: which they are, and reading them from a folder.

use std::io;
use std::path::Path;

use crate::routing::model::ModelFiles;

/// The one file without which nothing can be done.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// The files that some models have.
pub(super) const OPTIONAL: [&str; 4] = [
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE_JINJA,
    CHAT_TEMPLATE_JSON,
    CONFIG,
];

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE_JINJA: &str = "chat_template.jinja";
const CHAT_TEMPLATE_JSON: &str = "chat_template.json";
const CONFIG: &str = "config.json";

/// Why files that are there cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The disk says no.
    #[error("cannot read {name}")]
    Io {
        name: &'static str,
        #[source]
        source: io::Error,
    },
    /// The template is not text.
    #[error("{CHAT_TEMPLATE_JINJA} is not UTF-8")]
    TemplateNotText(#[source] std::string::FromUtf8Error),
    /// The template's JSON wrapper is broken.
    #[error("{CHAT_TEMPLATE_JSON} is not a JSON object with a \"chat_template\"")]
    TemplateNotJson(#[source] serde_json::Error),
}

/// A model's files by name, as they are found one after the other.
#[derive(Debug, Default)]
pub(super) struct Found {
    files: ModelFiles,
    jinja: Option<String>,
}

impl Found {
    /// Takes one file's content.
    ///
    /// # Errors
    /// When a chat template is not text or its wrapper is broken.
    pub(super) fn add(&mut self, name: &'static str, content: Vec<u8>) -> Result<(), ReadError> {
        match name {
            TOKENIZER => self.files.tokenizer = content,
            TOKENIZER_CONFIG => self.files.tokenizer_config = Some(content),
            CONFIG => self.files.config = Some(content),
            CHAT_TEMPLATE_JINJA => {
                self.jinja = Some(String::from_utf8(content).map_err(ReadError::TemplateNotText)?);
            }
            CHAT_TEMPLATE_JSON => {
                let wrapper: TemplateWrapper =
                    serde_json::from_slice(&content).map_err(ReadError::TemplateNotJson)?;
                self.files.chat_template = Some(wrapper.chat_template);
            }
            _ => {}
        }
        Ok(())
    }

    /// All of them; a `.jinja` file goes before the JSON wrapper, as in transformers.
    pub(super) fn into_files(self) -> ModelFiles {
        ModelFiles {
            chat_template: self.jinja.or(self.files.chat_template),
            ..self.files
        }
    }
}

#[derive(serde::Deserialize)]
struct TemplateWrapper {
    chat_template: String,
}

/// Reads a folder; `None` when it (or the tokenizer in it) is not there. Blocks on the disk.
///
/// # Errors
/// When a file is there and cannot be read.
pub(super) fn read_folder(folder: &Path) -> Result<Option<ModelFiles>, ReadError> {
    let mut found = Found::default();
    for name in std::iter::once(TOKENIZER).chain(OPTIONAL) {
        match read_file(&folder.join(name)) {
            Ok(Some(content)) => found.add(name, content)?,
            Ok(None) if name == TOKENIZER => return Ok(None),
            Ok(None) => {}
            Err(source) => return Err(ReadError::Io { name, source }),
        }
    }
    let mistral = has_mistral_tokenizer(folder).map_err(|source| ReadError::Io {
        name: MISTRAL_TOKENIZER,
        source,
    })?;
    Ok(Some(ModelFiles {
        mistral,
        ..found.into_files()
    }))
}

/// A file by which engines choose Mistral's own tokenizer.
const MISTRAL_TOKENIZER: &str = "tekken.json";
/// The older kind of it, before its number.
const MISTRAL_OLD_TOKENIZER: &str = "tokenizer.model.v";

/// Whether such a file is there; what is in it does not matter here.
fn has_mistral_tokenizer(folder: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == MISTRAL_TOKENIZER || name.starts_with(MISTRAL_OLD_TOKENIZER) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A file's content, `None` if there is no such file.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
