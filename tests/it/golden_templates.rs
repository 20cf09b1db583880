//! Rendered text equals what transformers and Python's Jinja give for the same input.

use minijinja::Value;
use serde_json::Value as Json;
use warmpath::routing::model::Model;
use warmpath::routing::template::{ChatTemplate, TemplateError, Variables};

use crate::golden_data::{bytes, lines, model_files, template_value};

/// 2026-01-15, noon UTC: the clock under which the goldens were made.
const GOLDEN_TIME: i64 = 1_768_478_400;

fn variables(messages: Vec<Value>) -> Variables<'static> {
    Variables {
        messages,
        tools: None,
        documents: None,
        special_tokens: &[],
        kwargs: Vec::new(),
        add_generation_prompt: false,
        continue_final_message: false,
        unix_time: GOLDEN_TIME,
    }
}

/// What transformers does to messages before a template sees them: keys with `null` go, and
/// reasoning is known by two more names.
fn as_transformers_passes(message: &Json) -> Value {
    let mut kept = message.as_object().unwrap().clone();
    kept.retain(|_, value| !value.is_null());
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|name| kept.get(*name).cloned());
    if let Some(reasoning) = reasoning {
        kept.entry("thinking").or_insert_with(|| reasoning.clone());
        kept.insert("reasoning_content".to_owned(), reasoning);
    }
    template_value(&Json::Object(kept))
}

struct Family {
    name: &'static str,
    template: Option<&'static str>,
    date: Option<&'static str>,
    with_ids: bool,
}

fn hold_to_transformers(family: &Family) {
    let Some(files) = model_files(family.name, family.template) else {
        return;
    };
    let model = family.with_ids.then(|| Model::load(&files).unwrap());
    let config: Json = serde_json::from_slice(files.tokenizer_config.as_ref().unwrap()).unwrap();
    let source = files
        .chat_template
        .clone()
        .unwrap_or_else(|| config["chat_template"].as_str().unwrap().to_owned());
    let template = ChatTemplate::new(&source).unwrap();
    let special: Vec<(String, Value)> = ["bos_token", "eos_token", "pad_token", "unk_token"]
        .iter()
        .filter_map(|name| {
            let token = &config[*name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some(((*name).to_owned(), Value::from(text)))
        })
        .collect();
    let golden = "data/tokenizers/golden/hf-transformers";
    let inputs = lines(&format!("{golden}/inputs.jsonl.zst")).unwrap();
    let expected = lines(&format!("{golden}/{}.jsonl.zst", family.name)).unwrap();
    assert_eq!((inputs.len(), expected.len()), (523, 523));
    let mut refused = 0;
    for (input, expected) in inputs.iter().zip(&expected) {
        assert_eq!(input["id"], expected["id"]);
        let messages = input["messages"].as_array().unwrap();
        let rendered = template.render(Variables {
            tools: input
                .get("tools")
                .filter(|tools| !tools.is_null())
                .map(template_value),
            special_tokens: &special,
            kwargs: family
                .date
                .map(|date| ("date_string".to_owned(), Value::from(date)))
                .into_iter()
                .collect(),
            add_generation_prompt: true,
            ..variables(messages.iter().map(as_transformers_passes).collect())
        });
        match (&rendered, expected.get("text").and_then(Json::as_str)) {
            (Ok(rendered), Some(text)) => {
                assert_eq!(rendered, text, "{} {}", family.name, input["id"]);
                if let Some(model) = &model {
                    let ids: Vec<u32> = serde_json::from_value(expected["ids"].clone()).unwrap();
                    assert_eq!(model.encode(rendered, false), ids, "{}", input["id"]);
                }
            }
            (Err(TemplateError::Engine(_)), None) => refused += 1,
            other => panic!("{} {}: {other:?}", family.name, input["id"]),
        }
    }
    if let Some(model) = &model {
        assert_eq!(
            model.tokenizer().not_fast(),
            None,
            "the fast tokenizer serves"
        );
    }
    println!(
        "{}: 523 conversations, {refused} refused as in transformers",
        family.name
    );
}

#[test]
fn qwen3_renders_and_tokenizes_recorded_chats_as_transformers() {
    hold_to_transformers(&Family {
        name: "qwen3",
        template: None,
        date: None,
        with_ids: true,
    });
}

#[test]
fn llama3_1_renders_and_tokenizes_recorded_chats_as_transformers() {
    hold_to_transformers(&Family {
        name: "llama3_1",
        template: Some("llama.cpp/meta-llama-Llama-3.1-8B-Instruct.jinja"),
        date: Some("26 Jul 2024"),
        with_ids: true,
    });
}

#[test]
fn deepseek_v3_renders_and_tokenizes_recorded_chats_as_transformers() {
    hold_to_transformers(&Family {
        name: "deepseek_v3",
        template: None,
        date: None,
        with_ids: true,
    });
}

#[test]
fn gpt_oss_template_renders_recorded_chats_as_transformers() {
    hold_to_transformers(&Family {
        name: "gpt-oss",
        template: Some("llama.cpp/openai-gpt-oss-120b.jinja"),
        date: None,
        with_ids: false,
    });
}

/// A JSON object's entries as named arguments.
fn kwargs(context: &Json) -> Vec<(String, Value)> {
    context
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), template_value(value)))
        .collect()
}

