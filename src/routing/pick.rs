//! The least cost, and what decides between equals.

use super::tokens::TokenCount;

#[cfg(test)]
mod tests;

/// Costs closer than this are equal even where blocks are larger, or of unknown size:
/// block sizes of 528 tokens and more exist, and would make real differences vanish.
pub const WIDEST_TIE: u32 = 64;

/// One endpoint in the running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner {
    /// Its place in the caller's list.
    pub place: usize,
    /// What the request costs there.
    pub cost: TokenCount,
    /// Requests in flight there.
    pub in_flight: u32,
}

/// Costs less than this above the least count as equal to it: one block of the
/// smallest size known in the pool, at most [`WIDEST_TIE`], which is also the answer
/// while no size is known. A difference below a block says nothing: it is the part of
/// a prompt that no cache can hold.
pub fn tie_width(block_sizes: impl Iterator<Item = u32>) -> TokenCount {
    let width = block_sizes
        .min()
        .map_or(WIDEST_TIE, |size| size.min(WIDEST_TIE));
    TokenCount::new(u64::from(width))
}

/// The `count` best runners, best first: the least cost; among equals the fewest in
/// flight; among those, chance. Whoever does not go with those named so far
/// (`goes_with(named, other)`) is not named after them.
pub fn best(
    mut runners: Vec<Runner>,
    count: usize,
    tie_width: TokenCount,
    chance: u64,
    goes_with: impl Fn(&[Runner], &Runner) -> bool,
) -> Vec<Runner> {
    let width = tie_width.max(TokenCount::new(1));
    let mut best = Vec::with_capacity(count.min(runners.len()));
    // Stirred first, so that any number will do, a counter or a constant too.
    let mut chance = another(chance);
    while best.len() < count
        && let Some(least) = runners.iter().map(|runner| runner.cost).min()
    {
        let equal = |runner: &&Runner| runner.cost.saturating_sub(least) < width;
        let fewest = runners
            .iter()
            .filter(equal)
            .map(|runner| runner.in_flight)
            .min();
        let tied: Vec<usize> = (0..)
            .zip(&runners)
            .filter(|(_, runner)| equal(runner) && Some(runner.in_flight) == fewest)
            .map(|(i, _)| i)
            .collect();
        // Multiply-shift instead of a remainder: no bias worth the name, no division by zero.
        let drawn = (u128::from(chance) * tied.len() as u128) >> 64;
        let Some(&winner) = usize::try_from(drawn)
            .ok()
            .and_then(|drawn| tied.get(drawn))
        else {
            break;
        };
        best.push(runners.swap_remove(winner));
        if best.len() < count {
            runners.retain(|other| goes_with(&best, other));
        }
        chance = another(chance);
    }
    best
}

/// The next number of a sequence that starts at `chance` (SplitMix64).
fn another(chance: u64) -> u64 {
    let mut z = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
