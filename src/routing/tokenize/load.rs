//! Loading: both files into one description, the choice of tokenizer, and its special tokens.

use serde_json::{Map, Value, json};

use super::{Backend, Tokenizer, TokenizerError, probe};

/// Loads a tokenizer; the reference is always loaded first, as the judge of the fast one.
pub(super) fn load(
    tokenizer: &[u8],
    config: Option<&[u8]>,
    cache_bytes: usize,
) -> Result<Tokenizer, TokenizerError> {
    let mut description: Value = serde_json::from_slice(tokenizer).map_err(TokenizerError::Json)?;
    let config: Map<String, Value> = match config {
        Some(config) => serde_json::from_slice(config).map_err(TokenizerError::Config)?,
        None => Map::new(),
    };
    let reference = if add_tokens_of_config(&mut description, &config) {
        let merged = serde_json::to_vec(&description).map_err(TokenizerError::Json)?;
        reference(&merged)?
    } else {
        reference(tokenizer)?
    };
    let (before, after) = special_tokens(&reference, &config)?;
    let (backend, not_fast) = match fast(description, &reference, cache_bytes)? {
        Ok(fast) => (Backend::Fast(Box::new(fast)), None),
        Err(why) => (Backend::Reference(Box::new(reference)), Some(why)),
    };
    Ok(Tokenizer {
        backend,
        before,
        after,
        not_fast,
    })
}

/// transformers cuts and pads only where a call asks for it, whatever the file says.
fn reference(description: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let mut reference =
        tokenizers::Tokenizer::from_bytes(description).map_err(TokenizerError::Unknown)?;
    reference
        .with_truncation(None)
        .map_err(TokenizerError::Unknown)?;
    reference.with_padding(None);
    Ok(reference)
}

/// Adds the tokens that only `tokenizer_config.json` knows (`added_tokens_decoder`); whether
/// there were any.
fn add_tokens_of_config(description: &mut Value, config: &Map<String, Value>) -> bool {
    let Some(decoder) = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object)
    else {
        return false;
    };
    let Some(added) = description
        .get_mut("added_tokens")
        .and_then(Value::as_array_mut)
    else {
        return false;
    };
    let mut missing: Vec<(u64, Value)> = decoder
        .iter()
        .filter_map(|(id, token)| {
            let id: u64 = id.parse().ok()?;
            let content = token.get("content")?;
            let known = added
                .iter()
                .any(|have| have.get("content") == Some(content));
            let flag = |name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
            (!known).then(|| {
                let token = json!({
                    "id": id,
                    "content": content,
                    "single_word": flag("single_word"),
                    "lstrip": flag("lstrip"),
                    "rstrip": flag("rstrip"),
                    "normalized": flag("normalized"),
                    "special": flag("special"),
                });
                (id, token)
            })
        })
        .collect();
    missing.sort_by_key(|(id, _)| *id);
    let any = !missing.is_empty();
    added.extend(missing.into_iter().map(|(_, token)| token));
    any
}

/// The fast tokenizer, or in words why it cannot serve.
fn fast(
    mut description: Value,
    reference: &tokenizers::Tokenizer,
    cache_bytes: usize,
) -> Result<Result<fastokens::Tokenizer, String>, TokenizerError> {
    if let Some(description) = description.as_object_mut() {
        description.insert("truncation".to_owned(), Value::Null);
        description.insert("padding".to_owned(), Value::Null);
    }
    let single_word = description
        .get("added_tokens")
        .and_then(Value::as_array)
        .is_some_and(|tokens| {
            tokens
                .iter()
                .any(|token| token.get("single_word") == Some(&Value::Bool(true)))
        });
    if single_word {
        // fastokens 0.3 reads the mark and matches such tokens inside words all the same.
        return Ok(Err("it has tokens that match whole words only".to_owned()));
    }
    let mut fast = match fastokens::Tokenizer::from_json(description) {
        Ok(fast) => fast,
        Err(error) => return Ok(Err(error.to_string())),
    };
    fast.enable_segment_cache(cache_bytes);
    Ok(match probe::first_difference(&fast, reference)? {
        None => Ok(fast),
        Some(text) => Err(format!("its ids differ from the reference's for {text:?}")),
    })
}

/// The special tokens before and after a text.
fn special_tokens(
    reference: &tokenizers::Tokenizer,
    config: &Map<String, Value>,
) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let explicit = |name: &str| config.get(name).and_then(Value::as_bool);
    let (bos, eos) = (explicit("add_bos_token"), explicit("add_eos_token"));
    if bos.is_none() && eos.is_none() {
        return of_post_processor(reference);
    }
    // Named in the configuration, these two replace what tokenizer.json says.
    let id = |wanted: Option<bool>, name: &str| -> Result<Vec<u32>, TokenizerError> {
        let Some(token) = token_text(config.get(name)).filter(|_| wanted == Some(true)) else {
            return Ok(Vec::new());
        };
        match reference.token_to_id(token) {
            Some(id) => Ok(vec![id]),
            None => Err(TokenizerError::NoSuchToken(token.to_owned())),
        }
    };
    Ok((id(bos, "bos_token")?, id(eos, "eos_token")?))
}

/// A special token's text: the configuration has it plain or in an object.
pub(in crate::routing) fn token_text(token: Option<&Value>) -> Option<&str> {
    let token = token?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

fn of_post_processor(
    reference: &tokenizers::Tokenizer,
) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let ids = |special: bool| {
        reference
            .encode_fast("a", special)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(TokenizerError::Probe)
    };
    let (plain, full) = (ids(false)?, ids(true)?);
    let at = full
        .windows(plain.len().max(1))
        .position(|window| window == plain)
        .ok_or(TokenizerError::Template)?;
    let (before, rest) = full.split_at(at);
    Ok((
        before.to_vec(),
        rest.get(plain.len()..).unwrap_or_default().to_vec(),
    ))
}
