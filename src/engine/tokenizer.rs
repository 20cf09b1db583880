//! How do texts become token ids and back? By a model's own tokenizer, or by a simple built-in one.
//!
//! The built-in one needs no files: a token is up to four bytes of one word, packed into its id. Texts with a
//! common beginning have common first tokens, and English has 3.3 bytes a token, near to what real ones make of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::routing::model::{LoadError, Model, ModelFiles, RenderContext, TokensError};
use crate::routing::request::{Api, Malformed, Request};

/// Words that answers are made of.
const WORDS: &str = " the a model answers with plain words that mean nothing at all but are easy to read and to count \
    so every token of every answer is one of these few and no more than that";

/// Turns texts into ids.
pub(super) enum Tokenizer {
    /// Files of a model were given.
    Model(Box<Model>),
    /// None were.
    BuiltIn,
}

/// Why a model's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file that must or does exist cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The files do not make a model.
    #[error("cannot load the model in {directory}")]
    Load {
        /// Where they are.
        directory: PathBuf,
        /// Why.
        #[source]
        source: LoadError,
    },
}

/// Why a chat has no token ids.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChatError {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error("messages must be a list of objects with a role")]
    Messages,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, where they exist, its companions.
    ///
    /// # Errors
    /// When a file cannot be read or understood.
    pub(super) fn load(directory: Option<&Path>) -> Result<Self, TokenizerError> {
        let Some(directory) = directory else {
            return Ok(Self::BuiltIn);
        };
        let tokenizer = directory.join("tokenizer.json");
        let files = ModelFiles {
            tokenizer: std::fs::read(&tokenizer).map_err(|source| TokenizerError::Read {
                path: tokenizer,
                source,
            })?,
            tokenizer_config: read_optional(directory, "tokenizer_config.json")?,
            chat_template: chat_template(directory)?,
            config: read_optional(directory, "config.json")?,
            ..ModelFiles::default()
        };
        match Model::load(&files) {
            Ok(model) => Ok(Self::Model(Box::new(model))),
            Err(source) => Err(TokenizerError::Load {
                directory: directory.to_owned(),
                source,
            }),
        }
    }

    /// The ids of a plain text.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        match self {
            Self::Model(model) => model.encode(text, add_special_tokens),
            Self::BuiltIn => encode(text),
        }
    }

    /// The text of ids.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        match self {
            Self::Model(model) => model.decode(ids),
            Self::BuiltIn => decode(ids),
        }
    }

    /// The ids of a chat. `raw` is the request's body, `messages` its field of that name.
    ///
    /// # Errors
    /// When the chat cannot be rendered.
    pub(super) fn chat(
        &self,
        raw: &[u8],
        messages: &[Value],
        context: &RenderContext,
    ) -> Result<Vec<u32>, ChatError> {
        match self {
            Self::Model(model) => {
                let request = Request::parse(Api::Chat, raw)?;
                let mut sequences = model.sequences(&request, context)?;
                Ok(sequences.pop().unwrap_or_default())
            }
            Self::BuiltIn => Ok(encode(&render(messages).ok_or(ChatError::Messages)?)),
        }
    }

    /// Ids that decode to words, for answers.
    pub(super) fn vocabulary(&self) -> Arc<[u32]> {
        self.encode(WORDS, false).into()
    }
}

fn read_optional(directory: &Path, name: &str) -> Result<Option<Vec<u8>>, TokenizerError> {
    let path = directory.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Read { path, source }),
    }
}

/// The template in a file of its own; one inside `tokenizer_config.json` is found by the model.
fn chat_template(directory: &Path) -> Result<Option<String>, TokenizerError> {
    if let Some(bytes) = read_optional(directory, "chat_template.jinja")? {
        return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
    }
    let json = read_optional(directory, "chat_template.json")?;
    let json = json.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    Ok(json.and_then(|json| Some(json.get("chat_template")?.as_str()?.to_owned())))
}

