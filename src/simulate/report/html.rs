//! One page that needs nothing but itself: table and plots, for a browser, a mail or an archive.
//!
//! No request leaves the page: style and script are in it, plots are SVG that is drawn here. Plots scale with the
//! screen while their text keeps its size, so that a phone shows the same page. A policy has one colour and one dash
//! everywhere; unticking it in the legend hides it everywhere, by CSS alone.

mod axis;
mod caches;
mod frame;
mod load;
mod plot;
mod ttft;

use std::fmt::Write as _;

use super::Part;
use super::columns::grid;
use crate::simulate::outcome::Outcome;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// Everything about the runs as one page of HTML; each part has its figures and plots, and all have one legend.
#[must_use]
pub fn html(parts: &[Part<'_>]) -> String {
    let mut page = String::new();
    frame::open(&mut page, parts);
    for (number, part) in parts.iter().enumerate() {
        if parts.len() > 1 {
            frame::open_part(&mut page, parts, number, part);
        }
        push_table(&mut page, part.outcomes);
        if !part.outcomes.is_empty() {
            push_plots(&mut page, number, part.outcomes);
        }
        if parts.len() > 1 {
            page.push_str("</article>\n");
        }
    }
    frame::close(&mut page);
    page
}

fn push_plots(page: &mut String, part: usize, outcomes: &[Outcome]) {
    let ends = outcomes
        .iter()
        .filter_map(|outcome| outcome.course.seconds.last());
    let seconds = ends.copied().fold(0.0, f64::max);
    ttft::push_glance(page, outcomes);
    ttft::push_distribution(page, outcomes);
    ttft::push_course(page, outcomes, seconds);
    push_load(page, part, outcomes);
    caches::push_share(page, outcomes, seconds);
    caches::push_owners(page, outcomes);
    caches::push_owners_course(page, outcomes, seconds);
}

/// Both quantities are in the page; which is shown is a choice that needs no script.
fn push_load(page: &mut String, part: usize, outcomes: &[Outcome]) {
    put(
        page,
        format_args!(
            "<section class=\"load\"><h2>Load of each replica over the run</h2>\n<p class=\"say\">Even colour down a column is even load. All panels have one scale.</p>\n<p class=\"choice\"><label><input type=\"radio\" name=\"load{part}\" class=\"show-flight\" checked=\"\"/> requests in flight</label> <label><input type=\"radio\" name=\"load{part}\" class=\"show-queued\"/> prompt tokens waiting</label></p>\n"
        ),
    );
    load::push_maps(page, outcomes, "flight", "requests in flight", |outcome| {
        &outcome.course.in_flight
    });
    load::push_maps(
        page,
        outcomes,
        "queued",
        "prompt tokens waiting",
        |outcome| &outcome.course.queued_tokens,
    );
    page.push_str("</section>\n");
}

/// The table, in a frame of its own that scrolls where the screen is narrow.
fn push_table(page: &mut String, outcomes: &[Outcome]) {
    let grid = grid(outcomes);
    page.push_str("<section><h2>Figures</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table of all figures\"><table>\n<thead><tr><th scope=\"col\">policy</th>");
    for heading in &grid.headings {
        put(
            page,
            format_args!(
                "<th scope=\"col\" title=\"{}\">{}<br/>{}</th>",
                escaped(heading.hint),
                escaped(&heading.group),
                heading.name
            ),
        );
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for (place, row) in grid.rows.iter().enumerate() {
        put(
            page,
            format_args!(
                "<tr class=\"s{place}\"><th scope=\"row\">{}</th>",
                escaped(&row.policy)
            ),
        );
        for cell in &row.cells {
            match cell.best {
                true => put(
                    page,
                    format_args!(
                        "<td class=\"best\">{}<span aria-label=\"best\">*</span></td>",
                        cell.text
                    ),
                ),
                false => put(page, format_args!("<td>{}</td>", cell.text)),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    if outcomes.is_empty() {
        page.push_str("<p>No policy was run.</p>\n");
    } else {
        page.push_str("<p class=\"say\">* the best of its column. Where more than half of the policies share it, none is marked.</p>\n");
    }
    page.push_str("</section>\n");
}

/// Appends to the page.
#[expect(clippy::expect_used, reason = "writing to a string does not fail")]
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes everything");
}

/// Text as it may stand between tags and in quoted attributes, whatever is in it.
fn escaped(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => kept.push_str("&amp;"),
            '<' => kept.push_str("&lt;"),
            '>' => kept.push_str("&gt;"),
            '"' => kept.push_str("&quot;"),
            '\'' => kept.push_str("&#39;"),
            // HTML has no others.
            c if c.is_control() => kept.push(' '),
            c => kept.push(c),
        }
    }
    kept
}
