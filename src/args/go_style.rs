//! How do programs written in Go take their flags, and what becomes of such a command line here?
//!
//! Go's flags come with one dash or two, their values after `=` or as the next word, and a word after a flag that needs
//! a value is its value whatever it looks like. Deployments are written for that. Words are rewritten to the one form
//! that our own parser reads alike, and everything else is left to it, so that its messages stay what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

/// What a flag wants after its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// A value, in the same word or the next one.
    Value,
    /// Nothing, or a value in the same word: Go's booleans.
    Nothing,
}

/// The flags of a command by their long names.
pub(super) type Flags = BTreeMap<String, Wants>;

/// Rewrites the words after a command's name: `-name`, `--name value` and `-name=value` become `--name` and
/// `--name=value` for `flags`; other words stay. After `--` nothing is a flag.
pub(super) fn rewrite(words: Vec<OsString>, flags: &Flags) -> Vec<OsString> {
    let mut rewritten = Vec::with_capacity(words.len());
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            rewritten.push(word);
            break;
        }
        let Some((name, value)) = flag(&word) else {
            rewritten.push(word);
            continue;
        };
        let Some(wants) = flags.get(name) else {
            rewritten.push(word);
            continue;
        };
        let mut whole = OsString::from(format!("--{name}"));
        if let Some(value) = value {
            whole.push("=");
            whole.push(value);
        } else if *wants == Wants::Value
            // Another flag there is a value forgotten, not a value: our parser says so.
            && let Some(value) = words.next_if(|next| !is_one_of(next, flags))
        {
            whole.push("=");
            whole.push(value);
        }
        rewritten.push(whole);
    }
    rewritten.extend(words);
    rewritten
}

/// Name and value of `-name`, `--name`, `-name=value` and `--name=value`; `None` for other words and what is not UTF-8.
fn flag(word: &OsString) -> Option<(&str, Option<&str>)> {
    let word = word.to_str()?;
    let rest = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    if rest.is_empty() || rest.starts_with(['-', '=']) {
        return None;
    }
    Some(match rest.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (rest, None),
    })
}

fn is_one_of(word: &OsString, flags: &Flags) -> bool {
    word == "--" || flag(word).is_some_and(|(name, _)| flags.contains_key(name))
}

/// A boolean in each of Go's spellings.
pub(super) fn boolean(written: &str) -> Result<bool, String> {
    match written {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("`true` or `false` is expected".to_owned()),
    }
}

/// A duration as Go writes it: numbers with units, as in `30s`, `1m30s` or `1.5h`; `0` needs none.
pub(super) fn duration(written: &str) -> Result<Duration, String> {
    let refused = || {
        format!(
            "`{written}` is not a duration: numbers with units, for example 500ms, 30s or 1m30s"
        )
    };
    if written == "0" {
        return Ok(Duration::ZERO);
    }
    let mut seconds = 0.0;
    let mut rest = written.strip_prefix('+').unwrap_or(written);
    if rest.is_empty() {
        return Err(refused());
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, from_unit) = rest.split_at(unit_at.ok_or_else(refused)?);
        let number_at = from_unit.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = from_unit.split_at(number_at.unwrap_or(from_unit.len()));
        let number: f64 = number.parse().map_err(|_| refused())?;
        seconds += number * unit_seconds(unit).ok_or_else(refused)?;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| refused())
}

const fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit.as_bytes() {
        b"ns" => 1e-9,
        // The micro sign, the letter mu, and the letter u in their place.
        b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1e-6,
        b"ms" => 1e-3,
        b"s" => 1.0,
        b"m" => 60.0,
        b"h" => 3600.0,
        _ => return None,
    })
}

