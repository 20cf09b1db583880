//! Command lines as deployments write them, and what becomes of each.

use std::time::Duration;

use super::*;

fn read(flags: &[&str]) -> Result<Args, clap::Error> {
    let line = ["warmpath", "serve", "--endpoints-file", "f"];
    Args::read(line.iter().chain(flags).map(OsString::from))
}

fn serve(flags: &[&str]) -> Result<Serve, clap::Error> {
    match read(flags)?.command {
        Command::Serve(serve) => Ok(serve),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    Args::command().debug_assert();
}

#[test]
fn defaults_are_those_of_a_gateways_endpoint_picker() {
    let serve = serve(&[]).unwrap();
    assert_eq!(
        (serve.grpc_port, serve.grpc_health_port, serve.metrics_port),
        (9002, 9003, 9090)
    );
    assert!(serve.secure_serving);
    assert!(!serve.metrics_endpoint_auth);
    assert!(!serve.conformance_test_headers);
    assert_eq!(serve.drain_timeout.0, Duration::from_secs(30));
    assert_eq!(serve.other_pickers.notes().len(), 0);
}

#[test]
fn secure_serving_takes_an_optional_value() {
    assert!(serve(&["--secure-serving"]).unwrap().secure_serving);
    assert!(!serve(&["--secure-serving=false"]).unwrap().secure_serving);
    assert!(!serve(&["-secure-serving=0"]).unwrap().secure_serving);
    assert!(serve(&["--secure-serving=perhaps"]).is_err());
    // A word that follows is none of its: to take it for one or to pass over it would be wrong either way.
    assert!(serve(&["--secure-serving", "false"]).is_err());
}

#[test]
fn a_duration_without_unit_is_refused_with_an_example() {
    let error = serve(&["--drain-timeout", "30"]).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("`30` is not a duration"),
        "{error}"
    );
    let drains = serve(&["--drain-delay", "0s", "--drain-timeout", "1m30s"]).unwrap();
    assert!(drains.drain_delay.0.is_zero());
    assert_eq!(drains.drain_timeout.0, Duration::from_secs(90));
}

#[test]
fn what_the_conformance_manifests_pass_is_taken() {
    let line = "warmpath serve --pool-name primary --pool-namespace apps --zap-encoder json \
                --grpc-port 9002 --grpc-health-port 9003";
    let args = Args::read(line.split_whitespace().map(OsString::from)).unwrap();
    assert_eq!(args.log_format(), Format::Json);
    let Command::Serve(serve) = args.command else {
        panic!("another command");
    };
    assert_eq!(serve.discovery.pool_name.as_deref(), Some("primary"));
    assert_eq!(serve.discovery.pool_namespace.as_deref(), Some("apps"));
    assert_eq!(serve.other_pickers.notes().len(), 0);
}

#[test]
fn levels_by_number_and_by_zaps_words_are_levels_here() {
    for (flags, level) in [
        (&["-v", "1"][..], "info"),
        (&["-v=3"], "info"),
        (&["-v4"], "info,warmpath=debug"),
        (&["--v", "5"], "info,warmpath=trace"),
        (&["--v=9"], "info,warmpath=trace"),
        (&["--v=-1"], "info"),
        (&["--zap-log-level=error", "-v", "5"], "error"),
        (&["--zap-log-level", "debug"], "info,warmpath=debug"),
        (&["--zap-log-level", "5"], "info,warmpath=trace"),
        (&["--zap-devel"], "info,warmpath=debug"),
        (&["--log-level", "warn", "-v", "5"], "warn"),
        (&[], "info"),
    ] {
        assert_eq!(read(flags).unwrap().log_level(), level, "{flags:?}");
    }
    for flags in [
        &["--zap-log-level=loud"][..],
        &["--zap-log-level=0"],
        &["-v"],
        &["-v", "x"],
    ] {
        assert!(read(flags).is_err(), "{flags:?}");
    }
    let text = read(&["--log-format", "text", "--zap-encoder=json"]).unwrap();
    assert_eq!(text.log_format(), Format::Text);
    assert_eq!(read(&[]).unwrap().log_format(), Format::Text);
}

