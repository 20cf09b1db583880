//! Qwen3, which the project carries: from bodies to ids, truncation, and what is left to engines.

use std::io::Read as _;
use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::routing::request::Api;

fn files() -> ModelFiles {
    let mut tokenizer = Vec::new();
    let packed = include_bytes!("../../../assets/qwen3/tokenizer.json.gz");
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut tokenizer)
        .unwrap();
    ModelFiles {
        tokenizer,
        tokenizer_config: Some(
            include_bytes!("../../../assets/qwen3/tokenizer_config.json").to_vec(),
        ),
        ..ModelFiles::default()
    }
}

/// Loading takes seconds in a debug build, so all tests share one.
fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::load(&files()).unwrap())
}

/// A model with a tiny tokenizer, for what depends on the other files only.
fn small(config: &str, chat_template: Option<&str>, tokenizer_config: &str) -> Model {
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    });
    Model::load(&ModelFiles {
        tokenizer: tokenizer.to_string().into_bytes(),
        tokenizer_config: Some(tokenizer_config.as_bytes().to_vec()),
        chat_template: chat_template.map(str::to_owned),
        config: Some(config.as_bytes().to_vec()),
        mistral: false,
    })
    .unwrap()
}

fn context() -> RenderContext {
    RenderContext {
        engine_version: Some((0, 31)),
        max_model_len: Some(8),
        ..RenderContext::default()
    }
}

fn sequences(model: &Model, api: Api, body: &str) -> Result<Vec<Vec<u32>>, TokensError> {
    let request = Request::parse(api, body.as_bytes()).unwrap();
    model.sequences(&request, &context())
}

fn rendered(model: &Model, body: &str) -> Result<String, TokensError> {
    let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
    match &request.content {
        Content::Chat(chat) => model.render(chat, &context()),
        other => panic!("{other:?}"),
    }
}

const HI: &str = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;

