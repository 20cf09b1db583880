//! Recorded pages of real engines, hand-made pages of others, and any bytes at all.

use proptest::prelude::*;

use super::*;

/// A recorded file of the shared data, or `None` with a line saying what is left out.
fn capture(name: &str) -> Option<String> {
    let Some(shared) = std::env::var_os("WARMPATH_SHARED") else {
        println!("WARMPATH_SHARED is not set: {name} is left out");
        return None;
    };
    let path = std::path::Path::new(&shared)
        .join("data/captures")
        .join(name);
    Some(std::fs::read_to_string(path).unwrap())
}

/// The part of a recording under the heading that contains `heading`.
fn section<'a>(recording: &'a str, heading: &str) -> &'a str {
    let from = recording.split("##### ").find(|part| {
        part.lines()
            .next()
            .is_some_and(|line| line.contains(heading))
    });
    from.unwrap_or_else(|| panic!("no section {heading}"))
}

fn told(page: &str) -> Report {
    match parse(page.as_bytes()) {
        Page::Told(report, _) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_filtered_page_of_a_loaded_vllm_is_read() {
    let Some(recording) = capture("vllm-0.31-metrics.txt") else {
        return;
    };
    let page = section(
        &recording,
        "load (22 requests, --max-num-seqs 16): GET /metrics/?name[]",
    );
    let report = told(page);
    assert_eq!((report.running, report.waiting), (16, 6));
    assert!(report.kv_usage > 0.0 && report.kv_usage < 1.0, "{report:?}");
    assert_eq!(report.block_size, Some(32));
    assert_eq!(report.kv_capacity, Some(TokenCount::new(12_800)));
}

#[test]
fn the_whole_page_is_read_like_the_filtered_one() {
    let Some(recording) = capture("vllm-0.31-metrics.txt") else {
        return;
    };
    let whole = told(section(&recording, "load: GET /metrics (9.5 ms"));
    assert_eq!(whole.finished, Some(37));
    // Taken a moment after the filtered one: the waiting requests have run by then.
    assert_eq!((whole.running, whole.waiting), (6, 0));
    assert_eq!(whole.kv_capacity, Some(TokenCount::new(12_800)));
}

#[test]
fn an_old_vllm_has_its_capacity_from_blocks() {
    let Some(recording) = capture("vllm-0.20-metrics.txt") else {
        return;
    };
    let report = told(&recording);
    assert_eq!(report.block_size, Some(32));
    assert_eq!(report.kv_capacity, Some(TokenCount::new(400 * 32)));
}

#[test]
fn ranks_are_summed_for_requests_and_the_fullest_counts_for_usage() {
    let Some(recording) = capture("qwen3-dp2-2api-metrics.txt") else {
        return;
    };
    let report = told(section(&recording, "load, full page: GET /metrics"));
    assert_eq!((report.running, report.waiting), (5, 0));
    assert!((report.kv_usage - 0.157_894).abs() < 1e-4, "{report:?}");
    // 800 blocks are the sum of two ranks.
    assert_eq!(report.kv_capacity, Some(TokenCount::new(12_800)));
}

#[test]
fn before_the_first_step_missing_gauges_are_zero_and_an_empty_answer_is_foreign() {
    let Some(recording) = capture("qwen3-dp2-2api-metrics.txt") else {
        return;
    };
    let report = told(section(
        &recording,
        "before any request: GET /metrics status",
    ));
    assert_eq!(
        (report.running, report.waiting, report.kv_usage),
        (0, 0, 0.0)
    );
    let heading = "before any request: GET /metrics/?name[]";
    let (_, body) = section(&recording, heading).split_once('\n').unwrap();
    assert_eq!(parse(body.as_bytes()), Page::Foreign);
}

#[test]
fn announced_families_without_samples_are_an_engine_before_its_first_step() {
    let page = b"# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n";
    assert_eq!(parse(page), Page::Announced);
    assert_eq!(
        parse(b"# TYPE go_goroutines gauge\ngo_goroutines 7\n"),
        Page::Foreign
    );
}

#[test]
fn capacity_is_divided_by_ranks_when_only_blocks_are_told() {
    let page = "vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"800\"} 1.0\n\
                vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"800\"} 1.0\n";
    assert_eq!(told(page).kv_capacity, Some(TokenCount::new(400 * 16)));
}

#[test]
fn old_names_and_other_engines_are_read() {
    let report = told("vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n");
    assert_eq!(report.kv_usage, 0.25);

    let sglang = "sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\"} 3.0\n\
                  sglang:num_running_reqs{tp_rank=\"1\",dp_rank=\"0\"} 3.0\n\
                  sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"1\"} 2.0\n\
                  sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"1\",priority=\"5\"} 1.0\n\
                  sglang:num_queue_reqs{tp_rank=\"0\"} 4.0\n\
                  sglang:token_usage{tp_rank=\"0\"} 0.5\n\
                  sglang:page_size{tp_rank=\"0\"} 64\n\
                  sglang:max_total_num_tokens{tp_rank=\"0\"} 1.0e+05\n";
    let report = told(sglang);
    assert_eq!((report.running, report.waiting), (5, 4));
    assert_eq!(
        (report.block_size, report.kv_capacity),
        (Some(64), Some(TokenCount::new(100_000)))
    );

    let trt = "trtllm_kv_cache_utilization{} 0.75\ntrtllm_kv_cache_max_blocks 100\n\
               trtllm_kv_cache_tokens_per_block 32\ntrtllm_num_requests_waiting 9\n";
    let report = told(trt);
    assert_eq!((report.kv_usage, report.waiting), (0.75, 9));
    assert_eq!(report.kv_capacity, Some(TokenCount::new(3_200)));
}

#[test]
fn finished_requests_are_summed_over_all_labels_under_each_engines_name() {
    for page in [
        "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"} 5\n\
         vllm:request_success_total{engine=\"1\",finished_reason=\"length\"} 37.0\n\
         vllm:request_success_created{engine=\"0\",finished_reason=\"stop\"} 1.795975730269727e+09\n",
        "sglang:num_requests_total{is_streaming=\"true\"} 40\nsglang:num_requests_total{is_streaming=\"false\"} 2\n",
        "trtllm_request_success_total{finished_reason=\"stop\"} 42\n",
    ] {
        let with_gauge = format!("{page}vllm:num_requests_running 1\n");
        assert_eq!(told(&with_gauge).finished, Some(42), "{page}");
        // A filter that lets only the counter through tells nothing of gauges.
        assert_eq!(parse(page.as_bytes()), Page::Foreign, "{page}");
    }
    assert_eq!(told("vllm:num_requests_running 1\n").finished, None);
}

#[test]
fn computed_and_fresh_tokens_are_read_under_each_engines_names() {
    for (page, computed, fresh) in [
        (
            "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 100\n\
             vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 20\n\
             vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"} 150\n\
             vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} 64\n\
             vllm:prompt_tokens_created{engine=\"0\"} 1.79e+09\n",
            Some(120),
            Some(106),
        ),
        (
            "sglang:prompt_tokens_total{tp_rank=\"0\"} 100\nsglang:prompt_tokens_total{tp_rank=\"1\"} 100\n\
             sglang:generation_tokens_total 20\n\
             sglang:cached_tokens_total{cache_source=\"device\"} 30\n\
             sglang:cached_tokens_total{cache_source=\"host\"} 4\n",
            Some(120),
            Some(86),
        ),
        (
            "trtllm_prompt_tokens_total 100\ntrtllm_prompt_cached_tokens_total 40\n",
            Some(100),
            Some(60),
        ),
        ("vllm:prompt_tokens_total 100\n", Some(100), None),
        ("vllm:generation_tokens_total 100\n", None, None),
    ] {
        let report = told(&format!("{page}vllm:num_requests_running 1\n"));
        assert_eq!((report.computed, report.fresh), (computed, fresh), "{page}");
        assert_eq!(parse(page.as_bytes()), Page::Foreign, "{page}");
    }
}

#[test]
fn counters_of_ranks_are_their_own_and_the_wholes_are_their_sum() {
    let Some(recording) = capture("qwen3-dp2-2api-metrics.txt") else {
        return;
    };
    let page = section(&recording, "after the requests, idle: GET /metrics status");
    let Page::Told(whole, ranks) = parse(page.as_bytes()) else {
        panic!("no report");
    };
    let counted = |report: &Report| (report.computed, report.fresh);
    assert_eq!(counted(&ranks[&0]), (Some(859), Some(539)));
    assert_eq!(counted(&ranks[&1]), (Some(1494), Some(1014)));
    assert_eq!(counted(&whole), (Some(2353), Some(1553)));
    assert!(!whole.asleep);
}

#[test]
fn an_engine_in_any_state_but_awake_is_asleep_and_a_rank_for_itself() {
    let page = |engine: u32, states: [u8; 3]| {
        let names = ["awake", "weights_offloaded", "discard_all"];
        let line = |(name, value): (&str, u8)| {
            format!(
                "vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"{name}\"}} {value}.0\n"
            )
        };
        names.into_iter().zip(states).map(line).collect::<String>()
    };
    for (states, asleep) in [
        ([1, 0, 0], false),
        ([0, 1, 0], true),
        ([0, 0, 1], true),
        ([0, 0, 0], true),
    ] {
        assert_eq!(told(&page(0, states)).asleep, asleep, "{states:?}");
    }
    let both = page(0, [1, 0, 0]) + &page(1, [0, 1, 0]);
    let Page::Told(whole, ranks) = parse(both.as_bytes()) else {
        panic!("a report");
    };
    assert!(whole.asleep && !ranks[&0].asleep && ranks[&1].asleep);
    assert!(!told("vllm:num_requests_running 1\n").asleep);
}

#[test]
fn labels_are_unescaped_and_timestamps_ignored() {
    let page =
        "vllm:num_requests_running{model_name=\"a\\\"}, b\\\\\",engine=\"0\"} 7 1700000000\r\n";
    assert_eq!(told(page).running, 7);
}

#[test]
fn nonsense_values_are_bounded() {
    let page =
        "vllm:num_requests_running -3\nvllm:kv_cache_usage_perc 7\nvllm:num_requests_waiting NaN\n";
    let report = told(page);
    assert_eq!(
        (report.running, report.waiting, report.kv_usage),
        (0, 0, 1.0)
    );
}

proptest! {
    #[test]
    fn any_bytes_are_a_page(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        parse(&bytes);
    }

    #[test]
    fn any_line_that_begins_like_ours_is_survived(
        rest in "(\\{[a-z\"=,\\\\ ]{0,20}\\}?)? ?[-0-9.eE+NaInf ]{0,10}.{0,5}",
    ) {
        for name in ASKED_OF_VLLM.iter().chain(&["sglang:token_usage", "trtllm_prompt_tokens_total"]) {
            parse(format!("{name}{rest}").as_bytes());
        }
    }
}

#[test]
fn ranks_are_told_apart_as_the_recorded_page_of_two_tells_them() {
    let page = "vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"800\"} 1.0\n\
                vllm:cache_config_info{block_size=\"32\",engine=\"1\",num_gpu_blocks=\"800\"} 1.0\n\
                vllm:num_requests_running{engine=\"0\",model_name=\"qwen3\"} 1.0\n\
                vllm:num_requests_running{engine=\"1\",model_name=\"qwen3\"} 4.0\n\
                vllm:num_requests_waiting{engine=\"1\",model_name=\"qwen3\"} 2.0\n\
                vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"qwen3\"} 0.125\n";
    let Page::Told(whole, ranks) = parse(page.as_bytes()) else {
        panic!("not told");
    };
    assert_eq!(
        (whole.running, whole.waiting, whole.kv_usage),
        (5, 2, 0.125)
    );
    let of = |rank: u32| {
        let report = ranks[&rank];
        (report.running, report.waiting, report.kv_usage)
    };
    assert_eq!((of(0), of(1)), ((1, 0, 0.125), (4, 2, 0.0)));
    // The number of blocks is the sum over ranks in each rank's series.
    for report in ranks.values().chain([&whole]) {
        assert_eq!(report.kv_capacity.map(|tokens| tokens.get()), Some(12_800));
        assert_eq!(report.block_size, Some(32));
    }
    assert_eq!(ranks.len(), 2);
}

#[test]
fn a_rank_that_no_deployment_has_is_none_and_its_requests_count_all_the_same() {
    let page =
        "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1024\"} 2\n";
    let Page::Told(whole, ranks) = parse(page.as_bytes()) else {
        panic!("a report");
    };
    assert_eq!(whole.running, 3);
    assert!(ranks.keys().eq(&[0]));
}
