//! The same request again: is it cached, and do the engine's answers say so?

use serde::Deserialize;
use serde_json::json;

use super::engine::Engine;
use super::finding::{Findings, Topic};
use super::trial::{COMPLETIONS, Trial};
use crate::routing::cost::{self, Run};
use crate::routing::tokens::TokenCount;

#[derive(Deserialize)]
struct Answer {
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Sends the trial's prompt twice more, the second time as a stream.
pub(super) async fn judge(
    engine: &Engine,
    trial: &Trial,
    block_size: Option<u32>,
    findings: &mut Findings,
) {
    match engine
        .post(COMPLETIONS, &trial.body(json!({})), trial.rank())
        .await
    {
        Ok(text) => judge_answer(&text, trial.prompt.len(), block_size, findings),
        Err(why) => findings.fail(Topic::CachedTokens, why.to_string(), "see the engine's log"),
    }
    judge_stream(engine, trial, findings).await;
}

/// Sends it as a stream.
pub(super) async fn judge_stream(engine: &Engine, trial: &Trial, findings: &mut Findings) {
    let streamed = trial.body(json!({ "stream": true }));
    match engine.post(COMPLETIONS, &streamed, trial.rank()).await {
        Ok(stream) if tells_usage(&stream) => {
            findings.ok(Topic::StreamUsage, "streams tell their usage unasked");
        }
        Ok(_) => findings.warn(
            Topic::StreamUsage,
            "streams tell their usage only to clients that ask for it (stream_options.include_usage)",
            "start the engine with --enable-force-include-usage: then every answer shows whether the picker foresaw right",
        ),
        Err(why) => findings.fail(Topic::StreamUsage, why.to_string(), "see the engine's log"),
    }
}

fn judge_answer(text: &str, prompt: usize, block_size: Option<u32>, findings: &mut Findings) {
    let told = serde_json::from_str::<Answer>(text)
        .ok()
        .and_then(|answer| answer.usage)
        .and_then(|usage| usage.prompt_tokens_details)
        .and_then(|details| details.cached_tokens);
    let Some(told) = told else {
        findings.fail(
            Topic::CachedTokens,
            "answers do not tell how many tokens were cached",
            "start the engine with --enable-prompt-tokens-details (SGLang: --enable-cache-report): without it wrong \
             predictions go unnoticed and what was cached before the picker came is not learnt",
        );
        return;
    };
    let Some(block_size) = block_size else {
        findings.ok(
            Topic::CachedTokens,
            format!("{told} of {prompt} tokens the second time"),
        );
        return;
    };
    let prompt = TokenCount::new(prompt as u64);
    let all = Run {
        at_hand: u64::MAX,
        ..Run::default()
    };
    let expected = cost::cached(prompt, block_size.into(), all).tokens.get();
    let saw = format!(
        "{told} of {prompt} tokens the second time, {expected} foreseen",
        prompt = prompt.get()
    );
    if told == expected {
        findings.ok(Topic::CachedTokens, saw);
    } else if told == 0 {
        findings.fail(
            Topic::CachedTokens,
            saw,
            "the engine does not cache prefixes (--enable-prefix-caching), or its pool is so small that they are lost at once",
        );
    } else {
        findings.warn(
            Topic::CachedTokens,
            saw,
            "the engine caches by another rule than whole blocks of the prefix (speculative decoding drops one more, hybrid \
             models may hold less): the picker learns from its answers",
        );
    }
}

/// A data event of the stream has a usage that says something.
fn tells_usage(stream: &str) -> bool {
    stream
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter_map(|data| serde_json::from_str::<Answer>(data.trim()).ok())
        .any(|answer| answer.usage.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    fn level(text: &str, block_size: Option<u32>) -> Level {
        let mut findings = Findings::default();
        judge_answer(text, 100, block_size, &mut findings);
        findings.all()[0].level
    }

    fn answer(cached: u64) -> String {
        json!({"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}})
            .to_string()
    }

    #[test]
    fn cached_tokens_are_held_to_the_rule() {
        assert_eq!(level(&answer(96), Some(16)), Level::Ok);
        assert_eq!(level(&answer(80), Some(16)), Level::Warning);
        assert_eq!(level(&answer(0), Some(16)), Level::Failed);
        assert_eq!(level(&answer(5), None), Level::Ok);
        for silent in [
            r#"{"usage":{}}"#,
            r#"{"usage":{"prompt_tokens_details":null}}"#,
            "{}",
            "x",
        ] {
            assert_eq!(level(silent, Some(16)), Level::Failed, "{silent}");
        }
    }

    #[test]
    fn usage_in_any_event_of_a_stream_counts_unless_it_is_null() {
        assert!(tells_usage(
            "data: {\"usage\":null}\n\ndata: {\"usage\":{}}\n\ndata: [DONE]\n"
        ));
        assert!(!tells_usage(
            "data: {\"usage\":null}\n\n: alive\n\ndata: [DONE]\n"
        ));
    }
}
