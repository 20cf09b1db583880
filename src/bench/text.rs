//! What do the prompts say? Text that looks like text to a tokenizer, the same for the same seed.
//!
//! Real words, made-up names, numbers and code in a mixture that gives about four bytes a token with current
//! tokenizers. It is written as it stands inside a JSON string: a line break is the two bytes `\n`.

use fastrand::Rng;

/// Common words make up the greater part, as in any text.
const COMMON: &str = "the of and to a in is that it for on with as this by are be from or an at not which have if \
    can request will you when all one there been more cache has their would time other were we about into than its \
    only then model some these two first may any like now over such our even most made after also did many off \
    before must well back through years where much your way down should because long each just those people how too \
    little state good very make world still see own work men here get both between life being under never day same \
    another know while last might us great old year come since against go came right used take three server token \
    block engine queue prefix latency memory request response message system context answer question customer order";
/// What made-up words are made of.
const SYLLABLES: &str = "ra ven tol mi ka shu del or ban ex pri ser con tan lo vi que nor fi sta ger hal um ple \
    dor ice ter mon est wa lin gra";
const MADE_UP_WORDS: usize = 4_000;

/// Writes text without end.
pub(super) struct Writer {
    rng: Rng,
    common: Vec<&'static str>,
    made_up: Vec<String>,
}

impl Writer {
    /// The same seed writes the same text.
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let syllables: Vec<&str> = SYLLABLES.split_whitespace().collect();
        let made_up = (0..MADE_UP_WORDS).map(|_| {
            (0..rng.usize(2..5))
                .filter_map(|_| rng.choice(&syllables).copied())
                .collect()
        });
        Self {
            made_up: made_up.collect(),
            common: COMMON.split_whitespace().collect(),
            rng,
        }
    }

    /// So many bytes of text.
    pub(super) fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 64);
        while text.len() < bytes {
            self.word(&mut text);
            match self.rng.u32(0..100) {
                0..8 => text.push_str(", "),
                8..14 => text.push_str(". "),
                14..16 => text.push_str(".\\n"),
                _ => text.push(' '),
            }
        }
        text.truncate(bytes);
        if text.ends_with('\\') {
            text.pop();
            text.push('.');
        }
        text
    }

    fn word(&mut self, text: &mut String) {
        match self.rng.u32(0..100) {
            0..2 => text.push_str(&self.rng.u32(0..10_000).to_string()),
            2..4 => {
                text.push_str(self.made_up_word());
                text.push('_');
                text.push_str(self.made_up_word());
                text.push_str("()");
            }
            4..16 => text.push_str(self.made_up_word()),
            _ => {
                let common = self.rng.choice(&self.common).copied();
                text.push_str(common.unwrap_or_default());
            }
        }
    }

    /// Low ranks come more often, as words do.
    fn made_up_word(&mut self) -> &str {
        let skewed = self.rng.f64() * self.rng.f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of the length is an index into it"
        )]
        let rank = (skewed * self.made_up.len() as f64) as usize;
        self.made_up.get(rank).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_length_asked_for_and_stands_in_a_json_string() {
        for bytes in [0, 1, 17, 5_000] {
            let text = Writer::new(7).text(bytes);
            assert_eq!(text.len(), bytes);
            serde_json::from_str::<String>(&format!("\"{text}\"")).unwrap();
        }
    }

    #[test]
    fn a_seed_writes_its_own_text_again() {
        assert_eq!(Writer::new(1).text(2_000), Writer::new(1).text(2_000));
        assert_ne!(Writer::new(1).text(2_000), Writer::new(2).text(2_000));
    }
}
