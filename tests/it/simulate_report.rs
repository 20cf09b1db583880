//! Is the simulator's page what a browser's user expects: complete, legible at any width, alone?

mod sample;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use warmpath::simulate::outcome::Outcome;
use warmpath::simulate::report::{Part, html};

use crate::support::tools::tool;

/// What probe.js saw of a page.
#[derive(Debug, Deserialize)]
struct Seen {
    /// Errors of scripts, and requests that were refused.
    errors: Vec<String>,
    /// Addresses that the page asked for.
    requests: Vec<String>,
    /// Policies with a curve, for each wide plot.
    curves: Vec<usize>,
    /// Plots with a role and a description, and those without.
    described: usize,
    undescribed: usize,
    /// Policies with a heat map that is shown.
    maps: usize,
    /// Names of the parts.
    parts: Vec<String>,
    /// How far the page can be scrolled sideways, pixels.
    sideways: i64,
    /// Labels that stick out of the page or lie on each other.
    misplaced: Vec<String>,
    /// Things of the first policy that are seen after it was unticked, and of all after "none".
    left_when_unticked: usize,
    left_after_none: usize,
    /// Heat maps of waiting tokens that are seen after they were chosen.
    queued_maps: usize,
}

#[test]
fn the_page_is_complete_and_legible_and_asks_for_nothing_on_a_screen_and_a_phone() {
    let Some(browser) = tool("chromium") else {
        return;
    };
    let outcomes = sample::outcomes();
    for width in [1280, 360] {
        let seen = look(&browser, &[""], &outcomes, width);
        assert_eq!(seen.errors, Vec::<String>::new(), "{width} pixels");
        assert_eq!(seen.requests, Vec::<String>::new(), "{width} pixels");
        assert_eq!(seen.curves, [outcomes.len(); 4], "{width} pixels");
        // The glance and the wide plots; a map of each quantity and a plot of owners for each policy.
        assert_eq!(seen.described, 5 + 3 * outcomes.len(), "{width} pixels");
        assert_eq!(seen.undescribed, 0, "{width} pixels");
        assert_eq!(
            (seen.maps, seen.queued_maps),
            (outcomes.len(), outcomes.len())
        );
        assert_eq!(seen.sideways, 0, "{width} pixels");
        assert_eq!(seen.misplaced, Vec::<String>::new(), "{width} pixels");
        assert_eq!((seen.left_when_unticked, seen.left_after_none), (0, 0));
    }
}

#[test]
fn both_loops_are_on_one_page_with_one_legend() {
    let Some(browser) = tool("chromium") else {
        return;
    };
    let outcomes = sample::outcomes();
    for width in [1280, 360] {
        let seen = look(&browser, &["Open loop", "Closed loop"], &outcomes, width);
        assert_eq!(seen.errors, Vec::<String>::new(), "{width} pixels");
        assert_eq!(seen.requests, Vec::<String>::new(), "{width} pixels");
        assert_eq!(seen.parts, ["Open loop", "Closed loop"]);
        assert_eq!(seen.curves, [outcomes.len(); 8], "{width} pixels");
        assert_eq!(seen.described, 2 * (5 + 3 * outcomes.len()));
        let maps = 2 * outcomes.len();
        assert_eq!((seen.maps, seen.queued_maps), (maps, maps));
        assert_eq!(seen.sideways, 0, "{width} pixels");
        assert_eq!(seen.misplaced, Vec::<String>::new(), "{width} pixels");
        assert_eq!((seen.left_when_unticked, seen.left_after_none), (0, 0));
    }
}

#[test]
fn strange_outcomes_make_a_page_that_is_still_in_order() {
    let Some(browser) = tool("chromium") else {
        return;
    };
    let mut strange = sample::outcomes().swap_remove(0);
    strange.policy = "</script><script>throw 1</script><img src=x>".to_owned();
    strange.ttft.p90 = f64::NAN;
    strange.course.ttft.fill(f32::INFINITY);
    strange.hot_prefixes.clear();
    let empty = Outcome {
        policy: "empty".to_owned(),
        ..Outcome::default()
    };
    for outcomes in [vec![], vec![empty.clone()], vec![strange, empty]] {
        let seen = look(&browser, &[""], &outcomes, 360);
        assert_eq!(seen.errors, Vec::<String>::new());
        assert_eq!(seen.requests, Vec::<String>::new());
        assert_eq!(seen.sideways, 0);
        assert_eq!(seen.misplaced, Vec::<String>::new());
    }
}

#[test]
fn thirteen_policies_fit_into_half_a_megabyte() {
    let size = page(&[""], &sample::outcomes()).len();
    assert!(size < 500_000, "{size} bytes");
}

/// The page of these outcomes, in as many parts as there are names.
fn page(parts: &[&str], outcomes: &[Outcome]) -> String {
    let setups: Vec<_> = parts
        .iter()
        .map(|name| {
            let mut setup = sample::setup();
            setup.lines.push(("part".to_owned(), (*name).to_owned()));
            setup
        })
        .collect();
    let parts = parts.iter().zip(&setups).map(|(name, setup)| Part {
        name,
        setup,
        outcomes,
    });
    html(&parts.collect::<Vec<_>>())
}

/// Opens the page of these outcomes in a frame so many pixels wide, and asks a script in it what there is to see.
fn look(browser: &Path, parts: &[&str], outcomes: &[Outcome], width: u32) -> Seen {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Whatever the page would ask for is refused and reported.
    let head = concat!(
        "<head><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ",
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\"/><script>",
        include_str!("simulate_report/probe.js"),
        "</script>"
    );
    let page = page(parts, outcomes).replacen("<head>", head, 1);
    fs::write(folder.path().join("page.html"), page).expect("the page is written");
    let frame = format!(
        "<pre id=\"seen\"></pre><script>onmessage = m => {{ seen.textContent = m.data }}</script>\
         <iframe src=\"page.html\" style=\"border:0;width:{width}px;height:9000px\"></iframe>"
    );
    let outer = folder.path().join("outer.html");
    fs::write(&outer, frame).expect("the frame is written");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--window-size=1400,1000",
            "--virtual-time-budget=3000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", outer.display()))
        .output()
        .expect("the browser starts");
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom
        .split_once("<pre id=\"seen\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(seen, _)| {
            seen.replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&")
        })
        .filter(|seen| !seen.is_empty());
    let errors = String::from_utf8_lossy(&output.stderr);
    let seen = seen.unwrap_or_else(|| panic!("the page said nothing: {dom}\n{errors}"));
    serde_json::from_str(&seen).unwrap_or_else(|error| panic!("{error}: {seen}"))
}
