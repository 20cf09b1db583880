//! Token ids from text: fastokens first, the reference tokenizer where that cannot load.
//!
//! Which one serves is decided at load: fastokens has to give the reference's ids for a set
//! of probe texts. Chat prompts are cut at special tokens, where every tokenizer splits, and
//! pieces seen before are taken from a cache bounded in bytes, so the ids are those of an
//! encoding from scratch.
//!
//! Measured (`benches/tokens.rs`) for a chat of 39 KB and 8,000 tokens, parsing and rendering
//! (15 µs) included: 97 µs with nothing seen before, 58 µs with three quarters seen before.
//! fastokens' own cache of pieces does that; what is left is mostly the new text, so a cache of
//! ours by chat message would save little more.

pub(super) mod load;
mod probe;

/// Why a `tokenizer.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Not JSON.
    #[error("it is not JSON")]
    Json(#[source] serde_json::Error),
    /// Not a tokenizer, or one of a kind that is not known.
    #[error("it is not a tokenizer that can be loaded: {0}")]
    Unknown(#[source] tokenizers::Error),
    /// `tokenizer_config.json` is not a JSON object.
    #[error("tokenizer_config.json is not a JSON object")]
    Config(#[source] serde_json::Error),
    /// It names a special token that the vocabulary does not have.
    #[error("the special token {0:?} is not in the vocabulary")]
    NoSuchToken(String),
    /// It cannot encode the probe texts.
    #[error("it cannot encode a plain text: {0}")]
    Probe(#[source] tokenizers::Error),
    /// Special tokens are put elsewhere than at the ends of a text.
    #[error("its special tokens do not stand at the ends of a text")]
    Template,
}

/// Why a text has no token ids.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// fastokens refused.
    #[error("the text cannot be encoded")]
    Fast(#[from] fastokens::Error),
    /// The reference refused.
    #[error("the text cannot be encoded")]
    Reference(#[source] tokenizers::Error),
}

enum Backend {
    Fast(Box<fastokens::Tokenizer>),
    Reference(Box<tokenizers::Tokenizer>),
}

/// A loaded tokenizer. `encode` takes `&self` from many threads.
pub struct Tokenizer {
    backend: Backend,
    /// Special tokens before a text.
    before: Vec<u32>,
    /// Special tokens after a text.
    after: Vec<u32>,
    /// Why the reference serves, if it does.
    not_fast: Option<String>,
}

impl Tokenizer {
    /// Loads `tokenizer.json` with what `tokenizer_config.json` adds to it.
    /// `cache_bytes` bounds the cache of pieces (texts and ids together).
    ///
    /// Takes seconds and some hundred megabytes for a large vocabulary: not for a request's path.
    ///
    /// # Errors
    /// When the files are not those of a tokenizer.
    pub fn load(
        tokenizer: &[u8],
        config: Option<&[u8]>,
        cache_bytes: usize,
    ) -> Result<Self, TokenizerError> {
        load::load(tokenizer, config, cache_bytes)
    }

    /// Token ids of a text, special tokens written in it included; `add_special_tokens` puts
    /// the tokenizer's own (BOS and the like) around them.
    ///
    /// # Errors
    /// When the tokenizer refuses the text; none of those tested ever did.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        let ids = self.encode_plain(text)?;
        Ok(if add_special_tokens {
            self.with_special_tokens(ids)
        } else {
            ids
        })
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        match &self.backend {
            Backend::Fast(tokenizer) => Ok(tokenizer.encode(text)?),
            Backend::Reference(tokenizer) => Ok(tokenizer
                .encode_fast(text, false)
                .map_err(EncodeError::Reference)?
                .get_ids()
                .to_vec()),
        }
    }

    /// Puts the tokenizer's special tokens around ids.
    pub fn with_special_tokens(&self, ids: Vec<u32>) -> Vec<u32> {
        if self.special_tokens() == 0 {
            return ids;
        }
        [self.before.as_slice(), &ids, &self.after].concat()
    }

    /// How many special tokens are put around a text.
    pub fn special_tokens(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// The text of token ids, special tokens included. Bytes that are no text become U+FFFD;
    /// ids that do not exist are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.backend {
            Backend::Fast(tokenizer) => tokenizer.decode(ids, false).unwrap_or_default(),
            Backend::Reference(tokenizer) => tokenizer.decode(ids, false).unwrap_or_default(),
        }
    }

    /// Why the slower reference tokenizer serves; `None` when the fast one does.
    pub fn not_fast(&self) -> Option<&str> {
        self.not_fast.as_deref()
    }

    /// Bytes that cached pieces take now.
    pub fn cached_bytes(&self) -> usize {
        match &self.backend {
            Backend::Fast(tokenizer) => tokenizer
                .segment_cache_stats()
                .map_or(0, |stats| stats.bytes),
            Backend::Reference(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests;
