//! The rules of ARCHITECTURE.md that can be read off the source: who may name whom.
//!
//! Words are looked for in code only: comments and string literals are blanked first.

#![expect(
    clippy::unwrap_used,
    reason = "a source tree that cannot be read fails the test"
)]
#![expect(
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "all places were found in the very text they index"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// A word that has no business where it stands.
struct Rule {
    /// Folder or file under `src/` it holds for, without `.rs`.
    scope: &'static str,
    word: &'static str,
    why: &'static str,
}

const PURE: &str = "routing is pure: time, randomness, settings and the world are arguments";
const APART: &str = "extproc and feeds never name each other: picker and app stand between";
const OURS: &str = "routing names no other module of ours";

const RULES: &[Rule] = &[
    rule("routing", "tokio", PURE),
    rule("routing", "tokio_util", PURE),
    rule("routing", "futures_util", PURE),
    rule("routing", "tonic", PURE),
    rule("routing", "prost", PURE),
    rule("routing", "zeromq", PURE),
    rule("routing", "prometheus", PURE),
    rule("routing", "tracing", PURE),
    rule("routing", "reqwest", PURE),
    rule("routing", "axum", PURE),
    rule("routing", "kube", PURE),
    rule("routing", "fastrand", PURE),
    rule("routing", "rand", PURE),
    rule("routing", "std::env", PURE),
    rule("routing", "std::fs", PURE),
    rule("routing", "std::process", PURE),
    rule("routing", "env::var", PURE),
    rule("routing", "Instant::now", PURE),
    rule("routing", "SystemTime", PURE),
    rule("routing", "RandomState", PURE),
    rule("routing", "Timestamp::now", PURE),
    rule("routing", "Zoned::now", PURE),
    rule("routing", "thread::sleep", PURE),
    rule("routing", "crate::extproc", OURS),
    rule("routing", "crate::picker", OURS),
    rule("routing", "crate::tokens", OURS),
    rule("routing", "crate::feeds", OURS),
    rule("routing", "crate::admin", OURS),
    rule("routing", "crate::app", OURS),
    rule("routing", "crate::args", OURS),
    rule("routing", "crate::config", OURS),
    rule("routing", "crate::metrics", OURS),
    rule("routing", "crate::readiness", OURS),
    rule("routing", "crate::telemetry", OURS),
    rule("routing", "crate::demo", OURS),
    rule("routing", "crate::engine", OURS),
    rule("extproc", "crate::feeds", APART),
    rule("feeds", "crate::extproc", APART),
];

const MOST_LINES: usize = 500;

const fn rule(scope: &'static str, word: &'static str, why: &'static str) -> Rule {
    Rule { scope, word, why }
}

/// One source file: its path under `src/`, its text, and its text without comments and strings.
struct Source {
    path: PathBuf,
    text: String,
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source {
                    path: path.strip_prefix(&root).unwrap().to_owned(),
                    code: code_of(&text),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Blanks comments, strings and character literals, and keeps the lines.
fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = String::with_capacity(text.len());
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes[i..].starts_with(b"//") => end_of(bytes, i, b"\n", 0),
            b'/' if bytes[i..].starts_with(b"/*") => end_of(bytes, i + 2, b"*/", 2),
            b'r' if raw_hashes(bytes, i).is_some() => {
                let hashes = raw_hashes(bytes, i).unwrap();
                let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
                end_of(bytes, i + hashes + 2, &close, close.len())
            }
            b'"' => end_of_string(bytes, i + 1),
            b'\'' if bytes.get(i + 1) == Some(&b'\\') => end_of(bytes, i + 3, b"'", 1),
            b'\'' if bytes.get(i + 2) == Some(&b'\'') => i + 3,
            byte => {
                code.push(char::from(byte));
                i += 1;
                continue;
            }
        };
        let end = end.min(bytes.len());
        let lines = bytes[i..end].iter().filter(|&&byte| byte == b'\n').count();
        code.push(' ');
        code.push_str(&"\n".repeat(lines));
        i = end;
    }
    code
}