/// The flags of a command, as its definition has them.
pub(super) fn flags_of(command: &clap::Command) -> Flags {
    let mut flags = Flags::new();
    for argument in command.get_arguments() {
        let in_next_word =
            argument.get_action().takes_values() && !argument.is_require_equals_set();
        let wants = if in_next_word {
            Wants::Value
        } else {
            Wants::Nothing
        };
        let names: BTreeSet<&str> = argument
            .get_long_and_visible_aliases()
            .unwrap_or_default()
            .into_iter()
            .collect();
        flags.extend(names.into_iter().map(|name| (name.to_owned(), wants)));
    }
    flags
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flags() -> Flags {
        [
            ("v", Wants::Value),
            ("pool-name", Wants::Value),
            ("grpc-port", Wants::Value),
            ("secure-serving", Wants::Nothing),
        ]
        .map(|(name, wants)| (name.to_owned(), wants))
        .into()
    }

    fn rewritten(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        rewrite(words, &flags())
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn every_form_of_a_flag_becomes_one() {
        for words in [&["-v", "4"][..], &["--v", "4"], &["-v=4"], &["--v=4"]] {
            assert_eq!(rewritten(words), ["--v=4"], "{words:?}");
        }
        let booleans = [
            "-secure-serving",
            "--secure-serving",
            "-secure-serving=false",
        ];
        assert_eq!(
            rewritten(&booleans),
            [
                "--secure-serving",
                "--secure-serving",
                "--secure-serving=false"
            ]
        );
        // Go's booleans take no next word, and neither do ours.
        assert_eq!(
            rewritten(&["--secure-serving", "false"]),
            ["--secure-serving", "false"]
        );
    }

    #[test]
    fn a_value_may_look_like_a_flag_but_a_flag_is_no_value() {
        assert_eq!(
            rewritten(&["--pool-name", "-odd", "-grpc-port", "1"]),
            ["--pool-name=-odd", "--grpc-port=1"]
        );
        assert_eq!(
            rewritten(&["--pool-name", "--grpc-port", "1"]),
            ["--pool-name", "--grpc-port=1"]
        );
        assert_eq!(rewritten(&["--pool-name"]), ["--pool-name"]);
        assert_eq!(
            rewritten(&["--pool-name", "--", "-v", "4"]),
            ["--pool-name", "--", "-v", "4"]
        );
    }

    #[test]
    fn unknown_words_stay() {
        let words = ["-v4", "--grpc-prot", "1", "-h", "-", "---v", "--=3", "word"];
        assert_eq!(rewritten(&words), words);
    }

    #[test]
    fn durations_are_gos() {
        for (written, ms) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("500ms", 500),
            ("1h0m0.25s", 3_600_250),
            ("+2s", 2_000),
            ("1000µs", 1),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(
                duration(written),
                Ok(Duration::from_millis(ms)),
                "{written}"
            );
        }
        for written in [
            "", "30", "-5s", "s", "1.2.3s", "5 s", "1d", "s30", "+", ".s", "1e3s",
        ] {
            assert!(duration(written).is_err(), "{written}");
        }
    }

    proptest! {
        #[test]
        fn rewriting_twice_is_rewriting_once(
            words in prop::collection::vec("(-{0,3}(v|pool-name|secure-serving|x|)(=[a-z=-]{0,3})?)|[a-z4-]{0,4}", 0..8),
        ) {
            let once = rewrite(words.into_iter().map(OsString::from).collect(), &flags());
            prop_assert_eq!(rewrite(once.clone(), &flags()), once);
        }

        #[test]
        fn all_spellings_of_a_value_are_one(
            before in prop::collection::vec("[a-z]{1,5}", 0..3),
            name in "v|pool-name|grpc-port",
            value in "[a-z0-9=/.:-]{1,8}",
        ) {
            let with = |last: &[String]| {
                let words: Vec<_> = before.iter().chain(last).map(OsString::from).collect();
                rewrite(words, &flags())
            };
            prop_assume!(!is_one_of(&OsString::from(&value), &flags()));
            let expected = with(&[format!("--{name}={value}")]);
            for dashes in ["-", "--"] {
                prop_assert_eq!(&with(&[format!("{dashes}{name}={value}")]), &expected);
                prop_assert_eq!(&with(&[format!("{dashes}{name}"), value.clone()]), &expected);
            }
        }

        #[test]
        fn any_text_is_a_duration_or_refused(written in "[0-9.+smhun-]{0,12}|.{0,6}") {
            duration(&written).ok();
        }
    }
}
