//! What do stub engines say? Just enough that a picker takes them for idle engines, as cheaply as can be.
//!
//! One process answers for a whole pool: state report, models, version. Nothing is ever generated, and there are no
//! KV events, so a picker keeps its own account of what it sent where.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::Context as _;
use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Tokens a block, and blocks of one engine's pool: those of Qwen3-32B on two H100.
const BLOCK_SIZE: u32 = 16;
const BLOCKS: u32 = 19_208;

/// Serves `count` engines on consecutive loopback ports, after listing them in `endpoints_file`; ends with an error.
pub(super) async fn serve(
    count: u16,
    first_port: u16,
    model: &str,
    endpoints_file: &Path,
) -> anyhow::Result<()> {
    let host = IpAddr::from(Ipv4Addr::LOCALHOST);
    let router = router(model);
    let mut servers: JoinSet<io::Result<()>> = JoinSet::new();
    let mut endpoints = Vec::new();
    for n in 0..count {
        let port = first_port
            .checked_add(n)
            .context("the ports go beyond 65535")?;
        let listener = TcpListener::bind((host, port))
            .await
            .with_context(|| format!("cannot listen on {host}:{port}"))?;
        let router = router.clone();
        servers.spawn(async move { axum::serve(listener, router).await });
        endpoints.push(json!({ "name": format!("stub-{n}"), "address": host, "port": port }));
    }
    // JSON is YAML as well.
    let list = json!({ "endpoints": endpoints }).to_string();
    tokio::fs::write(endpoints_file, list)
        .await
        .with_context(|| format!("cannot write {}", endpoints_file.display()))?;
    tracing::info!(count, first_port, file = %endpoints_file.display(), "stub engines serve");
    while let Some(ended) = servers.join_next().await {
        ended?.context("a stub engine failed")?;
    }
    anyhow::bail!("there is no stub engine left")
}

fn router(model: &str) -> Router {
    let page = metrics(model);
    let models = json!({
        "object": "list",
        "data": [{ "id": model, "object": "model", "root": model, "max_model_len": 131_072 }],
    });
    let answer = |text: String| get(move || std::future::ready(text.clone()));
    Router::new()
        .route("/metrics", answer(page.clone()))
        // vLLM's filter by name needs the slash.
        .route("/metrics/", answer(page))
        .route("/v1/models", answer(models.to_string()))
        .route(
            "/version",
            answer(json!({ "version": "0.33.0" }).to_string()),
        )
        // An engine that publishes no events.
        .route("/kv_event_sources", answer("{}".to_owned()))
}

fn metrics(model: &str) -> String {
    let labels = format!("engine=\"0\",model_name=\"{model}\"");
    format!(
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n\
         # TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{{labels}}} 0.0\n\
         # HELP vllm:num_requests_waiting Number of requests waiting to be processed.\n\
         # TYPE vllm:num_requests_waiting gauge\n\
         vllm:num_requests_waiting{{{labels}}} 0.0\n\
         # HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.\n\
         # TYPE vllm:kv_cache_usage_perc gauge\n\
         vllm:kv_cache_usage_perc{{{labels}}} 0.1\n\
         # HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n\
         # TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"{BLOCK_SIZE}\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{BLOCKS}\"}} 1.0\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feeds::load_text::{Page, parse};

    #[test]
    fn the_page_is_a_whole_report() {
        let Page::Told(report, _) = parse(metrics("m").as_bytes()) else {
            panic!("no report");
        };
        assert_eq!(report.kv_usage, 0.1);
    }
}