/// Snippets that differ from Python's Jinja, and why that is accepted.
const KNOWN_DIFFERENCES: [(&str, &str); 7] = [
    ("UNARY_SIGN_EXPRESSIONS", "a unary plus is refused at load"),
    (
        "CONTEXT_KEYWORDS",
        "variables named like keywords are refused at load",
    ),
    (
        "FILTER_OPERATOR_4",
        "a generator has a length here; Python refuses",
    ),
    (
        "FILTER_OPERATOR_5",
        "a generator has a length here; Python refuses",
    ),
    (
        "FILTER_OPERATOR_6",
        "a generator can be sliced here; Python refuses",
    ),
    (
        "FILTER_OPERATOR_11",
        "a generator has a length here; Python refuses",
    ),
    (
        "FILTER_OPERATOR_12",
        "a generator has a length here; Python refuses",
    ),
];

#[test]
fn snippets_render_as_python_jinja() {
    let Some(snippets) = lines("data/tokenizers/golden/hf-jinja/jinja_snippets.jsonl") else {
        return;
    };
    assert_eq!(snippets.len(), 157);
    let mut wrong = Vec::new();
    for snippet in &snippets {
        let name = snippet["name"].as_str().unwrap();
        let ours = ChatTemplate::new(snippet["template"].as_str().unwrap()).and_then(|template| {
            template.render(Variables {
                kwargs: kwargs(&snippet["context"]),
                ..variables(Vec::new())
            })
        });
        let same = match (&ours, snippet.get("python_jinja2").and_then(Json::as_str)) {
            (Ok(text), Some(expected)) => text == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if same == KNOWN_DIFFERENCES.iter().any(|(known, _)| *known == name) {
            wrong.push(format!(
                "{name}: {:?}\n  ours {ours:?}\n  python {:?} {:?}",
                snippet["template"], snippet["python_jinja2"], snippet["python_jinja2_error"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn real_chat_templates_render_as_python_jinja() {
    let Some(cases) = lines("data/tokenizers/golden/hf-jinja/e2e_chat_templates.jsonl") else {
        return;
    };
    let mut held = 0;
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        // The others differ between the JavaScript engine and Python, or print today's date.
        if case["python_jinja2_matches"] != true {
            continue;
        }
        held += 1;
        let ours =
            ChatTemplate::new(case["chat_template"].as_str().unwrap()).and_then(|template| {
                template.render(Variables {
                    kwargs: kwargs(&case["data"]),
                    // Undefined in the case, which this one template takes for true.
                    add_generation_prompt: name == "ai21labs/AI21-Jamba-Large-1.6",
                    ..variables(Vec::new())
                })
            });
        match ours {
            Ok(text) if text == case["target"].as_str().unwrap() => {}
            Ok(text) => {
                let expected = case["target"].as_str().unwrap();
                let same = text
                    .bytes()
                    .zip(expected.bytes())
                    .take_while(|(ours, theirs)| ours == theirs)
                    .count();
                wrong.push(format!(
                    "{name}: at {same}\n  ours   {:.200?}\n  python {:.200?}",
                    String::from_utf8_lossy(&text.as_bytes()[same..]),
                    String::from_utf8_lossy(&expected.as_bytes()[same..]),
                ));
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {held} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(held, 51);
}

#[test]
fn every_template_we_have_compiles() {
    let mut compiled = 0;
    for folder in ["llama.cpp", "mistral-common", "other", "vllm-2025-04"] {
        let path = format!("data/tokenizers/chat-templates/{folder}");
        let Some(folder) = crate::golden_data::shared(&path) else {
            return;
        };
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.ends_with(".jinja") {
                continue;
            }
            let source = String::from_utf8(bytes(&format!("{path}/{name}")).unwrap()).unwrap();
            let template =
                ChatTemplate::new(&source).unwrap_or_else(|error| panic!("{path}/{name}: {error}"));
            println!("{name}: {:?}", template.content_format());
            compiled += 1;
        }
    }
    assert!(compiled >= 100, "{compiled}");
}
