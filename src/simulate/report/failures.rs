//! Why were requests not answered? A sentence for each reason.

use super::numbers::grouped;
use crate::simulate::outcome::Outcome;

/// Says how many requests failed for which reason, where any did; `longest` is what a replica accepts, tokens.
pub(in crate::simulate) fn why_failed(outcomes: &[Outcome], longest: usize) -> Vec<String> {
    let too_long = counts(outcomes, |outcome| outcome.too_long).map(|count| {
        format!(
            "{count} failed because they are longer, prompt and answer together, than the {} tokens that a replica \
             accepts: no number of replicas changes that.",
            grouped(&longest.to_string())
        )
    });
    let nobody = counts(outcomes, |outcome| {
        outcome.failed.saturating_sub(outcome.too_long)
    })
    .map(|count| {
        format!("{count} failed because no replica could take them within their patience.")
    });
    too_long.into_iter().chain(nobody).collect()
}

/// "5 requests", or "2 to 5 requests (by policy)"; `None` where there were none under any policy.
fn counts(outcomes: &[Outcome], count: impl Fn(&Outcome) -> u64) -> Option<String> {
    let least = outcomes.iter().map(&count).min()?;
    let most = outcomes.iter().map(&count).max()?;
    match (least, most) {
        (_, 0) => None,
        (1, 1) => Some("1 request".to_owned()),
        _ if least == most => Some(format!("{} requests", grouped(&most.to_string()))),
        _ => Some(format!(
            "{} to {} requests (by policy)",
            grouped(&least.to_string()),
            grouped(&most.to_string())
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(failed: u64, too_long: u64) -> Outcome {
        Outcome {
            failed,
            too_long,
            ..Outcome::default()
        }
    }

    #[test]
    fn each_reason_is_told_with_its_number_and_nothing_where_none_failed() {
        assert!(why_failed(&[run(0, 0), run(0, 0)], 9).is_empty());
        let notes = why_failed(&[run(7, 7), run(9, 7)], 16_000);
        let [long, nobody] = notes.as_slice() else {
            panic!("{notes:?}");
        };
        assert!(long.starts_with("7 requests failed"), "{long}");
        assert!(long.contains("no number of replicas"), "{long}");
        assert!(
            nobody.starts_with("0 to 2 requests (by policy)"),
            "{nobody}"
        );
    }
}
