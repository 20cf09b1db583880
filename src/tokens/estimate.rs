//! The last resort: a length from bytes, and the text itself for the approximate index.

use crate::routing::block::Sequence;
use crate::routing::tokens::TokenCount;

/// Bytes a token where the setting is not a usable number; English text has about 4.
const DEFAULT_BYTES_PER_TOKEN: f64 = 4.0;

/// An estimate for one prompt. Prompts that begin alike have texts that begin alike, which is all the
/// approximate index needs. An empty prompt is no tokens; any other at least one.
pub(super) fn estimate(text: Vec<u8>, bytes_per_token: f64) -> Sequence {
    let bytes_per_token = if bytes_per_token.is_finite() && bytes_per_token > 0.0 {
        bytes_per_token
    } else {
        DEFAULT_BYTES_PER_TOKEN
    };
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a length of a body held in memory divided by a positive number; float casts saturate"
    )]
    let tokens = (text.len() as f64 / bytes_per_token).ceil() as u64;
    Sequence::Estimate {
        tokens: TokenCount::new(tokens),
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes_per_token: f64, expected: u64) {
        let sequence = estimate(text.into(), bytes_per_token);
        let expected = Sequence::Estimate {
            tokens: TokenCount::new(expected),
            text: text.into(),
        };
        assert_eq!(sequence, expected);
    }

    #[test]
    fn length_is_bytes_over_bytes_per_token_rounded_up() {
        check("", 4.0, 0);
        check("a", 4.0, 1);
        check("abcd", 4.0, 1);
        check("abcde", 4.0, 2);
        check("abcdef", 1.5, 4);
    }

    #[test]
    fn a_senseless_setting_counts_as_four() {
        for senseless in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            check("abcdefgh", senseless, 2);
        }
    }
}
