//! Which engines are to be examined?

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::feeds::pool::EventHints;
use crate::feeds::static_file;

/// One engine.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As the user named it.
    pub(super) name: String,
    /// Where it is.
    pub(super) address: SocketAddr,
    /// Where its events are said to be.
    pub(super) hints: EventHints,
}

/// Those of the URLs, then those of the file.
pub(super) async fn all(urls: &[String], file: Option<&Path>) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    for url in urls {
        targets.push(of_url(url).await?);
    }
    if let Some(path) = file {
        let text = tokio::fs::read_to_string(path)
            .await
            .with_context(|| format!("cannot read the endpoints file {}", path.display()))?;
        let pool = static_file::parse(&text, path)?;
        targets.extend(pool.members().map(|member| Target {
            name: member.endpoint.name.to_string(),
            address: member.endpoint.address,
            hints: member.events.clone(),
        }));
        if targets.is_empty() {
            bail!("the endpoints file {} lists no endpoint", path.display());
        }
    }
    Ok(targets)
}

async fn of_url(url: &str) -> anyhow::Result<Target> {
    let parsed = reqwest::Url::parse(url)
        .with_context(|| format!("{url:?} is no URL such as http://10.0.0.1:8000"))?;
    if parsed.scheme() != "http" {
        bail!("{url}: engines are asked over plain HTTP, so the URL begins with http://");
    }
    if parsed.path() != "/" {
        bail!("{url}: the engine's address without a path is needed, such as http://10.0.0.1:8000");
    }
    let host = parsed.host_str().unwrap_or_default();
    let port = parsed.port_or_known_default().unwrap_or(80);
    let place = format!("{host}:{port}");
    let address = tokio::net::lookup_host(&place)
        .await
        .with_context(|| format!("{url}: {host} cannot be resolved"))?
        .next()
        .with_context(|| format!("{url}: {host} has no address"))?;
    Ok(Target {
        name: url.trim_end_matches('/').to_owned(),
        address,
        hints: EventHints::default(),
    })
}
