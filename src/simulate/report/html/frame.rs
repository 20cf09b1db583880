//! What stands around the figures: the head of the page, what was simulated, and the legend that hides policies.

use super::{SCRIPT, STYLE, escaped, put};
use crate::simulate::outcome::Outcome;
use crate::simulate::report::Part;

/// Colours of lines; page.css has as many, for light and for dark screens.
const COLOURS: usize = 7;
/// Dashes for the first seven policies, for the next, and for all others.
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];

/// Everything above the figures: what all parts have in common.
pub(super) fn open(page: &mut String, parts: &[Part<'_>]) {
    // The parts have the same policies, so that any of them names them.
    let outcomes = parts.first().map_or(&[][..], |part| part.outcomes);
    let title = escaped(parts.first().map_or("", |part| &part.setup.title));
    put(
        page,
        format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n<title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n<header><h1>{title}</h1>\n",
            series_style(outcomes.len())
        ),
    );
    if let Some(part) = parts.first() {
        let (lines, notes) = (&part.setup.lines, &part.setup.notes);
        push_lines(page, lines.iter().filter(|line| in_all(parts, line)));
        push_notes(page, notes.iter().filter(|note| noted_in_all(parts, note)));
    }
    if parts.len() > 1 {
        page.push_str("<p class=\"parts\">");
        for (number, part) in parts.iter().enumerate() {
            let name = escaped(part.name);
            put(page, format_args!("<a href=\"#part{number}\">{name}</a> "));
        }
        page.push_str("</p>\n");
    }
    page.push_str("</header>\n");
    if !outcomes.is_empty() {
        push_legend(page, outcomes);
    }
}

/// A part of several begins: its name, and what no other has.
pub(super) fn open_part(page: &mut String, parts: &[Part<'_>], number: usize, part: &Part<'_>) {
    put(
        page,
        format_args!(
            "<article id=\"part{number}\"><h2>{}</h2>\n",
            escaped(part.name)
        ),
    );
    push_lines(
        page,
        part.setup.lines.iter().filter(|line| !in_all(parts, line)),
    );
    push_notes(
        page,
        part.setup
            .notes
            .iter()
            .filter(|note| !noted_in_all(parts, note)),
    );
}

fn in_all(parts: &[Part<'_>], line: &(String, String)) -> bool {
    parts.iter().all(|part| part.setup.lines.contains(line))
}

fn noted_in_all(parts: &[Part<'_>], note: &String) -> bool {
    parts.iter().all(|part| part.setup.notes.contains(note))
}

fn push_lines<'a>(page: &mut String, lines: impl Iterator<Item = &'a (String, String)>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    page.push_str("<dl>\n");
    for (name, value) in lines {
        put(
            page,
            format_args!(
                "<div><dt>{}</dt><dd>{}</dd></div>\n",
                escaped(name),
                escaped(value)
            ),
        );
    }
    page.push_str("</dl>\n");
}

fn push_notes<'a>(page: &mut String, notes: impl Iterator<Item = &'a String>) {
    for note in notes {
        put(
            page,
            format_args!("<p class=\"note\">{}</p>\n", escaped(note)),
        );
    }
}

/// Everything below them.
pub(super) fn close(page: &mut String) {
    put(
        page,
        format_args!("</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"),
    );
}

/// A box to tick for each policy, with its line beside it.
fn push_legend(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<nav class=\"legend\" aria-label=\"policies shown\">\n");
    for (place, outcome) in outcomes.iter().enumerate() {
        put(
            page,
            format_args!(
                "<label id=\"l{place}\"><input type=\"checkbox\" id=\"t{place}\" checked=\"\"/><svg class=\"key\" width=\"26\" height=\"10\" aria-hidden=\"true\"><line class=\"c{place}\" x1=\"1\" x2=\"25\" y1=\"5\" y2=\"5\"/></svg>{}</label>\n",
                escaped(&outcome.policy)
            ),
        );
    }
    page.push_str("</nav>\n");
}

/// For each policy its colour and dash, and how it is hidden (`s`) and brought forward.
fn series_style(count: usize) -> String {
    let mut style = String::new();
    for place in 0..count {
        let dash = DASHES
            .get(place / COLOURS)
            .or(DASHES.last())
            .unwrap_or(&"none");
        put(
            &mut style,
            format_args!(
                ".c{place}{{--c:var(--c{});stroke-dasharray:{dash}}}\nbody:has(#t{place}:not(:checked)) .s{place}{{display:none}}\nbody:has(#l{place}:hover) .curves>:not(.s{place}){{opacity:.15}}\n",
                place % COLOURS
            ),
        );
    }
    style
}
