//! `{% generation %}` blocks, which mark what an assistant wrote for training.
//!
//! They change nothing in the text but open a scope; the engine has no such tag, so they
//! become `{% with %}` blocks, which are just that.

use std::borrow::Cow;

const TAGS: [(&str, &str); 2] = [("endgeneration", "endwith"), ("generation", "with")];

/// The template with its generation tags replaced; comments and raw blocks are left alone.
pub(super) fn rewrite(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let copied = if tag.starts_with("{#") {
            tag.find("#}").map_or(tag.len(), |end| end + 2)
        } else if is_tag(tag, "raw").is_some() {
            end_of_raw(tag)
        } else if let Some((length, name, with)) = TAGS
            .iter()
            .find_map(|(name, with)| is_tag(tag, name).map(|length| (length, name, with)))
        {
            let (head, after) = tag.split_at(length);
            out.push_str(&head.replacen(name, with, 1));
            rest = after;
            continue;
        } else {
            2
        };
        let (copied, after) = tag.split_at(copied);
        out.push_str(copied);
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The length of `{% name %}` at the start of a text, with or without white space marks.
fn is_tag(text: &str, name: &str) -> Option<usize> {
    let inner = text.strip_prefix("{%")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start();
    let inner = inner.strip_prefix(name)?.trim_start();
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let rest = inner.strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

fn end_of_raw(text: &str) -> usize {
    let mut at = 2;
    while let Some(next) = text.get(at..).and_then(|rest| rest.find("{%")) {
        at += next;
        if let Some(length) = text.get(at..).and_then(|tag| is_tag(tag, "endraw")) {
            return at + length;
        }
        at += 2;
    }
    text.len()
}
