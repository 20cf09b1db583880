//! Token ids equal those that Hugging Face's tokenizers gave elsewhere for the same texts.

use warmpath::routing::model::Model;
use warmpath::routing::tokenize::Tokenizer;

use crate::golden_data::{bytes, lines, model_files};

/// Texts with their ids, as llama.cpp's tests keep them.
fn vocabulary_cases(name: &str) -> Option<Vec<(String, Vec<u32>)>> {
    let read = |end: &str| {
        let path = format!("data/tokenizers/golden/llama.cpp-vocab/ggml-vocab-{name}.gguf.{end}");
        bytes(&path).map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let (texts, ids) = (read("inp")?, read("out")?);
    let texts = texts.split("\n__ggml_vocab_test__\n");
    let ids = ids.split('\n').map(|line| {
        line.split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect()
    });
    Some(texts.map(str::to_owned).zip(ids).collect())
}

fn tokenizer(name: &str) -> Option<Tokenizer> {
    let files = model_files(name, None)?;
    Some(Tokenizer::load(&files.tokenizer, files.tokenizer_config.as_deref(), 1 << 20).unwrap())
}

#[test]
fn vocabulary_tests_of_llama_cpp_hold() {
    for (model, vocabulary) in [
        ("qwen3", "qwen2"),
        ("llama3_1", "llama-bpe"),
        ("tinyllama", "llama-spm"),
    ] {
        let (Some(tokenizer), Some(cases)) = (tokenizer(model), vocabulary_cases(vocabulary))
        else {
            return;
        };
        assert_eq!(cases.len(), 47);
        for (text, ids) in &cases {
            assert_eq!(
                &tokenizer.encode(text, false).unwrap(),
                ids,
                "{model}: {text:?}"
            );
        }
        println!(
            "{model}: {} texts, fast: {:?}",
            cases.len(),
            tokenizer.not_fast()
        );
    }
}

#[test]
fn tests_of_transformers_js_hold_with_special_tokens() {
    for (model, file, names) in [
        ("llama3_1", "llama", &["Xenova/llama3-tokenizer-new"][..]),
        (
            "qwen3",
            "qwen2",
            &["Qwen/Qwen1.5-0.5B-Chat", "Xenova/Qwen1.5-0.5B-Chat"][..],
        ),
    ] {
        let path = format!("data/tokenizers/golden/transformers.js/{file}.jsonl");
        let (Some(tokenizer), Some(cases)) = (tokenizer(model), lines(&path)) else {
            return;
        };
        let mut held = 0;
        for case in cases
            .iter()
            .filter(|case| names.contains(&case["model"].as_str().unwrap()))
        {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(
                tokenizer.encode(text, true).unwrap(),
                ids,
                "{model}: {text:?}"
            );
            held += 1;
        }
        println!("{model}: {held} texts");
        assert!(held > 10, "{model}: {held} of {}", cases.len());
    }
}

#[test]
fn deepseek_gets_its_first_token_from_the_configuration() {
    let Some(files) = model_files("deepseek_v3", None) else {
        return;
    };
    let model = Model::load(&files).unwrap();
    let plain = model.encode("Hello", false);
    assert_eq!(
        model.encode("Hello", true),
        [&[0], plain.as_slice()].concat()
    );
}

#[test]
fn ids_turn_back_into_their_text() {
    let Some(cases) = vocabulary_cases("qwen2") else {
        return;
    };
    let tokenizer = tokenizer("qwen3").unwrap();
    for (text, ids) in &cases {
        // The tokenizer composes characters before it looks at them.
        if text.is_ascii() {
            assert_eq!(&tokenizer.decode(ids), text);
        }
    }
}
