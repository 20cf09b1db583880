//! The pool from a file: no Kubernetes at all.
//!
//! The file is read once a second and compared by content, which sees atomic renames and the
//! symlink swaps of ConfigMaps alike. A version that is not valid is refused as a whole.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_yaml::Spanned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::pool::{EventHints, Member, Pool, PoolBuilder};
use crate::metrics::pool::PoolMetrics;
use crate::readiness::Readiness;
use crate::routing::endpoint::{Endpoint, EndpointName};
use crate::yaml::{self, Located};

/// How often the file is looked at. Reading a page of a few KB from the page cache takes microseconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a file gives no pool.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the endpoints file {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It was understood up to here.
    #[error("{}:{line}:{column}: {problem}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What is wrong there, with which endpoint, and what was expected.
        problem: String,
    },
}

/// An endpoints file and its version in force.
#[derive(Debug)]
pub struct EndpointsFile {
    path: PathBuf,
    /// The text last looked at, in force or refused.
    text: String,
    pool: Arc<Pool>,
}

impl EndpointsFile {
    /// Reads the first version.
    ///
    /// # Errors
    /// When the file cannot be read or is not valid: there is no older version to keep.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let pool = Arc::new(parse(&text, path)?);
        Ok(Self {
            path: path.to_owned(),
            text,
            pool,
        })
    }

    /// The version in force.
    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// Looks at the file about once a second until `stop`, and sends each new valid version.
    pub async fn watch(
        mut self,
        pool: watch::Sender<Option<Arc<Pool>>>,
        readiness: Readiness,
        metrics: Arc<PoolMetrics>,
        stop: CancellationToken,
    ) {
        metrics.accepted();
        let mut problem = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            let seen = match self.look().await {
                Ok(None) if problem.is_none() => continue,
                // Unreadable for a while, and now the text we know: it stands as it stood.
                Ok(None) => match parse(&self.text, &self.path) {
                    Ok(_same) => Ok(false),
                    Err(error) => Err(error),
                },
                Ok(Some(next)) => {
                    let endpoints = next.members().len();
                    self.pool = Arc::new(next);
                    metrics.accepted();
                    info!(endpoints, "endpoints file has a new version");
                    Ok(true)
                }
                Err(error) => Err(error),
            };
            match seen {
                Ok(new) => {
                    problem = None;
                    readiness.set_degraded("endpoints file", None);
                    if new {
                        pool.send_replace(Some(self.pool()));
                    }
                }
                Err(error) => {
                    let told = with_causes(&error);
                    if problem.as_ref() != Some(&told) {
                        warn!(
                            error = told,
                            "endpoints file is refused, the pool stays as it was"
                        );
                        metrics.refused();
                        readiness.set_degraded("endpoints file", Some(told.clone()));
                        problem = Some(told);
                    }
                }
            }
        }
    }

    /// The pool of a text not seen before; `None` when the text is the one last looked at.
    async fn look(&mut self) -> Result<Option<Pool>, FileError> {
        let text = tokio::fs::read_to_string(&self.path)
            .await
            .map_err(|source| FileError::Unreadable {
                path: self.path.clone(),
                source,
            })?;
        if text == self.text {
            return Ok(None);
        }
        self.text = text;
        parse(&self.text, &self.path).map(Some)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    endpoints: Vec<RawEndpoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEndpoint {
    name: Spanned<String>,
    #[serde(default)]
    namespace: Option<Spanned<String>>,
    address: Spanned<String>,
    /// A string or a number: scalars read as text either way.
    port: Spanned<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// An error and its causes on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        line = format!("{line}: {inner}");
        cause = inner.source();
    }
    line
}

/// Reads an endpoints file's text; `path` is for messages only.
///
/// # Errors
/// When it is not a valid endpoints file.
pub fn parse(text: &str, path: &Path) -> Result<Pool, FileError> {
    pool_of(text).map_err(|located| FileError::Invalid {
        path: path.to_owned(),
        line: located.line,
        column: located.column,
        problem: located.problem,
    })
}

fn pool_of(text: &str) -> Result<Pool, Located> {
    if text.trim().is_empty() {
        return Err(Located {
            line: 1,
            column: 1,
            problem: "the file is empty, missing field `endpoints`".to_owned(),
        });
    }
    let file: RawFile = yaml::read(text)?;
    let mut builder = PoolBuilder::default();
    for raw in &file.endpoints {
        let member = member(raw)?;
        let name = member.endpoint.name.clone();
        builder
            .add(member)
            .map_err(|error| at(&raw.name, format!("endpoint {name}: {error}")))?;
    }
    Ok(builder.finish())
}

fn at<T>(place: &Spanned<T>, problem: String) -> Located {
    Located {
        line: place.referenced.line(),
        column: place.referenced.column(),
        problem,
    }
}

