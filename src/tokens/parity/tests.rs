//! Verdicts, whose turn it is, what first blocks prove, and what a canary is here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::time::Instant;

use super::canary::{Canary, Ours, canaries, ours};
use super::evidence::{Beginnings, Evidence};
use super::verdict::{Difference, Finding, Verdict, judge};
use super::watched::{Standing, Watched, Word};
use crate::metrics::token_sources::Degradation;
use crate::routing::model::{Model, ModelFiles, RenderContext};
use crate::routing::request::Api;
use crate::tokens::ModelSource;
use crate::tokens::catalog::{Entry, Group, Subject};
use crate::tokens::loader::Loaded;
use crate::tokens::offload::Pace;

const INTERVAL: Duration = Duration::from_secs(600);

fn engine(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 8000))
}

fn engines(numbers: std::ops::Range<u8>) -> Vec<SocketAddr> {
    numbers.map(engine).collect()
}

fn group(minor: u32, engines: Vec<SocketAddr>) -> Group {
    Group {
        version: Some((0, minor)),
        root: None,
        engines,
    }
}

fn differs(reading: u64) -> Finding {
    let difference = Difference::between("user", &[1, 2], &[1, 3]).unwrap();
    Finding::Differs(Difference {
        reading,
        ..difference
    })
}

fn subject(groups: Vec<Group>) -> Subject {
    let engines = groups.iter().flat_map(|group| group.engines.clone());
    Subject {
        name: "m".into(),
        entry: Arc::new(Entry {
            adapter: None,
            places: [ModelSource::Hub("o/m".to_owned())].into(),
            engines: engines.collect(),
            served_as: "m".into(),
            version: None,
            max_model_len: None,
        }),
        groups,
    }
}

/// A model of the words `a` and `?`, rendered by this template.
fn model(template: &str) -> Model {
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    });
    Model::load(&ModelFiles {
        tokenizer: tokenizer.to_string().into_bytes(),
        chat_template: Some(template.to_owned()),
        ..ModelFiles::default()
    })
    .unwrap()
}

fn loaded() -> Arc<Loaded> {
    Arc::new(Loaded {
        model: model("{{ messages[0].content }}"),
        pace: Pace::default(),
    })
}

fn watched(groups: Vec<Group>, loaded: &Arc<Loaded>) -> Watched {
    let subject = subject(groups);
    let mut watched = Watched::new(subject.clone());
    watched.update(subject, Some(loaded));
    watched
}

fn asked(watched: &mut Watched, now: Instant) -> Vec<SocketAddr> {
    let jobs = watched.round(now, INTERVAL);
    jobs.iter().map(|job| job.engine).collect()
}

#[test]
fn the_first_difference_is_a_token_or_the_end_of_one_list() {
    let between = |ours: &[u32], theirs: &[u32]| Difference::between("c", ours, theirs);
    let parts = |difference: Option<Difference>| {
        let difference = difference.unwrap();
        (difference.position, difference.ours, difference.theirs)
    };
    assert_eq!(between(&[1, 2], &[1, 2]), None);
    assert_eq!(parts(between(&[1, 2], &[1, 3])), (1, Some(2), Some(3)));
    assert_eq!(parts(between(&[1], &[1, 3])), (1, None, Some(3)));
    assert_eq!(parts(between(&[1], &[])), (0, Some(1), None));
}

#[test]
fn the_reading_of_most_engines_is_in_force_and_ours_among_equals() {
    let groups = [group(31, engines(0..4)), group(32, engines(4..6))];
    let verdict = |found: &[(u8, Finding)]| {
        let found = found.iter().map(|(n, found)| (engine(*n), found.clone()));
        judge(&groups, &found.collect())
    };
    let agrees = Finding::Agrees;
    assert_eq!(verdict(&[]), Verdict::Unknown);
    assert_eq!(verdict(&[(5, agrees.clone())]), Verdict::Agrees);
    let split = verdict(&[(0, agrees.clone()), (4, differs(7))]);
    assert_eq!(split, Verdict::Split { ours: 4, others: 2 });
    let most = verdict(&[(0, differs(7)), (4, agrees.clone())]);
    let engines = engines(0..4);
    assert_eq!(most, Verdict::Differs { engines, others: 2 });
    // A group of two minds speaks only for those that were asked.
    let equal = verdict(&[(0, differs(7)), (1, agrees.clone())]);
    assert_eq!(equal, Verdict::Split { ours: 1, others: 1 });
    let two_others = verdict(&[
        (0, differs(7)),
        (1, agrees),
        (2, differs(8)),
        (3, differs(8)),
    ]);
    let like_eight = vec![engine(2), engine(3)];
    let expected = Verdict::Differs {
        engines: like_eight,
        others: 2,
    };
    assert_eq!(two_others, expected);
}

