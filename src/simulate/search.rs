//! How many replicas are enough? The smallest fleet that meets a goal.

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// Replicas of the smallest fleet that met the goal; `None` if none up to the limit did.
    pub replicas: Option<usize>,
    /// The run of that fleet, or of the largest one tried.
    pub run: T,
    /// Fleets tried.
    pub tried: usize,
}

/// Searches from 1 to `most` replicas: the first guess, then steps that double until one fleet is too small and one is
/// enough, then halves what is between. That supposes that a larger fleet never does worse; where chance makes it do so
/// near the limit, the answer may be one replica off.
///
/// # Errors
/// What `run` gave.
pub fn smallest<T, E>(
    first: usize,
    most: usize,
    mut run: impl FnMut(usize) -> Result<(T, bool), E>,
) -> Result<Found<T>, E> {
    let most = most.max(1);
    let mut at = first.clamp(1, most);
    // The largest fleet that was too small, and the smallest that was enough.
    let mut too_small = 0;
    let mut enough = None;
    let mut step = 1;
    let mut tried = 0;
    loop {
        tried += 1;
        let (outcome, met) = run(at)?;
        if met {
            enough = Some((at, outcome));
        } else if at == most {
            return Ok(Found {
                replicas: None,
                run: outcome,
                tried,
            });
        } else {
            too_small = at;
        }
        if let Some((replicas, run)) = enough.take_if(|(n, _)| *n == too_small + 1) {
            return Ok(Found {
                replicas: Some(replicas),
                run,
                tried,
            });
        }
        at = match &enough {
            Some((n, _)) if too_small > 0 => usize::midpoint(too_small, *n),
            Some((n, _)) => n.saturating_sub(step).max(1),
            None => at.saturating_add(step).min(most),
        };
        step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn the_smallest_fleet_is_found_from_any_first_guess() {
        for needed in 1..=40 {
            for first in 0..=45 {
                let mut asked = Vec::new();
                let found = smallest(first, 40, |n| {
                    asked.push(n);
                    Ok::<_, Infallible>((n, n >= needed))
                });
                let found = found.unwrap();
                assert_eq!(found.replicas, Some(needed), "first guess {first}");
                assert_eq!(found.run, needed);
                assert_eq!(found.tried, asked.len());
                let distinct: std::collections::BTreeSet<_> = asked.iter().collect();
                assert_eq!(distinct.len(), asked.len(), "none is run twice: {asked:?}");
            }
        }
    }

    #[test]
    fn a_goal_that_no_fleet_meets_ends_at_the_largest() {
        let found = smallest(3, 20, |n| Ok::<_, Infallible>((n, false))).unwrap();
        assert_eq!((found.replicas, found.run), (None, 20));
    }
}
