//! In what do the engines of one pool differ that should be alike?

use std::collections::BTreeMap;

use super::report::Examined;

/// One line a difference.
pub(super) fn compare(examined: &[Examined]) -> Vec<String> {
    let versions = by(examined, |one| one.about.version_text.clone());
    let models = by(examined, |one| {
        let ids = one.about.models.iter().map(|model| model.id.as_str());
        let ids: Vec<&str> = ids.collect();
        (!ids.is_empty()).then(|| ids.join(", "))
    });
    let roots = by(examined, |one| {
        let roots = one
            .about
            .models
            .iter()
            .filter_map(|model| model.root.as_deref());
        let roots: Vec<&str> = roots.collect();
        (!roots.is_empty()).then(|| roots.join(", "))
    });
    [
        (
            versions,
            "versions differ: prompts that they render differently are tokenized by an engine",
        ),
        (
            models,
            "what they serve differs: the picker takes any endpoint of a pool for any request",
        ),
        (
            roots,
            "where their models come from differs: the first place that has a tokenizer counts",
        ),
    ]
    .into_iter()
    .filter(|(groups, _)| groups.len() > 1)
    .map(|(groups, meaning)| {
        let groups: Vec<String> = groups
            .into_iter()
            .map(|(value, names)| format!("{value} ({})", names.join(", ")))
            .collect();
        format!("{meaning}: {}", groups.join("; "))
    })
    .collect()
}

/// The endpoints by what each says.
fn by(
    examined: &[Examined],
    said: impl Fn(&Examined) -> Option<String>,
) -> BTreeMap<String, Vec<&str>> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in examined {
        if let Some(value) = said(one) {
            groups.entry(value).or_default().push(&one.target.name);
        }
    }
    groups
}
