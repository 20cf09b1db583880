//! What is asked of the engine, and what is refused?

use crate::routing::block::{BlockKey, Scope};

/// One prompt to be computed and answered.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its token ids.
    pub prompt: Vec<u32>,
    /// Adapter and salt.
    pub scope: Scope,
    /// Longest answer. `None`: as long as the context allows.
    pub max_tokens: Option<usize>,
    /// The answer does not end by itself.
    pub ignore_eos: bool,
    /// Its prefix may come from the cache (false with `prompt_logprobs`). It is stored all the same.
    pub reads_cache: bool,
    /// Token ids to answer with instead of made-up ones, as far as they go (a recorded run).
    pub answer: Vec<u32>,
}

/// The same by the names of its blocks alone: nobody looks at its tokens, and each of the answer is only counted.
#[derive(Clone, Debug)]
pub struct Named {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the answer, exactly.
    pub output: usize,
    /// The names of all whole blocks of both.
    pub keys: Vec<BlockKey>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens must be at least 1")]
    NoTokens,
    /// Over the context length.
    #[error(
        "{prompt} prompt tokens and {output} output tokens exceed the context length of {limit} tokens"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        output: usize,
        /// The context length.
        limit: usize,
    },
}

impl Request {
    /// Says whether an engine with this context length can compute it.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self, max_model_len: usize) -> Result<(), SubmitError> {
        check(
            self.prompt.len(),
            self.max_tokens.unwrap_or(1),
            max_model_len,
        )
    }
}

impl Named {
    /// The same.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self, max_model_len: usize) -> Result<(), SubmitError> {
        check(self.prompt, self.output, max_model_len)
    }
}

fn check(prompt: usize, output: usize, limit: usize) -> Result<(), SubmitError> {
    if prompt == 0 {
        return Err(SubmitError::EmptyPrompt);
    }
    if output == 0 {
        return Err(SubmitError::NoTokens);
    }
    if prompt.saturating_add(output) > limit {
        return Err(SubmitError::TooLong {
            prompt,
            output,
            limit,
        });
    }
    Ok(())
}