/// Every flag of the reference pickers that has no meaning here, with a value that asks for something else.
const UNHEEDED: [&str; 29] = [
    "--enable-cert-reload=false",
    "--ha-enable-leader-election=true",
    "--disable-endpoint-subset-filter=true",
    "--emit-endpoint-scores=true",
    "--tracing=true",
    "--health-checking=false",
    "--enable-pprof=true",
    "--enable-grpc-stream-metrics=false",
    "--allow-experimental-plugins=true",
    "--model-server-metrics-scheme=https",
    "--model-server-metrics-path=/prometheus/metrics",
    "--model-server-metrics-port=8081",
    "--model-server-metrics-https-insecure-skip-verify=false",
    "--refresh-metrics-interval=50ms",
    "--refresh-prometheus-metrics-interval=5s",
    "--metrics-staleness-threshold=2s",
    "--total-queued-requests-metric=vllm:num_requests_waiting",
    "--total-running-requests-metric=vllm:num_requests_running",
    "--kv-cache-usage-percentage-metric=vllm:kv_cache_usage_perc",
    "--lora-info-metric=vllm:lora_requests_info",
    "--cache-info-metric=vllm:cache_config_info",
    "--grpc-max-recv-msg-size=16Mi",
    "--grpc-max-send-msg-size=16Mi",
    "--tls-min-version=VersionTLS13",
    "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
    "--metrics-cert-dir=/certs",
    "--metrics-client-ca-file=/ca.crt",
    "--zap-stacktrace-level=error",
    "--zap-time-encoding=iso8601",
];

#[test]
fn an_empty_level_is_as_good_as_none() {
    assert_eq!(read(&["--log-level="]).unwrap().log_level(), "info");
    let debug = read(&["--log-level= ", "-v=4"]).unwrap();
    assert_eq!(debug.log_level(), "info,warmpath=debug");
}

#[test]
fn each_flag_without_a_meaning_is_told_once_with_what_takes_its_place() {
    for flag in UNHEEDED {
        let notes = serve(&[flag]).unwrap().other_pickers.notes().to_vec();
        let [note] = notes.as_slice() else {
            panic!("{flag}: {notes:?}");
        };
        assert_eq!(note.flag, flag);
        assert!(note.instead.len() > 15, "{note:?}");
        assert!(!note.instead.contains('\n'), "{note:?}");
    }
    let all = serve(&UNHEEDED).unwrap().other_pickers.notes().to_vec();
    assert_eq!(all.len(), UNHEEDED.len());
}

#[test]
fn the_forms_of_other_programs_are_told_alike() {
    for form in [
        &["-tracing"][..],
        &["--tracing"],
        &["-tracing=T"],
        &["--tracing=true"],
        &["--tracing=false", "--tracing=true"],
    ] {
        let notes = serve(form).unwrap().other_pickers.notes().to_vec();
        assert_eq!(notes.len(), 1, "{form:?}");
        assert_eq!(notes[0].flag, "--tracing=true");
    }
    let apart = serve(&["-metrics-cert-dir", "/c"]).unwrap();
    assert_eq!(apart.other_pickers.notes()[0].flag, "--metrics-cert-dir=/c");
}

#[test]
fn what_asks_for_what_happens_anyway_is_not_worth_a_line() {
    let flags = [
        "--enable-cert-reload",
        "--ha-enable-leader-election=false",
        "--tracing=false",
        "--health-checking",
        "--enable-pprof=false",
        "--enable-grpc-stream-metrics",
        "--model-server-metrics-scheme=http",
        "--model-server-metrics-path=/metrics",
        "--model-server-metrics-port=0",
    ];
    assert_eq!(serve(&flags).unwrap().other_pickers.notes().len(), 0);
}

#[test]
fn the_last_of_several_values_counts() {
    let serve = serve(&["-v=1", "--grpc-port=1", "--grpc-port", "2", "-v", "4"]).unwrap();
    assert_eq!((serve.grpc_port, serve.other_pickers.v), (2, Some(4)));
}

#[test]
fn ports_named_in_several_flags_add_up() {
    let ports = |words: &[&str]| {
        let line = ["warmpath", "serve", "--endpoint-selector", "app=a"];
        let args = Args::read(line.iter().chain(words).map(OsString::from)).unwrap();
        let Command::Serve(serve) = args.command else {
            panic!("another command");
        };
        serve.discovery.endpoint_target_ports
    };
    for words in [
        &["--endpoint-target-ports=8000,8001"][..],
        &[
            "-endpoint-target-ports",
            "8000",
            "--endpoint-target-ports=8001",
        ],
    ] {
        assert_eq!(ports(words), [8000, 8001], "{words:?}");
    }
}

#[test]
fn unknown_flags_stay_errors_with_a_suggestion() {
    let error = serve(&["--grpc-prot", "9002"]).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("--grpc-port"), "{error}");
    assert!(serve(&["-grpc-prot", "9002"]).is_err());
    assert!(serve(&["--config-file=a", "--config-text=b"]).is_err());
}

#[test]
fn words_of_other_commands_are_left_alone() {
    let line = ["warmpath", "engine", "-port", "1"];
    assert!(Args::read(line.iter().map(OsString::from)).is_err());
    let log = [
        "warmpath",
        "--log-level",
        "debug",
        "serve",
        "-endpoints-file",
        "f",
    ];
    let args = Args::read(log.iter().map(OsString::from)).unwrap();
    assert_eq!(args.log_level(), "debug");
}
