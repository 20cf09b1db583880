//! How many replicas are enough? The smallest fleet that meets a goal.

/// What a run of a fleet says of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It met the goal.
    Enough,
    /// A larger one may meet it.
    TooSmall,
    /// No fleet meets it, however large.
    Never,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// Replicas of the smallest fleet that met the goal; `None` if none up to the limit did.
    pub replicas: Option<usize>,
    /// The run of that fleet, or of the largest one.
    pub run: T,
    /// Fleets tried.
    pub tried: usize,
}

/// Searches from `least` to `most` replicas, both at least 1: the first guess, then steps that double until one fleet is too small and one is
/// enough, then halves what is between. That supposes that a larger fleet never does worse; where chance makes it do so
/// near the limit, the answer may be one replica off. After a run that no fleet can mend only the largest one is run.
///
/// # Errors
/// What `run` gave.
pub fn smallest<T, E>(
    first: usize,
    least: usize,
    most: usize,
    mut run: impl FnMut(usize) -> Result<(T, Verdict), E>,
) -> Result<Found<T>, E> {
    let most = most.max(1);
    let least = least.clamp(1, most);
    let mut at = first.clamp(least, most);
    // The largest fleet that was too small, and the smallest that was enough.
    let mut too_small = least - 1;
    let mut enough = None;
    let mut step = 1;
    let mut tried = 0;
    loop {
        tried += 1;
        let (outcome, verdict) = run(at)?;
        match verdict {
            Verdict::Enough => enough = Some((at, outcome)),
            Verdict::TooSmall | Verdict::Never if at == most => {
                return Ok(Found {
                    replicas: None,
                    run: outcome,
                    tried,
                });
            }
            Verdict::TooSmall => too_small = at,
            Verdict::Never => {
                at = most;
                continue;
            }
        }
        if let Some((replicas, run)) = enough.take_if(|(n, _)| *n == too_small + 1) {
            return Ok(Found {
                replicas: Some(replicas),
                run,
                tried,
            });
        }
        at = match &enough {
            Some((n, _)) if too_small >= least => usize::midpoint(too_small, *n),
            Some((n, _)) => n.saturating_sub(step).max(least),
            None => at.saturating_add(step).min(most),
        };
        step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn met(is_enough: bool) -> Verdict {
        match is_enough {
            true => Verdict::Enough,
            false => Verdict::TooSmall,
        }
    }

    #[test]
    fn the_smallest_fleet_is_found_from_any_first_guess() {
        for needed in 1..=40 {
            for first in 0..=45 {
                let mut asked = Vec::new();
                let found = smallest(first, 1, 40, |n| {
                    asked.push(n);
                    Ok::<_, Infallible>((n, met(n >= needed)))
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
        let found = smallest(3, 1, 20, |n| Ok::<_, Infallible>((n, Verdict::TooSmall))).unwrap();
        assert_eq!((found.replicas, found.run), (None, 20));
    }

    #[test]
    fn after_a_run_that_no_fleet_can_mend_only_the_largest_is_run() {
        let found = smallest(3, 1, 20, |n| Ok::<_, Infallible>((n, Verdict::Never))).unwrap();
        assert_eq!((found.replicas, found.run, found.tried), (None, 20, 2));
    }

    #[test]
    fn no_fleet_is_tried_that_is_smaller_than_the_least() {
        for needed in 1..=20 {
            for (first, least) in [(1, 16), (16, 16), (18, 16), (20, 16), (5, 3), (1, 25)] {
                let least_tried = least.min(20);
                let found = smallest(first, least, 20, |n| {
                    assert!(n >= least_tried, "{n} of {least_tried}");
                    Ok::<_, Infallible>((n, met(n >= needed)))
                });
                assert_eq!(found.unwrap().replicas, Some(needed.max(least_tried)));
            }
        }
    }
}
