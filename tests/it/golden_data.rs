//! The shared test data (`WARMPATH_SHARED`): where it is and how its files are read.

use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use minijinja::Value;
use serde_json::{Value as Json, json};
use warmpath::routing::model::ModelFiles;
use warmpath::routing::request::{Api, Chat, Content, Request};

/// A path in the shared data; `None` (and a line that says what is left out) without it.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    match std::env::var_os("WARMPATH_SHARED") {
        Some(root) => {
            let path = PathBuf::from(root).join(path);
            assert!(path.exists(), "{} is missing", path.display());
            Some(path)
        }
        None => {
            println!("left out: WARMPATH_SHARED is not set, so {path} is not tested against");
            None
        }
    }
}

/// The bytes of a shared file, unpacked.
pub(crate) fn bytes(path: &str) -> Option<Vec<u8>> {
    let path = shared(path)?;
    if path.extension().is_some_and(|end| end == "zst") {
        let output = Command::new("zstd")
            .arg("-dc")
            .arg(&path)
            .output()
            .expect("`zstd` unpacks the shared data: install it");
        assert!(output.status.success(), "zstd -dc {}", path.display());
        return Some(output.stdout);
    }
    Some(std::fs::read(path).unwrap())
}

/// One JSON value a line.
pub(crate) fn lines(path: &str) -> Option<Vec<Json>> {
    let bytes = bytes(path)?;
    Some(
        bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect(),
    )
}

/// A recording of a real engine that the project carries (`tests/data/recordings`).
pub(crate) fn recording(name: &str) -> Vec<Json> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recordings");
    unpacked(&format!("{folder}/{name}.jsonl.gz"))
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// The Qwen3 tokenizer and template that the project carries.
pub(crate) fn qwen3() -> ModelFiles {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/qwen3");
    ModelFiles {
        tokenizer: unpacked(&format!("{folder}/tokenizer.json.gz")),
        tokenizer_config: Some(std::fs::read(format!("{folder}/tokenizer_config.json")).unwrap()),
        ..ModelFiles::default()
    }
}

fn unpacked(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

/// A model folder of the shared data.
pub(crate) fn model_files(name: &str, template: Option<&str>) -> Option<ModelFiles> {
    let folder = format!("data/tokenizers/models/{name}");
    let packed = shared(&folder)?.join("tokenizer.json.zst").exists();
    let ending = if packed { ".zst" } else { "" };
    Some(ModelFiles {
        tokenizer: bytes(&format!("{folder}/tokenizer.json{ending}"))?,
        tokenizer_config: bytes(&format!("{folder}/tokenizer_config.json")),
        chat_template: template.map(|path| {
            String::from_utf8(bytes(&format!("data/tokenizers/chat-templates/{path}")).unwrap())
                .unwrap()
        }),
        ..ModelFiles::default()
    })
}

/// A JSON value as templates see it, by the way every body takes.
pub(crate) fn template_value(value: &Json) -> Value {
    let body = json!({"messages": [{"role": "user", "content": value}]});
    let chat = chat(&body).expect("a chat");
    let message = chat.messages.get_item_by_index(0).unwrap();
    message.get_attr("content").unwrap()
}

/// A body read as a chat.
pub(crate) fn chat(body: &Json) -> Option<Chat> {
    let request = Request::parse(Api::Chat, body.to_string().as_bytes()).unwrap();
    match request.content {
        Content::Chat(chat) => Some(*chat),
        _ => None,
    }
}
