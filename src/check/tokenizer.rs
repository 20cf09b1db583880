//! Are our tokens the engine's? Asked as the picker asks, with canaries.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Context;
use super::about::About;
use super::finding::{Findings, Topic};
use crate::metrics::token_sources::TokenMetrics;
use crate::routing::request::{Api, Request};
use crate::tokens::Tokens;

/// How often it is looked whether the files are loaded and the canaries answered.
const LOOK: Duration = Duration::from_millis(50);

const HOW_TO_NAME_ONE: &str = "name its folder or hub id in the settings file (tokenizers.models; --config): until then \
     each prompt is tokenized by the engine, or only estimated";

/// What came of the wait.
enum Outcome {
    /// There is no tokenizer for the model here, and there will be none.
    NoneHere(&'static str),
    /// The engine's answers were compared with ours, or could not be.
    Compared(Value),
    /// Neither in time.
    Late(Option<&'static str>),
}

/// Loads the engine's tokenizer as the picker would, and compares.
pub(super) async fn judge(
    context: &Context,
    address: SocketAddr,
    about: &About,
    findings: &mut Findings,
) {
    let base = about.models.iter().find(|model| model.parent.is_none());
    let model = context
        .model
        .as_deref()
        .or_else(|| base.map(|base| base.id.as_str()));
    let (Some(model), Ok(metrics)) = (model, TokenMetrics::register(&Registry::new())) else {
        findings.left_out(Topic::Tokenizer, "no model is known to ask about (--model)");
        return;
    };
    let tokens = Tokens::new(context.settings.tokens.clone(), Arc::new(metrics));
    tokens.observe(address, about.models.clone(), about.profile.version);
    let stop = CancellationToken::new();
    let outcome = tokio::select! {
        () = Arc::clone(&tokens).run(stop.clone()) => return,
        () = Arc::clone(&tokens).watch_parity(stop.clone()) => return,
        outcome = wait(&tokens, model, Instant::now() + context.timeout) => outcome,
    };
    match outcome {
        Outcome::Compared(seen) => compared(&seen, findings),
        Outcome::NoneHere(reason) => findings.warn(
            Topic::Tokenizer,
            format!("there is no tokenizer for {model} here ({reason})"),
            HOW_TO_NAME_ONE,
        ),
        Outcome::Late(reason) => findings.warn(
            Topic::Tokenizer,
            format!(
                "the tokenizer of {model} could not be compared in time ({})",
                reason.unwrap_or("the engine did not answer")
            ),
            "ask again with a longer --timeout: a first download takes a while",
        ),
    }
}

async fn wait(tokens: &Tokens, model: &str, deadline: Instant) -> Outcome {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
    let body = body.to_string().into_bytes();
    let Ok(request) = Request::parse(Api::Chat, &body).map(Arc::new) else {
        return Outcome::Late(None);
    };
    loop {
        let why = tokens.tokenize(&request, &body, None).await.degraded;
        if let Some(reason @ ("no_source" | "no_files" | "load_failed" | "unknown_model")) = why {
            return Outcome::NoneHere(reason);
        }
        let models = tokens.to_json();
        let seen = models.as_array().into_iter().flatten();
        let seen = seen.into_iter().find(|seen| {
            let asked = seen["not_asked"]
                .as_array()
                .is_some_and(|not| !not.is_empty());
            asked || seen["parity"] != "unknown"
        });
        if let Some(seen) = seen {
            return Outcome::Compared(seen.clone());
        }
        if Instant::now() >= deadline {
            return Outcome::Late(why);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn compared(seen: &Value, findings: &mut Findings) {
    if seen["parity"] == "agrees" {
        findings.ok(
            Topic::Tokenizer,
            "local tokens of a text and several chats are the engine's",
        );
        return;
    }
    let Some(difference) = seen["difference"].as_object() else {
        let reason = seen.pointer("/not_asked/0/reason").and_then(Value::as_str);
        let reason = reason.unwrap_or("no reason");
        findings.warn(
            Topic::Tokenizer,
            format!("local tokens could not be compared: the engine's /tokenize gave none ({reason})"),
            "see that /tokenize can be reached; what the engine stores is compared all the same while the picker serves",
        );
        return;
    };
    let word = |name: &str| {
        difference
            .get(name)
            .map(Value::to_string)
            .unwrap_or_default()
    };
    findings.fail(
        Topic::Tokenizer,
        format!(
            "the engine makes other tokens: in the canary {} they part at token {} (here {}, there {})",
            word("canary"),
            word("position"),
            word("ours"),
            word("theirs"),
        ),
        "look at the engine's --chat-template, --default-chat-template-kwargs and --tokenizer-revision, and name a folder with \
         the same files in the settings file (tokenizers.models)",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    fn level(seen: Value) -> Level {
        let mut findings = Findings::default();
        compared(&seen, &mut findings);
        findings.all()[0].level
    }

    #[test]
    fn equal_tokens_pass_other_tokens_fail_and_silence_is_a_warning() {
        assert_eq!(level(json!({"parity": "agrees"})), Level::Ok);
        let differs = json!({"canary": "user", "position": 3, "ours": 5, "theirs": null});
        let differs = json!({"parity": "differs", "difference": differs});
        assert_eq!(level(differs), Level::Failed);
        let silent =
            json!({"parity": "unknown", "not_asked": [{"reason": "engine_without_tokenize"}]});
        assert_eq!(level(silent), Level::Warning);
    }
}
