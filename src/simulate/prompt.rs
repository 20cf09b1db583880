//! What does a simulated prompt consist of? Pieces of text that are equal wherever they have the same name.

use std::sync::Arc;

/// A run of tokens. Two segments of one name have the same tokens, as far as the shorter one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Its name.
    pub id: u64,
    /// Its length.
    pub tokens: u32,
}

impl Segment {
    /// Appends its token ids.
    pub fn write(self, into: &mut Vec<u32>) {
        // One multiplication scatters the name; neighbours then differ by an odd constant, so that no two blocks of one
        // segment are alike.
        let start = mix(self.id);
        into.extend((0..self.tokens).map(|at| start.wrapping_add(at.wrapping_mul(0x9e37_79b1))));
    }
}

/// Stirs a name into 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half was folded into the lower one"
)]
const fn mix(id: u64) -> u32 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as u32
}

/// A prompt: segments one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    segments: Arc<[Segment]>,
    tokens: u32,
}

impl Prompt {
    /// Puts segments together.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        let segments: Arc<[Segment]> = segments.into_iter().collect();
        let tokens = segments.iter().map(|segment| segment.tokens).sum();
        Self { segments, tokens }
    }

    /// Its length.
    pub const fn tokens(&self) -> u32 {
        self.tokens
    }

    /// What it consists of, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Its token ids.
    pub fn token_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.tokens as usize);
        for segment in self.segments.iter() {
            segment.write(&mut ids);
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_one_name_are_equal_as_far_as_the_shorter_goes_and_others_are_not() {
        let prompt = |parts: &[(u64, u32)]| {
            Prompt::new(parts.iter().map(|&(id, tokens)| Segment { id, tokens })).token_ids()
        };
        let long = prompt(&[(1, 100), (2, 10)]);
        assert_eq!(long.len(), 110);
        assert_eq!(long.get(..60), Some(prompt(&[(1, 60)]).as_slice()));
        assert_ne!(prompt(&[(1, 16)]), prompt(&[(2, 16)]));
    }
}
