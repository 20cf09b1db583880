//! What a request costs before it is hashed and picked for: parsing, rendering, tokenizing.
//!
//! The shape measured is the project's reference load: chats of 8,000 tokens (32 KB) whose
//! first 6,000 tokens are one of 200 system prompts; and bodies of 220 KB.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench stops at the first thing that is wrong, and says what it measures"
)]

use std::hint::black_box;
use std::io::Read as _;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use serde_json::json;
use warmpath::routing::model::{Model, ModelFiles, RenderContext};
use warmpath::routing::request::{Api, Content, Request};

/// Text of about `tokens` tokens: common words, numbers and punctuation in no order.
fn text(tokens: usize, rng: &mut fastrand::Rng) -> String {
    const WORDS: [&str; 40] = [
        "the", "customer", "asked", "for", "a", "refund", "of", "order", "and", "support", "said",
        "that", "delivery", "was", "delayed", "by", "weather", "in", "Zürich", "on", "Monday",
        "please", "check", "invoice", "status", "before", "replying", "because", "prefill",
        "cache", "tokens", "belong", "to", "system", "prompts", "which", "are", "shared",
        "between", "requests",
    ];
    let mut text = String::new();
    let mut count = 0;
    while count < tokens {
        match rng.u8(..32) {
            0 => text.push_str(".\n"),
            1 => text.push(','),
            2 => {
                text.push_str(&format!(" {}", rng.u16(..1000)));
                count += 3;
            }
            _ => {
                text.push(' ');
                text.push_str(rng.choice(WORDS).unwrap());
            }
        }
        count += 1;
    }
    text
}

fn chat(system: &str, user: &str) -> Vec<u8> {
    json!({
        "model": "qwen3",
        "stream": true,
        "max_tokens": 100,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
        ],
    })
    .to_string()
    .into_bytes()
}

fn model() -> Model {
    let mut tokenizer = Vec::new();
    flate2::read::GzDecoder::new(&include_bytes!("../assets/qwen3/tokenizer.json.gz")[..])
        .read_to_end(&mut tokenizer)
        .unwrap();
    Model::load(&ModelFiles {
        tokenizer,
        tokenizer_config: Some(include_bytes!("../assets/qwen3/tokenizer_config.json").to_vec()),
        ..ModelFiles::default()
    })
    .unwrap()
}

fn parsed(body: &[u8]) -> Request {
    Request::parse(Api::Chat, body).unwrap()
}

fn chats(c: &mut Criterion) {
    let model = model();
    let context = RenderContext::default();
    let rng = &mut fastrand::Rng::with_seed(7);
    let prefixes: Vec<String> = (0..200).map(|_| text(5580, rng)).collect();
    let one = chat(&prefixes[0], &text(1860, rng));
    let ids = model.sequences(&parsed(&one), &context).unwrap().remove(0);
    println!("one chat: {} bytes, {} tokens", one.len(), ids.len());

    c.bench_function("parse a chat of 32 KB", |b| {
        b.iter(|| parsed(black_box(&one)));
    });
    let Content::Chat(rendered) = parsed(&one).content else {
        panic!("a chat");
    };
    c.bench_function("render it", |b| {
        b.iter(|| model.render(black_box(&rendered), &context).unwrap());
    });
    let prompt = model.render(&rendered, &context).unwrap();
    c.bench_function("tokenize it, all seen before", |b| {
        b.iter(|| model.encode(black_box(&prompt), false));
    });
    for prefix in &prefixes {
        model.encode(&format!("<|im_start|>system\n{prefix}<|im_end|>\n"), false);
    }
    let whole = |body: Vec<u8>| model.sequences(&parsed(&body), &context).unwrap();
    c.bench_function("parse, render and tokenize, 75 % shared", |b| {
        b.iter_batched(
            || chat(&prefixes[rng.usize(..200)], &text(1860, rng)),
            whole,
            BatchSize::SmallInput,
        );
    });
    c.bench_function("parse, render and tokenize, nothing shared", |b| {
        b.iter_batched(
            || chat(&text(5580, rng), &text(1860, rng)),
            whole,
            BatchSize::SmallInput,
        );
    });
    println!("cache: {} bytes", model.tokenizer().cached_bytes());
}

fn large_bodies(c: &mut Criterion) {
    let model = model();
    let context = RenderContext::default();
    let rng = &mut fastrand::Rng::with_seed(8);
    let shared = text(30_800, rng);
    let body = chat(&shared, &text(10_300, rng));
    println!("large body: {} bytes", body.len());
    c.bench_function("parse 220 KB", |b| b.iter(|| parsed(black_box(&body))));
    let request = parsed(&body);
    c.bench_function("text of 220 KB for an estimate", |b| {
        b.iter(|| black_box(&request).text());
    });
    c.bench_function("parse, render and tokenize 220 KB, 75 % shared", |b| {
        b.iter_batched(
            || chat(&shared, &text(10_300, rng)),
            |body| model.sequences(&parsed(&body), &context).unwrap(),
            BatchSize::SmallInput,
        );
    });
}

/// The same texts as bodies of the APIs that are turned into chats, with a tool, as agents send them.
fn converted(c: &mut Criterion) {
    let model = model();
    let context = RenderContext {
        engine_version: Some((0, 31)),
        ..RenderContext::default()
    };
    let rng = &mut fastrand::Rng::with_seed(9);
    let (system, question) = (text(5580, rng), text(1800, rng));
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let responses = json!({
        "model": "qwen3", "instructions": system, "input": [
            {"role": "user", "content": [{"type": "input_text", "text": question}]},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{\"city\": \"Kassel\"}"},
            {"type": "function_call_output", "call_id": "c", "output": "rain"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": schema}],
    });
    let messages = json!({
        "model": "qwen3", "max_tokens": 9, "system": [{"type": "text", "text": system}], "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Kassel"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "rain"}]},
        ],
        "tools": [{"name": "weather", "input_schema": schema}],
    });
    for (name, api, body) in [
        ("responses", Api::Responses, responses),
        ("messages", Api::Messages, messages),
    ] {
        let body = body.to_string().into_bytes();
        let parsed = || Request::parse(api, &body).unwrap();
        let ids = model.sequences(&parsed(), &context).unwrap().remove(0);
        println!("{name}: {} bytes, {} tokens", body.len(), ids.len());
        c.bench_function(&format!("parse {name} of 32 KB"), |b| {
            b.iter(|| black_box(parsed()));
        });
        c.bench_function(
            &format!("parse, convert, render and tokenize {name}, all seen before"),
            |b| {
                b.iter(|| model.sequences(&parsed(), &context).unwrap());
            },
        );
    }
}

criterion_group!(benches, chats, large_bodies, converted);
criterion_main!(benches);
