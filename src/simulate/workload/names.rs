//! What are pieces of prompts called, so that equal ones and no others share a name?

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Kind {
    /// What all prompts begin with.
    Head = 1,
    /// What a customer's or an agent's prompts begin with.
    Prefix,
    /// One of a prefix's questions, asked again and again.
    Question,
    /// What one request alone has.
    Own,
    /// An answer.
    Answer,
    /// The prompt of a burst.
    Burst,
    /// A block of a trace.
    Block,
}

/// The name of a piece: of its kind, and the numbers that tell it from its like.
pub(super) const fn name(kind: Kind, a: u64, b: u64) -> u64 {
    stir(stir(stir(kind as u64) ^ a) ^ b)
}

/// The seed of a stream of chance that depends on nothing but these.
pub(super) const fn seed(of: u64, number: u64) -> u64 {
    stir(stir(of ^ 0x5eed) ^ number)
}

/// Spreads a number over 64 bits so that each bit depends on all (the finish of SplitMix64).
const fn stir(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
