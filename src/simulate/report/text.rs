//! How does the table look in a terminal?

use super::Setup;
use super::columns::{Grid, grid};
use crate::simulate::outcome::Outcome;

/// The figures of all outcomes as aligned text, a row for each policy, below what was simulated.
///
/// The best figure of a column has a star, unless most policies share it.
#[must_use]
pub fn table(outcomes: &[Outcome], setup: &Setup) -> String {
    let mut text = format!("{}\n", plain(&setup.title));
    let widest = setup.lines.iter().map(|(name, _)| width(name)).max();
    for (name, value) in &setup.lines {
        let (name, value) = (plain(name), plain(value));
        push_line(
            &mut text,
            &format!("  {}  {value}", padded(&name, widest.unwrap_or(0))),
        );
    }
    text.push('\n');
    if outcomes.is_empty() {
        text.push_str("no policy was run\n");
    } else {
        push_rows(&mut text, &grid(outcomes));
    }
    for note in &setup.notes {
        text.push('\n');
        push_line(&mut text, &plain(note));
    }
    text
}

fn push_rows(text: &mut String, grid: &Grid) {
    let names: Vec<String> = grid.rows.iter().map(|row| plain(&row.policy)).collect();
    let first = names
        .iter()
        .map(|name| width(name))
        .chain([width("policy")])
        .max()
        .unwrap_or(0);
    let widths: Vec<usize> = grid
        .headings
        .iter()
        .enumerate()
        .map(|(place, heading)| {
            let cells = grid.rows.iter().filter_map(|row| row.cells.get(place));
            // A star has a place of its own behind the figure, so that figures stay aligned.
            let cells = cells.map(|cell| width(&cell.text) + 1);
            cells
                .chain([width(heading.name) + 1, width(&heading.group) + 1])
                .max()
                .unwrap_or(0)
        })
        .collect();
    // The group stands over its last words: "TTFT, ms" over "mean", then nothing over its other columns.
    let mut above = String::new();
    let groups = grid.headings.iter().map(|heading| {
        let repeated = heading.group == above;
        above.clone_from(&heading.group);
        if repeated {
            String::new()
        } else {
            format!("{} ", heading.group)
        }
    });
    push_row(text, &padded("", first), groups, &widths);
    let columns = grid
        .headings
        .iter()
        .map(|heading| format!("{} ", heading.name));
    push_row(text, &padded("policy", first), columns, &widths);
    for (row, name) in grid.rows.iter().zip(&names) {
        let cells = row
            .cells
            .iter()
            .map(|cell| format!("{}{}", cell.text, if cell.best { '*' } else { ' ' }));
        push_row(text, &padded(name, first), cells, &widths);
    }
    if grid
        .rows
        .iter()
        .flat_map(|row| &row.cells)
        .any(|cell| cell.best)
    {
        text.push_str("\n* the best of its column\n");
    }
}

fn push_row(text: &mut String, first: &str, cells: impl Iterator<Item = String>, widths: &[usize]) {
    let mut line = first.to_owned();
    for (cell, &columns) in cells.zip(widths) {
        line.push(' ');
        line.extend(std::iter::repeat_n(
            ' ',
            columns.saturating_sub(width(&cell)),
        ));
        line.push_str(&cell);
    }
    push_line(text, &line);
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Names may come from files: a terminal must not act on what is in them.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn padded(text: &str, columns: usize) -> String {
    format!("{text:columns$}")
}

fn width(text: &str) -> usize {
    text.chars().count()
}