#[test]
fn a_chat_gets_the_ids_of_its_rendered_text() {
    let model = model();
    assert_eq!(model.tokenizer().not_fast(), None);
    // As vLLM 0.31 reports them for this body.
    let expected = [
        151_644, 872, 198, 13_048, 151_645, 198, 151_644, 77_091, 198,
    ];
    assert_eq!(sequences(model, Api::Chat, HI).unwrap(), [expected]);
    assert_eq!(
        model.decode(&expected),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn template_arguments_and_effort_reach_the_template() {
    let with = |field: &str| {
        let body = HI.replacen('{', &format!("{{{field}, "), 1);
        rendered(model(), &body).unwrap()
    };
    let no_thinking = "<think>\n\n</think>\n\n";
    assert!(with(r#""chat_template_kwargs": {"enable_thinking": false}"#).ends_with(no_thinking));
    assert!(with(r#""reasoning_effort": "none""#).ends_with(no_thinking));
    assert!(!with(r#""reasoning_effort": "low""#).ends_with(no_thinking));
    let both = r#""reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}"#;
    assert!(!with(both).ends_with(no_thinking));
    let open = with(r#""add_generation_prompt": false"#);
    assert!(open.ends_with("<|im_end|>\n"));
    let tools = r#""tools": [{"type": "function", "function": {"name": "f", "description": "ü"}}]"#;
    assert!(with(tools).contains(
        r#"{"type": "function", "function": {"name": "f", "description": "ü", "parameters": null}}"#
    ));
}

#[test]
fn a_template_decides_what_becomes_of_thinking_and_of_late_system_messages() {
    let body = r#"{"max_tokens": 9, "thinking": {"type": "disabled"}, "messages": [
        {"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}]}"#;
    let prompt = |template: &str| {
        let model = small("{}", Some(template), "{}");
        let request = Request::parse(Api::Messages, body.as_bytes()).unwrap();
        let Content::Messages(body) = &request.content else {
            panic!("{request:?}");
        };
        let chat = model
            .converted(|target| body.chat(target), &context())
            .unwrap();
        model.render(&chat, &context()).unwrap()
    };
    let roles = "{% for m in messages %}{{ m.role[0] }}{{ m.content }} {% endfor %}";
    assert_eq!(prompt(roles), "ua sb uc ");
    let guarded = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}{{ m.role[0] }}{{ m.content }} {% endfor %}";
    assert_eq!(prompt(guarded), "sb ua uc ");
    // One template knows of no thinking, the other takes any effort for the highest.
    assert_eq!(
        prompt(&format!("{roles}{{{{ reasoning_effort }}}}")),
        "ua sb uc none"
    );
    let deaf = "{% if reasoning_effort in ['low', 'medium'] %}{{ reasoning_effort }}{% else %}max{% endif %}";
    assert_eq!(prompt(&format!("{roles}{deaf}")), "ua sb uc low");
}

#[test]
fn prompts_are_cut_as_the_engine_cuts_them() {
    let cut = |api: Api, fields: &str| {
        let name = if api == Api::Completions {
            "prompt"
        } else {
            "input"
        };
        let body = format!(r#"{{"{name}": [1, 2, 3, 4, 5, 6, 7, 8, 9], {fields}}}"#);
        sequences(model(), api, &body).unwrap().remove(0)
    };
    let (generate, embed) = (Api::Completions, Api::Embeddings);
    assert_eq!(cut(generate, r#""truncate_prompt_tokens": 3"#), [7, 8, 9]);
    assert_eq!(cut(generate, r#""truncate_prompt_tokens": 0"#), [0; 0]);
    let right = r#""truncate_prompt_tokens": 3, "truncation_side": "right""#;
    assert_eq!(cut(generate, right), [1, 2, 3]);
    let to_context = r#""truncate_prompt_tokens": -1, "max_tokens": 1"#;
    assert_eq!(cut(generate, to_context), [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(
        cut(embed, r#""truncate_prompt_tokens": -1"#),
        [1, 2, 3, 4, 5, 6, 7, 8]
    );
    assert_eq!(cut(generate, r#""truncate_prompt_tokens": null"#).len(), 9);
    let request = Request::parse(
        generate,
        br#"{"prompt": "a", "truncate_prompt_tokens": -1}"#,
    );
    let unknown = model().sequences(&request.unwrap(), &RenderContext::default());
    assert!(matches!(unknown, Err(TokensError::ContextLength)));
}

#[test]
fn each_prompt_of_a_body_is_a_sequence() {
    let all = sequences(model(), Api::Completions, r#"{"prompt": ["Hi", "Hi Hi"]}"#).unwrap();
    assert_eq!(all, [vec![13_048], vec![13_048, 21_018]]);
}

#[test]
fn what_only_the_engine_can_tell_is_an_error_with_a_reason() {
    let image = r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}"#;
    let reason =
        |model: &Model, body: &str| sequences(model, Api::Chat, body).unwrap_err().reason();
    assert_eq!(reason(model(), image), "media");
    assert_eq!(reason(model(), r#"{"messages": []}"#), "unknown_shape");
    let template = Some("{{ messages[0].content }}");
    assert_eq!(reason(&small("{}", None, "{}"), HI), "no_template");
    for config in [
        r#"{"model_type": "deepseek_v32"}"#,
        r#"{"architectures": ["DeepseekV4ForCausalLM"]}"#,
        r#"{"model_type": "mistral3"}"#,
        r#"{"text_config": {"model_type": "kimi_k3_text"}}"#,
    ] {
        let model = small(config, template, "{}");
        assert_eq!(reason(&model, HI), "own_renderer", "{config}");
        // Texts are tokenized here all the same.
        assert_eq!(
            sequences(&model, Api::Completions, r#"{"prompt": "a"}"#).unwrap(),
            [[0]]
        );
    }
    let plain = small(r#"{"model_type": "qwen3"}"#, template, "{}");
    assert_eq!(rendered(&plain, HI).unwrap(), "Hi");
    let refuses = small("{}", Some("{{ raise_exception('no') }}"), "{}");
    assert_eq!(reason(&refuses, HI), "template_refused");
}

/// By vLLM's registries of tokenizers and renderers (`--tokenizer-mode auto`), by model type or architecture.
#[test]
fn every_renderer_of_the_engine_s_own_is_known_by_type_or_architecture() {
    let template = Some("{{ messages[0].content }}");
    let reason = |config: &str| {
        sequences(&small(config, template, "{}"), Api::Chat, HI)
            .map_err(|error| error.reason())
            .err()
    };
    let own = [
        "Grok1ForCausalLM",
        "MoonshotKimiaForCausalLM",
        "QwenVLForConditionalGeneration",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV41ForCausalLM",
        "KimiK3ForConditionalGeneration",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
        "Cohere2ForCausalLM",
        "MistralForCausalLM",
        "PixtralForConditionalGeneration",
    ];
    for architecture in own {
        let config = format!(r#"{{"architectures": ["{architecture}"]}}"#);
        assert_eq!(reason(&config), Some("own_renderer"), "{architecture}");
    }
    let by_template = [
        "Qwen2VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "LlamaForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "Glm4MoeForCausalLM",
        "Gemma3ForConditionalGeneration",
    ];
    for architecture in by_template {
        let config = format!(r#"{{"architectures": ["{architecture}"]}}"#);
        assert_eq!(reason(&config), None, "{architecture}");
    }
    for name in ["opuslm", "opuslm_dialogue", "step_audio_2", "kimi_audio"] {
        let config = format!(r#"{{"model_type": "{name}"}}"#);
        assert_eq!(reason(&config), Some("own_renderer"), "{name}");
    }
}

#[test]
fn harmony_is_chosen_by_its_model_type_alone_and_by_the_template_where_none_is_told() {
    let harmony = Some("<|start|>system<|channel|>");
    let reason = |config: &str, template| {
        let model = small(config, template, "{}");
        let chat = sequences(&model, Api::Chat, HI).map_err(|error| error.reason());
        // Texts are tokenized here all the same.
        assert!(sequences(&model, Api::Completions, r#"{"prompt": "a"}"#).is_ok());
        chat.err()
    };
    let plain = Some("{{ messages[0].content }}");
    assert_eq!(
        reason(r#"{"model_type": "gpt_oss"}"#, plain),
        Some("harmony")
    );
    assert_eq!(reason("{}", harmony), Some("harmony"));
    assert_eq!(reason(r#"{"model_type": "gpt_oss_ng"}"#, harmony), None);
    assert_eq!(reason(r#"{"model_type": "qwen3"}"#, harmony), None);
}

#[test]
fn mistrals_own_tokenizer_counts_where_its_files_are() {
    let model = |mistral| {
        Model::load(&ModelFiles {
            chat_template: Some("{{ messages[0].content }}".to_owned()),
            mistral,
            ..files()
        })
        .unwrap()
    };
    let chat = |mistral| sequences(&model(mistral), Api::Chat, HI);
    assert_eq!(chat(true).unwrap_err().reason(), "own_renderer");
    assert_eq!(chat(false).unwrap(), [[13_048]]);
}

#[test]
fn a_chat_that_engine_versions_read_differently_is_exact_where_the_template_prints_the_same() {
    let body = r#"{"messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [
            {"type": "function", "id": "1", "function": {"name": "f", "arguments": "{}"}}]}]}"#;
    let with = |template: &str| {
        let model = small("{}", Some(template), "{}");
        rendered(&model, body).map_err(|error| error.reason())
    };
    assert_eq!(with("{{ messages[1].content }}").unwrap(), "a");
    assert_eq!(
        with("{{ messages[1].tool_calls[0].function.name }}").unwrap(),
        "f"
    );
    assert_eq!(
        with("{{ messages[1].tool_calls[0] | tojson }}"),
        Err("unsure")
    );
    assert_eq!(with("{{ messages[1].reasoning_content }}"), Err("unsure"));
}

#[test]
fn the_template_is_chosen_by_file_name_and_tools() {
    let named = r#"{"bos_token": "<s>", "chat_template": [
        {"name": "default", "template": "{{ bos_token }}default"},
        {"name": "tool_use", "template": "tools"}]}"#;
    let with_tools = HI.replacen('{', r#"{"tools": [{"function": {"name": "f"}}], "#, 1);
    let model = small("{}", None, named);
    assert_eq!(rendered(&model, HI).unwrap(), "<s>default");
    assert_eq!(rendered(&model, &with_tools).unwrap(), "tools");
    let model = small("{}", Some("file"), named);
    assert_eq!(rendered(&model, HI).unwrap(), "file");
    assert_eq!(rendered(&model, &with_tools).unwrap(), "file");
    let empty = small(
        "{}",
        Some("  \n"),
        r#"{"chat_template": "of the configuration"}"#,
    );
    assert_eq!(rendered(&empty, HI).unwrap(), "of the configuration");
}

#[test]
fn broken_files_are_named() {
    let load = |change: fn(&mut ModelFiles)| {
        let mut files = ModelFiles {
            tokenizer: b"{}".to_vec(),
            ..ModelFiles::default()
        };
        change(&mut files);
        Model::load(&files).err().unwrap().to_string()
    };
    assert!(load(|_| {}).contains("tokenizer.json"));
    assert!(load(|files| files.config = Some(b"[]".to_vec())).contains("config.json"));
    assert!(load(|files| files.chat_template = Some("{% if".to_owned())).contains("`default`"));
}

#[test]
fn cached_pieces_give_the_ids_of_an_encoding_from_scratch() {
    let uncached = Model::load_with_cache(&files(), 0).unwrap();
    let cached = model();
    let strategy = (
        prop::sample::select(vec![
            "",
            "You are helpful.",
            "Zürich  北京\n\n",
            "e\u{301}",
            "<think>",
        ]),
        ".{0,40}",
    );
    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&strategy, |(shared, own)| {
            let text = format!(
                "<|im_start|>system\n{shared}<|im_end|>\n<|im_start|>user\n{own}<|im_end|>\n"
            );
            let expected = uncached.encode(&text, false);
            prop_assert_eq!(cached.encode(&text, false), expected.clone());
            prop_assert_eq!(cached.encode(&text, false), expected);
            Ok(())
        })
        .unwrap();
    assert_eq!(uncached.tokenizer().cached_bytes(), 0);
    assert!(cached.tokenizer().cached_bytes() > 0);
}
