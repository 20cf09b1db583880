//! Small tokenizers, made up here: how they load, what stands around a text, who serves.

use serde_json::{Value, json};

use super::*;

/// A byte-level BPE of letters and two merges, with a special token.
fn description() -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, letter) in ('a'..='z')
        .map(String::from)
        .chain(["Ġ".into(), "ab".into(), "abc".into()])
        .enumerate()
    {
        vocab.insert(letter, json!(id));
    }
    json!({
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null,
        "added_tokens": [{"id": 29, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": ["a b", "ab c"]}
    })
}

fn load(description: &Value, config: Option<&Value>) -> Result<Tokenizer, TokenizerError> {
    let config = config.map(Value::to_string);
    Tokenizer::load(
        description.to_string().as_bytes(),
        config.as_deref().map(str::as_bytes),
        1 << 20,
    )
}

#[test]
fn ids_are_whole_whatever_truncation_the_file_names() {
    let tokenizer = load(&description(), None).unwrap();
    assert_eq!(
        tokenizer.encode("abc abab<s>z", false).unwrap(),
        [28, 26, 27, 27, 29, 25]
    );
    assert_eq!(tokenizer.decode(&[28, 26, 27, 29]), "abc ab<s>");
}

#[test]
fn the_configuration_decides_on_special_tokens_where_it_speaks_of_them() {
    let mut description = description();
    description["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [29], "tokens": ["<s>"]}}
    });
    let ids = |config: Option<Value>| {
        let tokenizer = load(&description, config.as_ref()).unwrap();
        tokenizer.encode("z", true).unwrap()
    };
    assert_eq!(ids(None), [25, 29]);
    assert_eq!(ids(Some(json!({"bos_token": "<s>"}))), [25, 29]);
    assert_eq!(
        ids(Some(json!({"add_bos_token": true, "bos_token": "<s>"}))),
        [29, 25]
    );
    let in_object = json!({"add_bos_token": true, "bos_token": {"content": "<s>"}});
    assert_eq!(ids(Some(in_object)), [29, 25]);
    assert_eq!(
        ids(Some(json!({"add_bos_token": false, "bos_token": "<s>"}))),
        [25]
    );
    assert_eq!(
        ids(Some(json!({"add_eos_token": true, "eos_token": null}))),
        [25]
    );
    let unknown = load(
        &description,
        Some(&json!({"add_bos_token": true, "bos_token": "<no>"})),
    );
    assert!(matches!(unknown.err(), Some(TokenizerError::NoSuchToken(token)) if token == "<no>"));
}

#[test]
fn tokens_that_only_the_configuration_knows_are_added() {
    let config = json!({"added_tokens_decoder": {
        "29": {"content": "<s>", "special": true},
        "30": {"content": "<t>", "special": true},
    }});
    let tokenizer = load(&description(), Some(&config)).unwrap();
    assert_eq!(tokenizer.encode("a<t>b", false).unwrap(), [0, 30, 1]);
}

#[test]
fn the_reference_serves_what_the_fast_one_would_get_wrong() {
    let mut description = description();
    description["added_tokens"][0]["single_word"] = json!(true);
    let tokenizer = load(&description, None).unwrap();
    assert!(
        tokenizer
            .not_fast()
            .is_some_and(|why| why.contains("whole words"))
    );
    assert_eq!(
        tokenizer.encode("a <s> b", false).unwrap(),
        [0, 26, 29, 26, 1]
    );

    let mut description = self::description();
    description["model"] =
        json!({"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"});
    description["added_tokens"] = json!([]);
    description["pre_tokenizer"] = json!({"type": "Whitespace"});
    let tokenizer = load(&description, None).unwrap();
    assert!(tokenizer.not_fast().is_some());
    assert_eq!(tokenizer.encode("a b a", false).unwrap(), [0, 1, 0]);
}

#[test]
fn files_that_are_no_tokenizers_say_so() {
    let error = |bytes: &[u8], config: Option<&[u8]>| Tokenizer::load(bytes, config, 0).err();
    assert!(matches!(error(b"", None), Some(TokenizerError::Json(_))));
    assert!(matches!(
        error(b"{}", None),
        Some(TokenizerError::Unknown(_))
    ));
    let good = description().to_string();
    assert!(matches!(
        error(good.as_bytes(), Some(b"[")),
        Some(TokenizerError::Config(_))
    ));
}
