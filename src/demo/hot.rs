//! Who holds the hot customer's prompt? Known by the names that the engines themselves give its blocks.

use std::collections::BTreeSet;

use anyhow::ensure;
use serde_json::{Value, json};

use super::stack::Stack;
use super::workload::Workload;
use crate::engine::CachedBlock;

/// The blocks of the hot prefix. Their names are the same in every engine.
#[derive(Clone, Debug)]
pub(super) struct HotPrefix {
    blocks: BTreeSet<u64>,
}

impl HotPrefix {
    /// Its full blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// How many of them are among these.
    pub(super) fn cached_in(&self, dump: &[CachedBlock]) -> usize {
        let ours = |block: &&CachedBlock| self.blocks.contains(&block.hash);
        dump.iter().filter(ours).count()
    }

    /// Whether all of them are.
    pub(super) fn is_owned(&self, dump: &[CachedBlock]) -> bool {
        self.cached_in(dump) == self.blocks.len()
    }
}

/// Asks every engine two questions of the hot customer, forgetting the first before the second: what is cached
/// both times is the prefix. It also makes each tokenizer's first, slow call before the clock runs.
///
/// # Errors
/// When an engine does not answer, or caches nothing.
pub(super) async fn learn(workload: &Workload, stack: &Stack) -> anyhow::Result<HotPrefix> {
    let mut common: Option<BTreeSet<u64>> = None;
    for question in ["Who are you?", "What can you do for me?"] {
        for engine in stack.engines() {
            stack.forget(*engine).await?;
            let body = chat(workload.system(0), question, 1);
            stack.ask(*engine, "/v1/chat/completions", &body).await?;
        }
        for dump in stack.cached_blocks().await? {
            let seen: BTreeSet<u64> = dump.iter().map(|block| block.hash).collect();
            common = Some(match common {
                Some(common) => common.intersection(&seen).copied().collect(),
                None => seen,
            });
        }
    }
    let blocks = common.unwrap_or_default();
    ensure!(!blocks.is_empty(), "the engines cache no part of a prompt");
    Ok(HotPrefix { blocks })
}

/// A chat with a system prompt.
pub(super) fn chat(system: &str, question: &str, max_tokens: u32) -> Value {
    json!({
        "messages": [
            { "role": "system", "content": system },
            { "role": "user", "content": question },
        ],
        "max_tokens": max_tokens,
    })
}