fn member(raw: &RawEndpoint) -> Result<Member, Located> {
    let namespace = match &raw.namespace {
        Some(namespace) => word(namespace, "namespace")?,
        None => "default",
    };
    let name = EndpointName::new(namespace, word(&raw.name, "name")?);
    let ip = match raw.address.value.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() && !ip.is_multicast() => ip,
        _ => {
            let written = &raw.address.value;
            let expected = "an IPv4 or IPv6 address of one host (host names are not resolved)";
            let problem = format!("endpoint {name}: address `{written}` is not {expected}");
            return Err(at(&raw.address, problem));
        }
    };
    let port = match raw.port.value.parse::<u16>() {
        Ok(port) if port != 0 => port,
        _ => {
            let written = &raw.port.value;
            let expected = "a whole number from 1 to 65535";
            let problem = format!("endpoint {name}: port `{written}` is not {expected}");
            return Err(at(&raw.port, problem));
        }
    };
    Ok(Member {
        endpoint: Endpoint {
            name,
            address: SocketAddr::new(ip, port),
            labels: raw.labels.clone().unwrap_or_default(),
            incarnation: String::new(),
            rank: None,
        },
        // A file has no notion of readiness: what it names may be used, and the guards do the rest.
        ready: true,
        restarts: 0,
        events: EventHints::default(),
    })
}

/// A name that can stand in `namespace/name`, a log line and a label.
fn word<'a>(written: &'a Spanned<String>, what: &str) -> Result<&'a str, Located> {
    let value = written.value.as_str();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if value.is_empty() || value.len() > 253 || !value.chars().all(allowed) {
        let expected = "1 to 253 letters, digits, `-`, `_` or `.`";
        let problem = format!("endpoint {what} `{value}` is not {expected}");
        return Err(at(written, problem));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text, Path::new("pool.yaml")).unwrap_err().to_string()
    }

    #[test]
    fn yaml_and_json_give_the_same_pool() {
        let yaml = "endpoints:\n  - name: vllm-0\n    address: 127.0.0.2\n    port: \"8000\"\n    labels: {zone: a}\n  - {name: vllm-1, namespace: prod, address: \"fd00::1\", port: 8001}\n";
        let json = r#"{"endpoints":[
            {"name":"vllm-0","namespace":"default","address":"127.0.0.2","port":8000,"labels":{"zone":"a"}},
            {"name":"vllm-1","namespace":"prod","address":"fd00::1","port":"8001"}]}"#;
        let pool = parse(yaml, Path::new("f")).unwrap();
        assert_eq!(pool, parse(json, Path::new("f")).unwrap());
        let addresses: Vec<_> = pool
            .members()
            .map(|m| m.endpoint.address.to_string())
            .collect();
        assert_eq!(addresses, ["127.0.0.2:8000", "[fd00::1]:8001"]);
        assert_eq!(
            parse("endpoints: []", Path::new("f")).unwrap(),
            Pool::default()
        );
    }

    #[test]
    fn refusals_say_where_which_and_what_was_expected() {
        let one = |fields: &str| {
            format!("endpoints:\n  - name: a\n    address: 127.0.0.1\n    {fields}\n")
        };
        let cases = [
            (one("port: 0"), "pool.yaml:4:11: endpoint default/a: port `0` is not a whole number from 1 to 65535"),
            (one("port: 70000"), "pool.yaml:4:11: endpoint default/a: port `70000`"),
            (one("port: http"), "pool.yaml:4:11: endpoint default/a: port `http`"),
            (one("prot: 80"), "pool.yaml:4:5: unknown field `prot`, expected one of"),
            (
                "endpoints:\n  - {name: a, address: vllm.local, port: 80}\n".to_owned(),
                "pool.yaml:2:24: endpoint default/a: address `vllm.local` is not an IPv4 or IPv6 address of one host (host names are not resolved)",
            ),
            (
                "endpoints:\n  - {name: a, address: 0.0.0.0, port: 80}\n".to_owned(),
                "pool.yaml:2:24: endpoint default/a: address `0.0.0.0`",
            ),
            (
                "endpoints:\n  - {name: a, address: 127.0.0.1, port: 80}\n  - {name: a, address: 127.0.0.1, port: 81}\n".to_owned(),
                "pool.yaml:3:12: endpoint default/a: the name default/a is taken",
            ),
            (
                "endpoints:\n  - {name: a, address: 127.0.0.1, port: 80}\n  - {name: b, address: 127.0.0.1, port: 80}\n".to_owned(),
                "pool.yaml:3:12: endpoint default/b: the address 127.0.0.1:80 is taken by the endpoint default/a",
            ),
            ("endpoints:\n  - {name: a/b, address: 127.0.0.1, port: 80}\n".to_owned(), "endpoint name `a/b` is not"),
            ("endpoints:\n  - {address: 127.0.0.1, port: 80}\n".to_owned(), "missing field `name`"),
            ("pool: []".to_owned(), "pool.yaml:1:1: unknown field `pool`"),
            ("endpoints: [".to_owned(), "pool.yaml:1:"),
            (String::new(), "missing field `endpoints`"),
        ];
        for (text, expected) in cases {
            let refusal = refusal(&text);
            assert!(refusal.contains(expected), "{text:?}: {refusal}");
        }
    }
}
