//! The text of a prompt without its media, for estimates of length and likeness.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{Content, Prompt, prompts};

/// Keys whose values are media or opaque payloads: megabytes that are few tokens or none.
const MEDIA: [&str; 13] = [
    "audio_embeds",
    "audio_url",
    "encrypted_content",
    "file",
    "file_data",
    "image_embeds",
    "image_url",
    "input_audio",
    "prompt_embeds",
    "signature",
    "video",
    "video_embeds",
    "video_url",
];

/// The text in prompt order; `None` when there is nothing to point at.
pub(super) fn of(content: &Content) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    match content {
        Content::Chat(chat) => {
            for value in chat
                .tools
                .iter()
                .chain(&chat.documents)
                .chain([&chat.messages])
            {
                collect(value, &mut text);
            }
        }
        Content::Responses(body) => body.texts().for_each(|value| collect(value, &mut text)),
        Content::Messages(body) => body.texts().for_each(|value| collect(value, &mut text)),
        Content::Prompts(prompts) => {
            for prompt in &prompts.items {
                if let Prompt::Text(prompt) = prompt {
                    push(prompt, &mut text);
                }
            }
        }
        Content::Inexact { texts, .. } => {
            for value in texts {
                collect(value, &mut text);
            }
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Of a number's digits so many are taken: one of five bytes (`1e308`) prints as hundreds, and a body of such numbers
/// would become a text fifty times its size.
const MOST_DIGITS: usize = 24;

fn push(piece: &str, text: &mut Vec<u8>) {
    if !text.is_empty() {
        text.push(b'\n');
    }
    text.extend_from_slice(piece.as_bytes());
}

/// Bodies nest no deeper than serde_json reads (128), so recursion is bounded.
fn collect(value: &Value, text: &mut Vec<u8>) {
    if let Some(piece) = value.as_str() {
        if !piece.starts_with("data:") {
            push(piece, text);
        }
    } else if let Some(items) = prompts::list(value) {
        for item in items {
            collect(item, text);
        }
    } else if value.kind() == ValueKind::Map
        && let Some(pairs) = value.as_object().and_then(|object| object.try_iter_pairs())
    {
        for (key, value) in pairs {
            let key = key.as_str().unwrap_or_default();
            if !MEDIA.contains(&key) && !is_media_source(key, &value) {
                push(key, text);
                collect(&value, text);
            }
        }
    } else if value.is_number() {
        let number = value.to_string();
        push(number.get(..MOST_DIGITS).unwrap_or(&number), text);
    }
}

/// Anthropic's images and documents: `"source": {"type": "base64", "media_type": …, "data": …}`.
fn is_media_source(key: &str, value: &Value) -> bool {
    key == "source"
        && value
            .get_attr("media_type")
            .is_ok_and(|kind| kind.as_str().is_some_and(|kind| !kind.starts_with("text/")))
}