fn end_of(bytes: &[u8], from: usize, close: &[u8], keep: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let found = rest.windows(close.len()).position(|window| window == close);
    found.map_or(bytes.len(), |at| from + at + keep)
}

fn end_of_string(bytes: &[u8], mut i: usize) -> usize {
    while i < bytes.len() && bytes[i] != b'"' {
        i += if bytes[i] == b'\\' { 2 } else { 1 };
    }
    i + 1
}

/// How many `#` a raw string that starts here has.
fn raw_hashes(bytes: &[u8], i: usize) -> Option<usize> {
    let before = i.checked_sub(1).map(|before| bytes[before]);
    if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && before != Some(b'b')
    {
        return None;
    }
    let hashes = bytes[i + 1..]
        .iter()
        .take_while(|&&byte| byte == b'#')
        .count();
    (bytes.get(i + 1 + hashes) == Some(&b'"')).then_some(hashes)
}

fn in_scope(path: &Path, scope: &str) -> bool {
    path.starts_with(scope) || path == Path::new(&format!("{scope}.rs"))
}

/// The word stands by itself, not as part of a longer one.
fn names(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

/// The non-test part: from `#[cfg(test)]` with a `mod` body on, a file is tests.
fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests")
}

fn product_code(source: &Source) -> &str {
    if is_test_file(&source.path) {
        return "";
    }
    let body = source.code.find("#[cfg(test)]\nmod tests {");
    &source.code[..body.unwrap_or(source.code.len())]
}

/// `file:line: word: why` of everything that breaks a rule.
fn offences(sources: &[Source], rules: &[Rule]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let rules: Vec<&Rule> = rules
            .iter()
            .filter(|rule| in_scope(&source.path, rule.scope))
            .collect();
        for (n, line) in product_code(source).lines().enumerate() {
            for rule in rules.iter().filter(|rule| names(line, rule.word)) {
                let path = source.path.display();
                found.push(format!("src/{path}:{}: {}: {}", n + 1, rule.word, rule.why));
            }
        }
    }
    found
}

#[test]
fn modules_name_only_what_they_may() {
    let found = offences(&sources(), RULES);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_file_is_reachable_by_a_mod_line() {
    let sources = sources();
    let mut lost = Vec::new();
    for source in &sources {
        let path = &source.path;
        if path == Path::new("lib.rs") || path == Path::new("main.rs") {
            continue;
        }
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap();
        let parents = if folder == Path::new("") {
            vec![PathBuf::from("lib.rs"), PathBuf::from("main.rs")]
        } else {
            vec![folder.with_extension("rs")]
        };
        let line = format!("mod {stem}");
        let declared = sources
            .iter()
            .filter(|other| parents.contains(&other.path))
            .any(|parent| {
                parent
                    .code
                    .lines()
                    .any(|code| code.contains(';') && names(code, &line))
            });
        if !declared {
            let path = path.display();
            lost.push(format!(
                "src/{path}:1: {stem}: no `mod {stem};` in {}",
                parents[0].display()
            ));
        }
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn no_file_is_longer_than_500_lines() {
    let long: Vec<String> = sources()
        .iter()
        .map(|source| (source, source.text.lines().count()))
        .filter(|&(_, lines)| lines > MOST_LINES)
        .map(|(source, lines)| {
            let path = source.path.display();
            format!("src/{path}:{lines}: {lines} lines: at most {MOST_LINES}, split it by subject")
        })
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn a_forbidden_word_is_found_in_code_and_not_in_comments_strings_or_longer_words() {
    let text = "//! tokio\nuse tokio::time; // tokio\nlet s = \"tokio \\\" tokio\";\nlet r = r#\"tokio\"#;\nlet c = '\"'; use x::tokio;\nlet my_tokio = tokio_like;\n#[cfg(test)]\nmod tests {\n use tokio;\n";
    let source = Source {
        path: PathBuf::from("routing/index.rs"),
        text: text.to_owned(),
        code: code_of(text),
    };
    let found = offences(&[source], RULES);
    let lines: Vec<&str> = found
        .iter()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        lines,
        ["src/routing/index.rs:2", "src/routing/index.rs:5"],
        "{found:?}"
    );
}
