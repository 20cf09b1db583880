//! Does the fast tokenizer give the reference's ids? Asked at every load, for texts on which
//! tokenizers are known to part ways. The asking also warms the fast one up: its first call
//! takes tens of milliseconds.

use super::TokenizerError;

const TEXTS: [&str; 22] = [
    "",
    " ",
    "Hello, world! It's a test; WE'LL see what they've DON'T know.",
    "1234567890 3.14159 1,000,000 0x7f 2026-11-29T20:00:00Z",
    "line one\nline two\r\nline three\n\n\n  indented\n\ttabbed\n",
    "     five spaces, then      six          and ten",
    "trailing spaces   ",
    "\n\n\n",
    "fn main() { println!(\"{:?}\", vec![1u8; 32]); } // comment",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"unit\": null}}",
    "https://example.org/path/to?query=a%20b&c=d#fragment",
    "Straße, naïve café, señor, Łódź, Ελληνικά, Русский язык",
    "e\u{301}tude nai\u{308}ve A\u{30a}ngstro\u{308}m \u{212b} \u{fb01}",
    "北京欢迎你。日本語のテキスト、한국어 텍스트",
    "שלום עולם مرحبا بالعالم हिन्दी में पाठ ไทย",
    "🙂👍🏽👩‍👩‍👧‍👦🇨🇭 ☃ ✨",
    "a\u{a0}b\u{2003}c\u{200b}d\u{feff}e\u{202e}f",
    "\u{0}\u{1}\u{7f}\u{85} control",
    "<s> </s> <|im_start|> <|endoftext|> [INST] <unk> <pad>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!!????....,,,,;;;;::::----____====++++****////\\\\\\\\||||",
    "¼ ½ Ⅷ ² ₃ ① 𝟘 ٣",
];

/// How many special tokens are probed between texts; vocabularies hold hundreds of reserved ones.
const SPECIAL_TOKENS: usize = 48;

/// The first text for which the two differ.
pub(super) fn first_difference(
    fast: &fastokens::Tokenizer,
    reference: &tokenizers::Tokenizer,
) -> Result<Option<String>, TokenizerError> {
    let mut joined = String::new();
    let mut special: Vec<_> = reference.get_added_tokens_decoder().into_iter().collect();
    special.sort_by_key(|(id, _)| *id);
    for (n, (_, token)) in special.iter().take(SPECIAL_TOKENS).enumerate() {
        joined.push_str(TEXTS.get(n % TEXTS.len()).unwrap_or(&""));
        joined.push_str(&token.content);
    }
    let texts = TEXTS.iter().copied().chain([joined.as_str()]);
    for text in texts {
        let expected = reference
            .encode_fast(text, false)
            .map_err(TokenizerError::Probe)?;
        // Twice: the second time pieces come out of the cache.
        for _ in 0..2 {
            if fast.encode(text).ok().as_deref() != Some(expected.get_ids()) {
                return Ok(Some(text.chars().take(80).collect()));
            }
        }
    }
    Ok(None)
}