/// A chat as plain text: each message under a line with its role.
fn render(messages: &[Value]) -> Option<String> {
    let mut text = String::new();
    for message in messages {
        let role = message.get("role")?.as_str()?;
        text.push_str("<|start|>");
        text.push_str(role);
        text.push('\n');
        match message.get("content") {
            Some(Value::String(content)) => text.push_str(content),
            Some(Value::Array(parts)) => {
                for part in parts.iter().filter_map(|part| part.get("text")?.as_str()) {
                    text.push_str(part);
                    text.push('\n');
                }
            }
            _ => {}
        }
        text.push_str("<|end|>\n");
    }
    text.push_str("<|start|>assistant\n");
    Some(text)
}

/// Bytes of one token.
const PIECE: usize = 4;
/// Seven bits hold an ASCII byte; the length stands above four of them.
const LENGTH_SHIFT: u32 = 28;
/// Added to the length of a piece that is not ASCII, which holds three whole bytes at most.
const RAW: u32 = 4;

fn encode(text: &str) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len() / 3);
    let mut rest = text.as_bytes();
    while let Some(first) = rest.first() {
        let raw = !first.is_ascii();
        let longest = if raw { PIECE - 1 } else { PIECE };
        // A word begins with the space before it; an ASCII piece ends where something else begins.
        let more = rest.iter().take(longest).skip(1);
        let more = more.take_while(|byte| !byte.is_ascii_whitespace() && (raw || byte.is_ascii()));
        let (piece, after) = rest.split_at(1 + more.count());
        rest = after;
        ids.push(pack(piece, raw));
    }
    ids
}

fn pack(piece: &[u8], raw: bool) -> u32 {
    let (bits, kind) = if raw { (8, RAW) } else { (7, 0) };
    let packed = piece
        .iter()
        .rev()
        .fold(0, |packed, &byte| packed << bits | u32::from(byte));
    let length = u32::try_from(piece.len()).unwrap_or_default();
    (kind + length) << LENGTH_SHIFT | packed
}

/// Ids that this tokenizer did not make (a client's own) decode to their number.
fn decode(ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len() * PIECE);
    for &id in ids {
        let (length, bits) = match id >> LENGTH_SHIFT {
            length @ 1..=RAW => (length, 7),
            length @ 5..=7 => (length - RAW, 8),
            _ => {
                bytes.extend_from_slice(format!("<{id}>").as_bytes());
                continue;
            }
        };
        let mask = (1 << bits) - 1;
        bytes.extend(
            (0..length).map(|at| u8::try_from(id >> (at * bits) & mask).unwrap_or_default()),
        );
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            prop_assert_eq!(decode(&encode(&text)), text);
        }

        #[test]
        fn a_common_beginning_has_common_tokens(head in "[a-z ]{0,40}", a in "[a-z]{0,20}", b in "[a-z]{0,20}") {
            let whole = encode(&head);
            let (first, second) = (encode(&format!("{head} {a}")), encode(&format!("{head} {b}")));
            prop_assert_eq!(&first[..whole.len()], &whole[..]);
            prop_assert_eq!(&second[..whole.len()], &whole[..]);
        }
    }

    #[test]
    fn foreign_ids_decode_to_their_number() {
        assert_eq!(decode(&[1000]), "<1000>");
    }

    #[test]
    fn english_has_about_three_bytes_a_token() {
        let tokens = encode(WORDS).len();
        assert!(
            (2.8..3.9).contains(&(WORDS.len() as f64 / tokens as f64)),
            "{tokens}"
        );
    }

    #[test]
    fn a_message_without_a_role_is_an_error() {
        let messages = [serde_json::json!({"content": "x"})];
        let chat = Tokenizer::BuiltIn.chat(b"", &messages, &RenderContext::default());
        assert!(matches!(chat, Err(ChatError::Messages)));
    }
}
