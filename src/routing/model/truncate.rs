//! How a prompt that is too long is cut, as vLLM cuts it.

use crate::routing::request::{Side, Truncation};
use crate::routing::tokenize::Tokenizer;

use super::{Model, RenderContext, TokensError, Unfit};

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
        if truncation.keep.is_none() && context.max_model_len.is_none() {
            return Err(TokensError::ContextLength);
        }
        let keep = truncation
            .kept(context.max_model_len, context.engine_version)
            .ok_or(Unfit::UnknownVersion("what is cut to the context length"))?;
        Ok(Cut {
            keep: Some(usize::try_from(keep).unwrap_or(usize::MAX)),
            side: truncation.side.unwrap_or(side),
        })
    }
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
