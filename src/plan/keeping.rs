//! Which part of what was asked before do pools still have when it is asked for again?

use super::inputs::Inputs;
use super::popularity::Popularity;
use super::reuse::Reuse;

/// What pools keep, by what is known of the load. All shares are of what pools that forget nothing would have.
#[derive(Clone, Debug)]
pub(super) enum Keeping<'a> {
    /// Nothing but how popular each prefix is: requests come independently of one another.
    Independent {
        popularity: Popularity,
        /// Tokens a request leaves in the pool beside its prefix.
        unshared: f64,
        /// Tokens of a prefix.
        shared: f64,
    },
    /// In what order everything was asked.
    Measured(&'a Reuse),
}

impl<'a> Keeping<'a> {
    /// By the recording, if there is one.
    pub(super) fn of(inputs: &Inputs, reuse: Option<&'a Reuse>) -> Self {
        reuse.map_or_else(
            || Self::Independent {
                popularity: Popularity::zipf(inputs.prefixes, inputs.skew, inputs.copies()),
                unshared: inputs.prompt_tokens - inputs.shared_tokens + inputs.output_tokens,
                shared: inputs.shared_tokens,
            },
            Self::Measured,
        )
    }

    /// Requests go where their prefix is, so that all pools are as one: of so many tokens.
    pub(super) fn together(&self, tokens: f64) -> f64 {
        match self {
            Self::Independent {
                popularity,
                unshared,
                shared,
            } => popularity.hit_share(*unshared, *shared, tokens),
            Self::Measured(reuse) => of_all(reuse, reuse.together(tokens)),
        }
    }

    /// Requests go to any of so many pools, each of so many tokens. When they are independent, each pool is asked for
    /// the same prefixes as all together; but the next turn of a conversation seldom comes where the last one was.
    pub(super) fn by_chance(&self, replicas: u64, tokens: f64) -> f64 {
        match self {
            Self::Independent { .. } => self.together(tokens),
            Self::Measured(reuse) => of_all(reuse, reuse.by_chance(replicas, tokens)),
        }
    }
}

fn of_all(reuse: &Reuse, share: f64) -> f64 {
    let all = reuse.ever();
    if all > 0.0 { share / all } else { 0.0 }
}