proptest! {
    /// Whatever was found, the counts add up and nobody is asked who does not have the reading in force.
    #[test]
    fn a_verdict_counts_every_engine_once(readings in prop::collection::vec(prop::option::of(0..3_u64), 1..12)) {
        let all: Vec<_> = (0..readings.len()).map(|n| engine(u8::try_from(n).unwrap())).collect();
        let groups = [group(31, all.clone())];
        let found: FxHashMap<_, _> = all.iter().zip(&readings).filter_map(|(engine, reading)| {
            let reading = (*reading)?;
            Some((*engine, if reading == 0 { Finding::Agrees } else { differs(reading) }))
        }).collect();
        let known = found.len();
        match judge(&groups, &found) {
            Verdict::Unknown => prop_assert_eq!(known, 0),
            Verdict::Agrees => prop_assert!(found.values().all(|found| *found == Finding::Agrees)),
            Verdict::Split { ours, others } => {
                prop_assert_eq!(ours + others, known);
                prop_assert!(ours > 0 && others > 0);
            }
            Verdict::Differs { engines, others } => {
                prop_assert!(!engines.is_empty());
                let first = found.values().find(|found| **found != Finding::Agrees);
                prop_assert!(first.is_some());
                // Of one mind: all are taken to be alike, asked or not.
                if others > 0 {
                    prop_assert_eq!(engines.len() + others, known);
                    let readings: Vec<_> = engines.iter().map(|engine| &found[engine]).collect();
                    prop_assert!(readings.windows(2).all(|pair| pair[0] == pair[1]));
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_engine_of_a_group_is_asked_at_a_time_and_all_in_turn() {
    let loaded = loaded();
    let mut watched = watched(
        vec![group(31, engines(0..3)), group(32, engines(3..4))],
        &loaded,
    );
    let mut turns = Vec::new();
    for _ in 0..6 {
        let now = Instant::now();
        let asked = asked(&mut watched, now);
        assert_eq!(asked.len(), 2, "one of each group: {asked:?}");
        for &engine in &asked {
            watched.found(engine, &loaded, Ok(Finding::Agrees));
        }
        turns.push(asked[0]);
        assert!(
            watched.round(now, INTERVAL).is_empty(),
            "asked again at once"
        );
        tokio::time::sleep_until(watched.next_round(now)).await;
    }
    assert_eq!(turns, [engines(0..3), engines(0..3)].concat());
    assert_eq!(watched.word(), Word::Agrees);
}

#[tokio::test(start_paused = true)]
async fn a_new_engine_is_asked_at_once_and_one_that_left_is_forgotten() {
    let loaded = loaded();
    let mut watched = watched(vec![group(31, engines(0..1))], &loaded);
    let now = Instant::now();
    assert_eq!(asked(&mut watched, now), engines(0..1));
    watched.found(engine(0), &loaded, Ok(differs(7)));
    assert_eq!(watched.word(), Word::Differs);
    watched.update(subject(vec![group(31, engines(0..2))]), Some(&loaded));
    assert!(asked(&mut watched, now).contains(&engine(1)));
    watched.update(subject(vec![group(31, engines(1..2))]), Some(&loaded));
    assert_eq!(watched.word(), Word::Unknown);
    watched.found(engine(0), &loaded, Ok(differs(7)));
    assert_eq!(
        watched.word(),
        Word::Unknown,
        "a late answer of one that left"
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_was_restarted_in_its_place_is_asked_at_once() {
    let loaded = loaded();
    let mut watched = watched(vec![group(31, engines(0..3))], &loaded);
    let mut now = Instant::now();
    for _ in 0..3 {
        let [one] = asked(&mut watched, now)[..] else {
            panic!("one at a time");
        };
        watched.found(one, &loaded, Ok(Finding::Agrees));
        now = watched.next_round(now);
    }
    now -= INTERVAL / 2;
    assert!(asked(&mut watched, now).is_empty());
    watched.restarted(engine(2));
    assert_eq!(watched.word(), Word::Agrees, "until it says otherwise");
    assert_eq!(asked(&mut watched, now), [engine(2)]);
    watched.restarted(engine(9));
    assert!(
        asked(&mut watched, now).is_empty(),
        "it serves another model"
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_differs_has_all_of_its_group_asked_and_more_often() {
    let loaded = loaded();
    let mut watched = watched(vec![group(31, engines(0..4))], &loaded);
    let now = Instant::now();
    asked(&mut watched, now);
    watched.found(engine(0), &loaded, Ok(differs(7)));
    assert_eq!(asked(&mut watched, now), engines(0..4));
    for n in 1..4 {
        watched.found(engine(n), &loaded, Ok(Finding::Agrees));
    }
    assert_eq!(*watched.verdict(), Verdict::Split { ours: 3, others: 1 });
    assert!(watched.is_fine(), "most have our ids");
    assert_eq!(watched.next_round(now), now + INTERVAL / 10);
    assert!(asked(&mut watched, now).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_cannot_be_asked_proves_nothing_and_changes_nothing() {
    let loaded = loaded();
    let mut watched = watched(vec![group(31, engines(0..1))], &loaded);
    let now = Instant::now();
    asked(&mut watched, now);
    watched.found(engine(0), &loaded, Err(Degradation::EngineWithoutTokenize));
    assert_eq!(watched.word(), Word::Unknown);
    assert!(watched.is_fine());
    let page = watched.to_json();
    assert_eq!(page["not_asked"][0]["reason"], "engine_without_tokenize");
    watched.found(engine(0), &loaded, Ok(differs(7)));
    watched.found(engine(0), &loaded, Err(Degradation::EngineTimeout));
    assert_eq!(watched.word(), Word::Differs, "what it said stands");
    // Another tokenizer here starts it afresh.
    let other = self::loaded();
    watched.update(subject(vec![group(31, engines(0..1))]), Some(&other));
    assert_eq!(watched.word(), Word::Unknown);
    watched.found(engine(0), &loaded, Ok(differs(7)));
    assert_eq!(
        watched.word(),
        Word::Unknown,
        "an answer about the former one"
    );
}

fn beginnings() -> Beginnings {
    Beginnings {
        ours: vec![1],
        stored: vec![2],
    }
}

#[test]
fn four_in_a_row_distrust_and_three_confirmed_trust_again() {
    let mut evidence = Evidence::default();
    for _ in 0..3 {
        evidence.missing(beginnings());
    }
    evidence.stored();
    for _ in 0..3 {
        evidence.missing(beginnings());
    }
    assert_eq!(evidence.distrusted(), None);
    evidence.missing(beginnings());
    assert_eq!(evidence.distrusted(), Some(&beginnings()));
    for _ in 0..2 {
        evidence.stored();
    }
    evidence.missing(beginnings());
    for _ in 0..2 {
        evidence.stored();
    }
    assert!(evidence.distrusted().is_some(), "not in a row");
    evidence.stored();
    assert_eq!(evidence.distrusted(), None);
}

#[test]
fn tokens_go_from_here_to_the_engine_to_an_estimate_as_each_is_proven_wrong() {
    let loaded = loaded();
    let distrust = |evidence: &mut Evidence| (0..4).for_each(|_| evidence.missing(beginnings()));
    let ways = |watched: &Watched, trial| {
        let Standing { local, engine } = watched.standing(trial);
        (local, engine.map(|entry| entry.engines.clone()))
    };
    let mut watched = watched(
        vec![group(31, engines(0..2)), group(32, engines(2..3))],
        &loaded,
    );
    let all = Some(engines(0..3));
    assert_eq!(ways(&watched, false), (true, all.clone()));
    // Nobody can be asked, and what is stored is something else.
    distrust(&mut watched.local);
    assert_eq!(ways(&watched, false), (false, all.clone()));
    assert_eq!(ways(&watched, true), (true, all));
    distrust(&mut watched.engine);
    assert_eq!(ways(&watched, false), (false, None));
    assert_eq!(watched.word(), Word::Unstored);
    watched.engine = Evidence::default();
    // The engines' tokenizer makes the same ids: no use in asking it.
    watched.found(engine(0), &loaded, Ok(Finding::Agrees));
    assert_eq!(ways(&watched, false), (false, None));
    watched.local = Evidence::default();
    watched.found(engine(0), &loaded, Ok(differs(7)));
    watched.found(engine(2), &loaded, Ok(Finding::Agrees));
    assert_eq!(ways(&watched, false), (false, Some(engines(0..2))));
    assert_eq!(ways(&watched, true), (false, Some(engines(0..2))));
}

#[test]
fn other_engines_and_a_tokenizer_loaded_anew_clear_what_was_seen_of_first_blocks() {
    let loaded = loaded();
    let distrusted = || {
        let mut watched = watched(vec![group(31, engines(0..2))], &loaded);
        (0..4).for_each(|_| watched.local.missing(beginnings()));
        (0..4).for_each(|_| watched.engine.missing(beginnings()));
        watched
    };
    let mut some_stay = distrusted();
    some_stay.update(subject(vec![group(31, engines(1..3))]), Some(&loaded));
    assert_eq!(some_stay.word(), Word::Unstored);
    let mut all_new = distrusted();
    all_new.update(subject(vec![group(31, engines(2..4))]), Some(&loaded));
    assert_eq!(all_new.word(), Word::Unknown);
    let mut anew = distrusted();
    anew.update(
        subject(vec![group(31, engines(0..2))]),
        Some(&self::loaded()),
    );
    assert!(anew.local.distrusted().is_none() && anew.engine.distrusted().is_some());
}

#[test]
fn canaries_are_requests_that_the_parser_knows_with_names_of_their_own() {
    let model =
        model("{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}{{ tools }} a");
    let context = RenderContext {
        engine_version: Some((0, 33)),
        ..RenderContext::default()
    };
    let all = canaries();
    let mut names: Vec<_> = all.iter().map(|canary| canary.name).collect();
    for canary in &all {
        let made = ours(&model, canary, &context);
        assert!(matches!(made, Ours::Ids(_)), "{}: {made:?}", canary.name);
    }
    let long = all.last().unwrap();
    assert!(
        (5_000..9_000).contains(&long.body.len()),
        "{}",
        long.body.len()
    );
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 8);
}

fn canary(name: &str) -> Canary {
    let mut all = canaries().into_iter();
    all.find(|canary| canary.name == name).unwrap()
}

#[test]
fn what_cannot_be_the_same_twice_or_is_asked_of_engines_anyway_is_not_compared() {
    let context = RenderContext {
        engine_version: Some((0, 33)),
        unix_time: 1_700_000_000,
        max_model_len: None,
    };
    let made = |template: &str, name: &str, context: &RenderContext| {
        ours(&model(template), &canary(name), context)
    };
    let plain = "{{ messages[0].content }}";
    let day = "{{ strftime_now('%d %b %Y') }}";
    let second = "{% if strftime_now('%S') | int % 2 %}a{% else %}?{% endif %}";
    assert!(matches!(made(day, "user", &context), Ours::Ids(_)));
    assert_eq!(made(second, "user", &context), Ours::Apart("time"));
    let refuses = "{{ raise_exception('no') }}";
    assert_eq!(made(refuses, "user", &context), Ours::Refused);
    let unknown = RenderContext {
        engine_version: None,
        ..context.clone()
    };
    let developer = made(plain, "developer", &unknown);
    assert_eq!(developer, Ours::Apart("unknown_engine_version"));
    let short = RenderContext {
        max_model_len: Some(100),
        ..context
    };
    assert_eq!(made(plain, "long", &short), Ours::Apart("context_length"));
    assert!(matches!(made(plain, "user", &short), Ours::Ids(_)));
}

#[test]
fn a_canary_of_each_api_has_a_payload() {
    let apis: Vec<_> = canaries().iter().map(|canary| canary.api).collect();
    assert_eq!(
        apis.iter().filter(|api| **api == Api::Completions).count(),
        1
    );
    assert_eq!(apis.iter().filter(|api| **api == Api::Chat).count(), 7);
}
