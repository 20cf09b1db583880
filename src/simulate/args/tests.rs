//! Claims about what flags make of a fleet, and which they refuse before anything runs.

use super::*;

#[derive(Debug, clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: Args,
}

#[track_caller]
fn read(line: &str) -> Args {
    try_read(line).unwrap()
}

fn try_read(line: &str) -> Result<Args, clap::Error> {
    let words = std::iter::once("simulate").chain(line.split_whitespace());
    <Flags as clap::Parser>::try_parse_from(words).map(|flags| flags.args)
}

#[test]
fn each_policy_is_compared_once_and_an_unknown_one_is_refused_before_any_runs() {
    let policies = read("--policy lmetric,random,lmetric").policies();
    assert_eq!(policies.unwrap(), ["lmetric", "random"]);
    assert_eq!(read("").policies().unwrap(), policy::ALL);
    let variant = read("--policy least-prefill-load").policies();
    assert_eq!(variant.unwrap(), ["least-prefill-load"]);
    let error = read("--policy random,nonsense").policies().unwrap_err();
    assert_eq!(error.name, "nonsense");
}

#[test]
fn every_flag_of_the_engine_changes_a_profile_too_or_is_refused_beside_it() {
    const PROFILE: &str = "--profile rtx-4090-llama-3.1-8b";
    let engine = |line: &str| read(line).engine.settings().unwrap();
    let plain = engine(PROFILE);
    let changed = engine(&format!(
        "{PROFILE} --max-num-seqs 7 --max-num-batched-tokens 99 --kv-tokens 1600"
    ));
    assert_eq!(
        (plain.max_num_seqs, plain.max_num_batched_tokens),
        (256, 2048)
    );
    assert_eq!(
        (changed.max_num_seqs, changed.max_num_batched_tokens),
        (7, 99)
    );
    assert_eq!((changed.blocks, changed.max_model_len), (101, 1600));
    try_read(&format!("{PROFILE} --block-size 32")).unwrap_err();
    let preset = engine("--block-size 32");
    assert_eq!(preset.block_size.get(), 32);
    assert_eq!(
        (preset.max_num_seqs, preset.max_num_batched_tokens),
        (256, 8192)
    );
}

#[test]
fn a_pool_or_a_fleet_that_no_memory_holds_is_refused() {
    let refused = |args: &Args| {
        let error = args.scenario(Loop::Open).unwrap_err().to_string();
        assert!(error.contains("blocks"), "{error}");
    };
    refused(&read("--kv-tokens 18446744073709551615"));
    refused(&read("--replicas 4096 --block-size 1"));
    let mut search = read("--block-size 1");
    search.max_replicas = 4096;
    search.scenario(Loop::Open).unwrap();
    search.replicas_for = Some("p90 ttft < 1s".parse().unwrap());
    refused(&search);
    read("--replicas 4096").scenario(Loop::Open).unwrap();
}

#[test]
fn large_fleets_are_simulated_one_after_the_other_unless_asked_otherwise() {
    let threads = |line: &str| {
        let args = read(line);
        args.threads(&args.scenario(Loop::Open).unwrap())
    };
    assert_eq!(threads("--replicas 4096"), 1);
    assert_eq!(threads("--replicas 4096 --threads 3"), 3);
    assert_eq!(threads("--replicas 16"), parallel::cores().min(480));
}

#[test]
fn a_pool_that_was_asked_for_takes_requests_as_long_as_itself() {
    let engine = |line: &str| read(line).engine.settings().unwrap();
    let preset = engine("");
    let larger = engine("--kv-tokens 3000007");
    assert_eq!((larger.blocks, larger.max_model_len), (187_501, 3_000_000));
    assert!(larger.max_model_len > preset.max_model_len);
    let smaller = engine("--kv-tokens 1607");
    assert_eq!((smaller.blocks, smaller.max_model_len), (101, 1600));
    let measured = "--profile rtx-4090-llama-3.1-8b";
    let profile = engine(measured);
    let larger = engine(&format!("{measured} --kv-tokens 3000000"));
    assert_eq!(larger.max_model_len, profile.max_model_len);
}

#[test]
fn flags_of_a_trace_or_of_a_search_are_refused_without_it() {
    for flag in [
        "--limit 5",
        "--speed 2",
        "--trace-format mooncake",
        "--sessions 3",
        "--session-rate 1",
        "--max-think 1s",
        "--trace-block 16",
    ] {
        for beside in ["", "--workload fits", "--requests 9", "--rate 2 --zipf 1"] {
            let line = format!("{flag} {beside}");
            assert!(try_read(&line).is_err(), "{line}");
        }
        read(&format!("--trace a.jsonl {flag}"));
    }
    try_read("--max-replicas 5").unwrap_err();
    try_read("--trace a.jsonl --requests 5").unwrap_err();
    let words = [
        "simulate",
        "--max-replicas",
        "5",
        "--replicas-for",
        "p90 ttft < 1s",
    ];
    <Flags as clap::Parser>::try_parse_from(words).unwrap();
}

/// What a search for a TTFT below 30 s finds.
fn searched(line: &str) -> crate::simulate::search::Found<crate::simulate::outcome::Outcome> {
    let goal = Goal::p90_ttft(std::time::Duration::from_secs(30));
    let scenario = read(line).scenario(Loop::Open).unwrap();
    scenario.smallest("random", goal, 24, &mut |_| {}).unwrap()
}

#[test]
fn requests_longer_than_a_replica_accepts_end_a_search_and_are_counted() {
    let found = searched("--requests 30 --kv-tokens 4000 --replicas 3");
    assert_eq!((found.replicas, found.tried), (None, 2));
    assert_eq!((found.run.failed, found.run.too_long), (30, 30));
}

#[test]
fn a_search_with_an_outage_tries_only_fleets_that_have_the_replica() {
    let found = searched("--requests 30 --replicas 3");
    assert_eq!(found.replicas, Some(1));
    let found = searched("--requests 30 --replicas 3 --outage 15@1h+1s");
    assert_eq!(found.replicas, Some(16));
}
