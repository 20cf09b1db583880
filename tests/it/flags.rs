//! The command line of other endpoint pickers: the program starts with it and says what of it has no meaning here.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use clap::CommandFactory as _;
use serde_json::Value;
use warmpath::args::Args;

const CONFIG: &str = "apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
tomorrow: true
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.file(
            "endpoints.yaml",
            "endpoints:\n  - {name: vllm-0, address: 127.0.0.1, port: 1}\n",
        );
        folder
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        command
            .args(["serve", "-endpoints-file"])
            .arg(self.0.path().join("endpoints.yaml"))
            .args(["-bind=127.0.0.1", "-grpc-port=0", "--grpc-health-port", "0"])
            .args([
                "--metrics-port=0",
                "-secure-serving=F",
                "--zap-encoder",
                "json",
            ])
            .args(flags)
            .env_remove("RUST_LOG");
        command
    }

    /// The warnings up to the moment that it serves.
    fn warnings(&self, flags: &[&str], variable: Option<(&str, &str)>) -> Vec<Value> {
        let mut child = self
            .command(flags)
            .envs(variable)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut warnings = Vec::new();
        let mut serves = false;
        for line in lines {
            let line = line.unwrap();
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            serves = line["message"] == "picker serves";
            if serves {
                break;
            }
            if line["level"] == "WARN" {
                warnings.push(line);
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(serves, "{warnings:?}");
        warnings
    }

    /// What it says when it does not start.
    fn refusal(&self, flags: &[&str]) -> String {
        let Output { status, stderr, .. } = self.command(flags).output().unwrap();
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{text}");
        let last = text.lines().last().unwrap_or_default();
        last.strip_prefix("warmpath: ").expect(&text).to_owned()
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn each_flag_and_each_part_of_a_config_is_told_once() {
    let folder = Folder::new();
    let config = folder.file("config.yaml", CONFIG);
    let flags = [
        "-v",
        "1",
        "--ha-enable-leader-election",
        "-refresh-metrics-interval",
        "50ms",
        "--enable-cert-reload",
        "--tracing=false",
        "--drain-timeout",
        "1m30s",
        "--config-file",
        path(&config),
    ];
    let warnings = folder.warnings(&flags, None);
    let told: Vec<_> = warnings
        .iter()
        .map(|line| {
            line["flag"]
                .as_str()
                .or_else(|| line["part"].as_str())
                .unwrap()
        })
        .collect();
    assert_eq!(
        told,
        [
            "--ha-enable-leader-election=true",
            "--refresh-metrics-interval=50ms",
            "plugins: queue-scorer",
            "plugins: prefix-cache-scorer",
            "plugins: max-score-picker",
            "schedulingProfiles: default",
            "tomorrow",
        ]
    );
    let instead = |at: usize| warnings[at]["instead"].as_str().unwrap();
    assert!(instead(0).starts_with("replicas run active-active: each is ready"));
    assert!(instead(3).starts_with("the rule itself"));
    assert_eq!(instead(6), "nothing takes its place");

    let by_text = folder.warnings(&["--config-text", CONFIG], None);
    assert_eq!(by_text.len(), 5);
}

#[test]
fn without_anything_foreign_nothing_is_said() {
    assert_eq!(
        Folder::new().warnings(&["--v=2"], None),
        Vec::<Value>::new()
    );
}

#[test]
fn the_conformance_headers_are_asked_for_by_flag_or_environment_and_that_is_told() {
    let folder = Folder::new();
    const VARIABLE: &str = "WARMPATH_CONFORMANCE_TEST_HEADERS";
    let by_flag = folder.warnings(&["--conformance-test-headers"], None);
    let by_variable = folder.warnings(&[], Some((VARIABLE, "true")));
    for warnings in [by_flag, by_variable] {
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let message = warnings[0]["message"].as_str().unwrap();
        assert!(message.contains("conformance"), "{message}");
    }
    // A manifest may set a variable to nothing to take it back.
    for off in ["false", ""] {
        assert!(folder.warnings(&[], Some((VARIABLE, off))).is_empty());
    }
    let mut odd = folder.command(&[]);
    let refused = odd.env(VARIABLE, "yes").output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("'yes' for '--conformance-test-headers"),
        "{said}"
    );
    // The flag says otherwise than the environment.
    let off = folder.warnings(
        &["--conformance-test-headers=false"],
        Some((VARIABLE, "true")),
    );
    assert!(off.is_empty(), "{off:?}");
}

#[test]
fn a_file_of_the_wrong_kind_is_refused_with_the_flag_that_takes_it() {
    let folder = Folder::new();
    let theirs = folder.file("theirs.yaml", CONFIG);
    let ours = folder.file("ours.yaml", "guards: {kv_usage_limit: 0.9}\n");
    let broken = folder.file("broken.yaml", "plugins: [\n");
    let list = folder.file("list.yaml", "- plugins\n");
    for (flags, expected) in [
        (
            ["--config-file", path(&ours)],
            "ours.yaml is a settings file of Warmpath (it has `guards`): pass it by --config;",
        ),
        (
            ["--config", path(&theirs)],
            "theirs.yaml is an EndpointPickerConfig: pass it by --config-file;",
        ),
        (["--config-file", path(&broken)], "broken.yaml:1:"),
        (
            ["--config-file", path(&list)],
            "list.yaml: an EndpointPickerConfig has keys with values",
        ),
        (
            ["--config-file", "/no/such/file"],
            "--config-file: cannot read /no/such/file: No such file",
        ),
        (["--config-text", "a: [\n"], "--config-text:1:"),
    ] {
        let refusal = folder.refusal(&flags);
        assert!(refusal.contains(expected), "{flags:?}: {refusal}");
    }
}

/// The flags of `serve`, those of other pickers apart.
fn flags_of_serve() -> [BTreeSet<String>; 2] {
    let mut command = Args::command();
    command.build();
    let serve = command.find_subcommand("serve").unwrap();
    let mut flags = [BTreeSet::new(), BTreeSet::new()];
    for argument in serve.get_arguments() {
        let Some(name) = argument.get_long() else {
            continue;
        };
        let of_others = argument
            .get_help_heading()
            .is_some_and(|heading| heading.contains("other endpoint pickers"));
        flags[usize::from(of_others)].insert(format!("--{name}"));
    }
    flags
}

fn page(name: &str) -> String {
    std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("docs")
            .join(name),
    )
    .unwrap()
}

#[test]
fn every_flag_is_documented_and_every_documented_one_exists() {
    let [own, others] = flags_of_serve();
    let documented: BTreeSet<_> = page("configuration.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', ' ', '[']).next())
        .filter(|flag| flag.starts_with("--"))
        .map(str::to_owned)
        .collect();
    let own: BTreeSet<_> = own
        .difference(&["--help".to_owned()].into())
        .cloned()
        .collect();
    assert_eq!(documented, own);

    let migrating = page("migrating.md");
    let told: BTreeSet<_> = migrating
        .lines()
        .filter(|line| line.starts_with("| `-"))
        .flat_map(|row| row.split(" | ").next().unwrap_or_default().split('`'))
        .filter_map(|word| word.split(['=', ' ']).next())
        .filter(|word| word.starts_with("--"))
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = others.difference(&told).collect();
    assert!(
        missing.is_empty(),
        "missing in docs/migrating.md: {missing:?}"
    );
    let invented: Vec<_> = told
        .iter()
        .filter(|flag| !own.contains(*flag) && !others.contains(*flag))
        .collect();
    assert!(
        invented.is_empty(),
        "only in docs/migrating.md: {invented:?}"
    );
}

#[test]
fn the_long_help_lists_the_flags_of_others_apart() {
    let help = |flag: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_warmpath"))
            .args(["serve", flag])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (own, others) = help("--help")
        .split_once("Flags of other endpoint pickers, accepted:")
        .map(|(own, others)| (own.to_owned(), others.to_owned()))
        .expect("a heading");
    assert!(own.contains("--pool-name") && own.contains("--metrics-endpoint-auth"));
    for flag in [
        "--config-file",
        "--zap-encoder",
        "--tracing",
        "--tls-min-version",
    ] {
        assert!(others.contains(flag) && !own.contains(flag), "{flag}");
    }
    assert!(!help("-h").contains("--tls-min-version"));
}
