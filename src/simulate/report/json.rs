//! What do programs read of a run?

use serde::Serialize;

use super::Setup;
use crate::simulate::outcome::Outcome;

/// The layout that `"version"` names; it grows when a field changes its meaning or goes.
const LAYOUT: u32 = 1;

/// Everything about the runs as one JSON object, an outcome a line:
///
/// - `version`: the layout, 1;
/// - `title`, `notes`: as in the setup;
/// - `setup`: a list of `{"name", "value"}`, in the setup's order;
/// - `outcomes`: a list with the fields of [`Outcome`], in the order in which the policies ran. Times are in seconds,
///   shares from 0 to 1, a curve is a list of `[seconds, share]`.
///
/// A figure that is no finite number is `null`: JSON has no others.
#[must_use]
pub fn json(outcomes: &[Outcome], setup: &Setup) -> String {
    let lines: Vec<_> = setup
        .lines
        .iter()
        .map(|(name, value)| serde_json::json!({ "name": name, "value": value }))
        .collect();
    let outcomes: Vec<String> = outcomes.iter().map(written).collect();
    format!(
        "{{\n\"version\": {LAYOUT},\n\"title\": {},\n\"setup\": {},\n\"notes\": {},\n\"outcomes\": [\n{}\n]\n}}\n",
        written(&setup.title),
        written(&lines),
        written(&setup.notes),
        outcomes.join(",\n"),
    )
}

#[expect(
    clippy::expect_used,
    reason = "writing to memory fails for maps with other keys than strings alone, and there are none"
)]
fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers, strings and lists are JSON")
}
