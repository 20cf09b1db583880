//! The page's text is in order whatever it is made of; what it looks like is looked at in a browser
//! (tests/it/simulate_report.rs).

use proptest::prelude::*;

use super::{html, outcome, setup};
use crate::simulate::outcome::{Course, Outcome};
use crate::simulate::report::{Part, Setup};

/// Reads the page as strictly as XML: every tag closed in order, every attribute quoted, no bare character.
fn check(page: &str) -> Result<(), String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    let mut open: Vec<&str> = Vec::new();
    while let Some((text, after)) = rest.split_once('<') {
        let raw = matches!(open.last(), Some(&"style" | &"script"));
        if !raw && text.contains('>') {
            return Err(format!("bare >: {text}"));
        }
        for entity in text.split('&').skip(1).filter(|_| !raw) {
            if !["amp;", "lt;", "gt;", "quot;", "#39;"]
                .iter()
                .any(|known| entity.starts_with(known))
            {
                return Err(format!("bare &: {text}"));
            }
        }
        let (tag, after) = end_of_tag(after)?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(name) {
                return Err(format!("</{name}> closes {opened:?}"));
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or_default());
        }
    }
    if open.is_empty() && rest.trim().is_empty() {
        Ok(())
    } else {
        Err(format!("left open: {open:?}"))
    }
}

/// Splits behind the tag, whose attribute values may hold anything but quotes and `<`.
fn end_of_tag(text: &str) -> Result<(&str, &str), String> {
    let mut quoted = false;
    let end = text.find(|character| {
        quoted ^= character == '"';
        character == '<' || (character == '>' && !quoted)
    });
    let (tag, rest) = end
        .and_then(|end| text.split_at_checked(end))
        .ok_or("a tag without end")?;
    match rest.strip_prefix('>') {
        Some(rest) => Ok((tag, rest)),
        None => Err(format!("< in a tag: {tag}")),
    }
}

#[test]
fn the_check_itself_finds_what_is_wrong() {
    for page in [
        "<p>",
        "<p></b>",
        "<p>a & b</p>",
        "<p>></p>",
        "<p a=\"<\"></p>",
    ] {
        assert!(check(&format!("<!DOCTYPE html>{page}")).is_err(), "{page}");
    }
    assert_eq!(check("<!DOCTYPE html><p a=\">\">&amp;<br/></p>"), Ok(()));
}

#[test]
fn nothing_in_the_page_names_another_place() {
    let page = html(&[outcome("a", 0.1)], &setup());
    for word in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn text_from_outside_stays_text() {
    let wild = "<b onclick=\"x\">&'\u{7}";
    let setup = Setup {
        title: wild.to_owned(),
        lines: vec![(wild.to_owned(), wild.to_owned())],
        notes: vec![wild.to_owned()],
    };
    let page = html(&[outcome(wild, 0.1)], &setup);
    assert_eq!(check(&page), Ok(()));
    assert!(!page.contains("<b ") && !page.contains('\u{7}'));
}

#[test]
fn two_loops_are_two_parts_of_one_page() {
    let parts = [("Open loop", 0.1), ("Closed loop", 0.2)].map(|(name, ttft)| {
        let mut setup = setup();
        setup.lines.push(("loop".to_owned(), name.to_lowercase()));
        setup.notes.push(format!("Only of the {name}."));
        (name, setup, [outcome("a", ttft)])
    });
    let page =
        crate::simulate::report::html(&parts.each_ref().map(|(name, setup, outcomes)| Part {
            name,
            setup,
            outcomes,
        }));
    assert_eq!(check(&page), Ok(()));
    let parts: Vec<&str> = page.split("<article").collect();
    assert_eq!(parts.len(), 3);
    // What both have is said once, above; what one has stands with it.
    assert_eq!(page.matches("40 req/s").count(), 1);
    assert!(parts[0].contains("40 req/s") && parts[0].contains("The engines are modelled."));
    for (part, own) in [(1, "open loop"), (2, "closed loop")] {
        assert!(parts[part].contains(&format!("<dd>{own}</dd>")), "{own}");
        assert_eq!(parts[part].matches("class=\"note\"").count(), 1);
    }
    assert_eq!(page.matches("<nav class=\"legend\"").count(), 1);
    let names = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    let mut names: Vec<&str> = names.collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "an id is there once");
    assert!(!html(&[outcome("a", 0.1)], &setup()).contains("<article"));
}

#[test]
fn a_map_of_a_great_fleet_shows_the_fullest_of_neighbours_and_stays_small() {
    let mut great = outcome("great", 0.1);
    great.replicas = 400;
    great.course.seconds = (1..=1_000).map(f64::from).collect();
    great.course.in_flight = (0..400)
        .map(|replica| vec![if replica == 399 { 900.0 } else { 1.0 }; 1_000])
        .collect();
    let page = html(&[great], &setup());
    assert!(page.contains("the fullest of 10 neighbouring replicas"));
    // Ten replicas are one row; the last row alone is of the highest level.
    assert!(page.contains("viewBox=\"0 0 59 40\""));
    assert!(page.contains("<path class=\"h7\" d=\"M0 39h59v1h-59z\"/>"));
    assert!(page.len() < 60_000, "{}", page.len());
}

/// Any number at all, the strange ones often.
fn figure() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(0.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::MIN_POSITIVE),
        0.0..1e4
    ]
}

proptest! {
    #[test]
    fn any_figures_make_a_page_in_order(
        ttft in figure(),
        share in figure(),
        requests in 0u64..3,
        course in proptest::collection::vec((figure(), any::<f32>(), any::<f32>()), 0..70),
        owners in proptest::collection::vec(any::<u32>(), 0..5),
        rate in figure(),
    ) {
        let mut any = Outcome { requests, cached_share: share, ..outcome("any", ttft) };
        any.course = Course {
            seconds: course.iter().map(|point| point.0).collect(),
            in_flight: vec![course.iter().map(|point| point.1).collect(), Vec::new()],
            queued_tokens: vec![course.iter().map(|point| point.2).collect()],
            cached_share: course.iter().map(|point| point.2).collect(),
            ttft: course.iter().map(|point| point.1).collect(),
        };
        any.hot_prefixes[0].owners = owners;
        any.hot_prefixes[0].per_second = rate;
        let page = html(&[any], &setup());
        prop_assert_eq!(check(&page), Ok(()));
        prop_assert!(!page.contains("NaN"), "{}", page);
        prop_assert!(!page.contains("inf"), "{}", page);
    }
}
