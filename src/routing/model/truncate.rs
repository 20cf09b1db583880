//! How a prompt that is too long is cut, as vLLM cuts it.

use crate::routing::request::{Side, Truncation};
use crate::routing::tokenize::Tokenizer;

use super::{Model, RenderContext, TokensError, Unfit};

/// Since this version a prompt is cut to one token below the context (vLLM's `vllm/renderers/params.py`).
const LEAVES_ROOM_FOR_ONE: (u32, u32) = (0, 32);
/// Since this version (older ones were not read), and before that, to what the answer leaves of it.
const LEAVES_ROOM_FOR_ALL: (u32, u32) = (0, 20);

/// A cut, resolved: how many tokens stay, and on which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    keep: Option<usize>,
    side: Side,
}

impl Model {
    /// Resolves a request's truncation against the engine's context length.
    pub(super) fn cut(
        &self,
        truncation: Option<Truncation>,
        default_side: Option<Side>,
        context: &RenderContext,
    ) -> Result<Cut, TokensError> {
        let own_side = self.templates.truncation_side();
        let side = default_side.unwrap_or(own_side);
        let Some(truncation) = truncation else {
            return Ok(Cut { keep: None, side });
        };
        let keep = match truncation.keep {
            Some(keep) => keep,
            None => room(truncation, context)?,
        };
        Ok(Cut {
            keep: Some(usize::try_from(keep).unwrap_or(usize::MAX)),
            side: truncation.side.unwrap_or(side),
        })
    }
}

/// What the context takes. Newer engines leave room for one token of an answer, older ones for all that the request
/// asks for.
fn room(truncation: Truncation, context: &RenderContext) -> Result<u32, TokensError> {
    let whole = context.max_model_len.ok_or(TokensError::ContextLength)?;
    let left_free = match (truncation.output, context.engine_version) {
        (Some(0), _) => 0,
        (_, Some(version)) if version >= LEAVES_ROOM_FOR_ONE => 1,
        (output, Some(version)) if version >= LEAVES_ROOM_FOR_ALL => output.unwrap_or(0),
        (Some(1), _) => 1,
        _ => return Err(Unfit::UnknownVersion("what is cut to the context length").into()),
    };
    Ok(whole.saturating_sub(left_free))
}

impl Cut {
    /// Ids that came with the request are cut as they are.
    pub(super) fn ids(self, ids: Vec<u32>) -> Vec<u32> {
        self.shorten(ids, self.keep)
    }

    /// A text's ids are cut so that the special tokens still fit around them.
    pub(super) fn text(self, ids: Vec<u32>, tokenizer: &Tokenizer, special: bool) -> Vec<u32> {
        if !special {
            return self.ids(ids);
        }
        let room = self
            .keep
            .map(|keep| keep.saturating_sub(tokenizer.special_tokens()));
        tokenizer.with_special_tokens(self.shorten(ids, room))
    }

    fn shorten(self, mut ids: Vec<u32>, keep: Option<usize>) -> Vec<u32> {
        if let Some(keep) = keep
            && ids.len() > keep
        {
            match self.side {
                Side::Left => drop(ids.drain(..ids.len() - keep)),
                Side::Right => ids.truncate(keep),
            }
        }
        ids
    }
}
