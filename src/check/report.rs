//! What was found, for a person or a script.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::about::About;
use super::finding::{Finding, Findings, Level};
use super::target::Target;

/// One engine with everything found.
pub(super) struct Examined {
    pub(super) target: Target,
    pub(super) about: About,
    pub(super) findings: Findings,
}

/// Whether no check failed.
pub(super) fn passed(examined: &[Examined]) -> bool {
    count(examined, Level::Failed) == 0
}

fn count(examined: &[Examined], level: Level) -> usize {
    let all = examined.iter().flat_map(|one| one.findings.all());
    all.filter(|finding| finding.level == level).count()
}

/// A table an engine.
pub(super) fn text(examined: &[Examined], fleet: &[String]) -> String {
    let mut text = String::new();
    for one in examined {
        let Target { name, address, .. } = &one.target;
        // A string takes whatever is written to it.
        let _infallible = match name.ends_with(&address.to_string()) {
            true => writeln!(text, "{name}"),
            false => writeln!(text, "{name} ({address})"),
        };
        for finding in one.findings.all() {
            line(&mut text, finding);
        }
        text.push('\n');
    }
    for difference in fleet {
        text.push_str("fleet: ");
        text.push_str(difference);
        text.push('\n');
    }
    text.push_str(&summary(examined));
    text
}

fn line(text: &mut String, finding: &Finding) {
    let (level, topic) = (finding.level.as_str(), finding.topic.as_str());
    for (n, words) in finding.saw.lines().enumerate() {
        let (level, topic) = if n == 0 { (level, topic) } else { ("", "") };
        let _infallible = writeln!(text, "  {level:<8}  {topic:<14}  {words}");
    }
    for words in finding.advice.iter().flat_map(|advice| advice.lines()) {
        let _infallible = writeln!(text, "  {:<8}  {:<14}  → {words}", "", "");
    }
}

fn summary(examined: &[Examined]) -> String {
    let plural =
        |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    format!(
        "{}: {} ok, {}, {} failed, {} left out",
        plural(examined.len(), "endpoint", "endpoints"),
        count(examined, Level::Ok),
        plural(count(examined, Level::Warning), "warning", "warnings"),
        count(examined, Level::Failed),
        count(examined, Level::LeftOut),
    )
}

/// The same for scripts.
pub(super) fn json(examined: &[Examined], fleet: &[String]) -> String {
    let endpoints: Vec<Value> = examined
        .iter()
        .map(|one| {
            json!({
                "name": one.target.name,
                "address": one.target.address.to_string(),
                "version": one.about.version_text,
                "models": one.about.models.iter().map(|model| &model.id).collect::<Vec<_>>(),
                "findings": one.findings.all(),
            })
        })
        .collect();
    let result = json!({
        "passed": passed(examined),
        "endpoints": endpoints,
        "fleet": fleet,
    });
    format!("{result:#}")
}
