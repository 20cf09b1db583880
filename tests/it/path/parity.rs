//! Engines whose tokens are not ours: noticed by canaries and by what they store, and stepped around.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{CHAT, chat, text};
use crate::support::fleet::{Exchange, Fleet, MODEL, Setup};
use crate::support::waiting::until;

/// A folder with Qwen3's tokenizer and a chat template.
struct OtherTemplate(tempfile::TempDir);

impl OtherTemplate {
    /// The prompt begins with a line that the model's own template does not have.
    fn new() -> Self {
        let other = Self(tempfile::tempdir().expect("a temporary folder"));
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/qwen3");
        let packed = std::fs::File::open(assets.join("tokenizer.json.gz")).expect("an asset");
        let mut unpacked = flate2::read::GzDecoder::new(packed);
        let mut tokenizer = std::fs::File::create(other.file("tokenizer.json")).expect("a file");
        std::io::copy(&mut unpacked, &mut tokenizer).expect("the asset is whole");
        let config = std::fs::read_to_string(assets.join("tokenizer_config.json"));
        let config: Value = serde_json::from_str(&config.expect("an asset")).expect("JSON");
        let template = config["chat_template"].as_str().expect("a template");
        let template = format!("<|im_start|>system\nBe somebody else.<|im_end|>\n{template}");
        std::fs::write(other.file("chat_template.jinja"), template).expect("a file");
        std::fs::write(other.file("tokenizer_config.json"), config.to_string()).expect("a file");
        other
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The option of an engine that uses it; for the life of the test process, as options are.
    fn option(&self) -> [&'static str; 2] {
        let folder = self.0.path().to_str().expect("a path in UTF-8").to_owned();
        ["--model-dir", folder.leak()]
    }

    /// Engines that start from now on have the model's own template.
    fn mend(&self) {
        std::fs::remove_file(self.file("chat_template.jinja")).expect("it was there");
    }
}

fn often() -> Value {
    json!({ "tokenizers": { "canary_interval": "200ms" } })
}

/// What the picker says of its one model.
async fn model(fleet: &Fleet) -> Value {
    fleet.picker.json("/debug/state").await["models"][0].clone()
}

async fn parity_is(fleet: &Fleet, word: &str) -> Value {
    until(&format!("the tokens' parity is {word}"), async || {
        let model = model(fleet).await;
        (model["parity"] == word).then_some(model)
    })
    .await
}

/// Made by `source`, and the pick foresaw exactly what the engine found.
#[track_caller]
fn assert_exact(exchange: &Exchange, source: &str) {
    let decision = &exchange.decision;
    assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
    assert_eq!(decision["request"]["token_source"], source, "{decision}");
    let outcome = &decision["outcome"];
    assert_eq!(decision["prompt_tokens"], outcome["prompt_tokens"]);
    let foreseen = Some(exchange.predicted());
    assert_eq!(foreseen, exchange.reported(), "{decision}");
}

async fn cold_then_warm(fleet: &Fleet, topic: &str, source: &str) {
    let body = chat(&text(topic, 40));
    assert_exact(&fleet.ask(CHAT, &body).await, source);
    fleet.events_arrived().await;
    let warm = fleet.ask(CHAT, &body).await;
    assert_exact(&warm, source);
    assert!(warm.predicted() > 0, "{}", warm.decision);
    fleet.events_arrived().await;
}

#[tokio::test]
async fn an_engine_with_another_template_is_asked_for_its_tokens_until_it_has_ours() {
    let other = OtherTemplate::new();
    let setup = Setup::engines(1)
        .with_tokenizer()
        .engine_options(&other.option())
        .settings(often());
    setup
        .run(async |fleet| {
            let seen = parity_is(fleet, "differs").await;
            assert_eq!(seen["source"], "engine");
            assert_eq!(
                seen["difference"]["canary"], "user",
                "texts are equal: {seen}"
            );
            let gauge = format!("warmpath_tokenizer_parity{{model=\"{MODEL}\"}}");
            fleet.picker.metric_is(&gauge, 0.0).await;
            cold_then_warm(fleet, "first", "engine").await;
            let degraded = r#"warmpath_token_degradations_total{reason="parity"}"#;
            fleet.picker.metric_is(degraded, 2.0).await;

            other.mend();
            fleet.engines[0].kill().await;
            fleet.engines[0].restart().await;
            parity_is(fleet, "agrees").await;
            fleet.settled().await;
            fleet.events_arrived().await;
            fleet.picker.metric_is(&gauge, 1.0).await;
            cold_then_warm(fleet, "second", "local").await;
        })
        .await;
}

#[tokio::test]
async fn of_two_templates_the_one_that_most_engines_have_is_exact() {
    let other = OtherTemplate::new();
    let setup = Setup::engines(3)
        .with_tokenizer()
        .second_engine_options(&other.option())
        .settings(often());
    setup
        .run(async |fleet| {
            let seen = parity_is(fleet, "split").await;
            assert_eq!(
                (&seen["source"], &seen["engines"]),
                (&json!("local"), &json!(3))
            );
            // One that differs has all of them asked.
            until("all were asked", async || {
                let seen = model(fleet).await;
                (seen["engines_compared"] == 3 && seen["engines_equal"] == 2).then_some(())
            })
            .await;
            let at = fleet.engines[1].address().to_string();
            assert_eq!(seen["difference"]["engine"], at);
        })
        .await;
}

#[tokio::test]
async fn without_canaries_what_an_engine_stores_gives_it_away() {
    let other = OtherTemplate::new();
    let setup = Setup::engines(1)
        .with_tokenizer()
        .engine_options(&other.option())
        .settings(json!({ "tokenizers": { "canary_interval": "0s" } }));
    setup
        .run(async |fleet| {
            let missing = r#"warmpath_first_blocks_total{outcome="missing"}"#;
            let mut asked = 0;
            until("four first blocks were not stored", async || {
                asked += 1;
                fleet
                    .ask(CHAT, &chat(&text(&format!("topic {asked}"), 20)))
                    .await;
                (fleet.picker.metric(missing).await >= 4.0).then_some(())
            })
            .await;
            let seen = parity_is(fleet, "unstored").await;
            assert_eq!(seen["source"], "engine");
            let beginnings = &seen["not_stored"];
            assert_ne!(beginnings["ours"], beginnings["stored"], "{seen}");
            // The answers until then may have spoken against the engine's events, which were right.
            until("the engine's events are believed", async || {
                asked += 1;
                let prompt = text(&format!("topic {asked}"), 20);
                fleet.ask(CHAT, &chat(&prompt)).await;
                let endpoint = fleet.picker.endpoint(&fleet.engines[0].name).await;
                endpoint["doubt"].is_null().then_some(())
            })
            .await;
            cold_then_warm(fleet, "later", "engine").await;
        })
        .await;
}

#[tokio::test]
async fn an_engine_with_our_template_stores_what_we_send_and_no_canary_differs() {
    let setup = Setup::engines(2).with_tokenizer().settings(often());
    setup
        .run(async |fleet| {
            let seen = parity_is(fleet, "agrees").await;
            assert_eq!(seen["not_asked"], json!([]), "{seen}");
            for topic in 0..8 {
                fleet
                    .ask(CHAT, &chat(&text(&format!("topic {topic}"), 20)))
                    .await;
            }
            let stored = r#"warmpath_first_blocks_total{outcome="stored"}"#;
            fleet.picker.metric_reaches(stored, 4.0).await;
            for outcome in ["missing", "other_scope"] {
                let metric = format!("warmpath_first_blocks_total{{outcome=\"{outcome}\"}}");
                assert_eq!(fleet.picker.metric(&metric).await, 0.0, "{outcome}");
            }
            let differs = r#"warmpath_token_canaries_total{outcome="differs"}"#;
            assert_eq!(fleet.picker.metric(differs).await, 0.0);
        })
        .await;
}
