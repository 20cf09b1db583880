//! How is one resource of the API listed and watched? Two requests, each with a deadline, and what their failures mean.

use std::borrow::Cow;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tracing::instrument::WithSubscriber as _;

use super::object::{self, Object, Refusal};
use crate::metrics::kube::Resource;

/// Objects in one answer to a list; more come in further pages.
const PAGE: u32 = 500;

/// Characters of a server's message that are passed on: a proxy may answer with a whole page.
const MOST_TEXT: usize = 300;

/// The objects of one resource in one namespace, narrowed by labels or fields on the server's side.
#[derive(Clone)]
pub(super) struct Collection {
    pub(super) client: kube::Client,
    pub(super) resource: Resource,
    /// The API group; empty for the core group.
    pub(super) group: String,
    pub(super) namespace: String,
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
}

/// What a list gives.
pub(super) struct Listed<T> {
    pub(super) objects: Vec<Result<T, Refusal>>,
    /// What to watch from.
    pub(super) version: String,
}

/// One line of a watch.
pub(super) enum Line<T> {
    /// An object is new or another now.
    Applied(Result<T, Refusal>),
    /// An object is gone, or no longer selected.
    Deleted { name: String },
    /// Nothing changed up to a version, or nothing that concerns us.
    Bookmark,
}

/// Why a list or a watch is not to be had.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    /// What happened, and where it can be known, what to do.
    pub(super) text: String,
}

/// Kinds of trouble that people handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No connection, a broken one, or TLS failed.
    Unreachable,
    /// Connected, and no answer.
    Silent,
    /// We are not known there.
    Unauthorized,
    /// We may not.
    Forbidden,
    /// The resource does not exist.
    NoSuchResource,
    /// What we hold is too old to be continued: an ordinary thing.
    Expired,
    /// The server says that it cannot, now.
    Failing,
    /// Not an answer of an API server.
    Garbled,
}

/// An open watch.
pub(super) struct Watch {
    lines: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
}

#[derive(Deserialize)]
struct RawList<'a> {
    metadata: RawListMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawListMetadata {
    resource_version: String,
    #[serde(default, rename = "continue")]
    next_page: Option<String>,
}

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The fields of a `Status` that say what went wrong.
#[derive(Deserialize)]
struct RawStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl Collection {
    /// `inferencepools.inference.networking.k8s.io`, `pods`.
    fn name(&self) -> String {
        match self.group.as_str() {
            "" => self.resource.as_str().to_owned(),
            group => format!("{}.{group}", self.resource.as_str()),
        }
    }

    fn request(&self) -> Request {
        let (namespace, resource) = (&self.namespace, self.resource.as_str());
        Request::new(match self.group.as_str() {
            "" => format!("/api/v1/namespaces/{namespace}/{resource}"),
            group => format!("/apis/{group}/v1/namespaces/{namespace}/{resource}"),
        })
    }

    /// Lists all; each page has to come within `deadline`.
    ///
    /// # Errors
    /// When the list is not to be had whole.
    pub(super) async fn list<T: Object>(&self, deadline: Duration) -> Result<Listed<T>, Trouble> {
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector.clone_from(&self.labels);
        params.field_selector.clone_from(&self.fields);
        let mut objects = Vec::new();
        loop {
            let request = self.request().list(&params);
            let request =
                request.map_err(|error| self.trouble("list", kube::Error::BuildRequest(error)))?;
            let page = quietly(deadline, self.client.request_text(request)).await;
            let page = page.ok_or_else(|| silent("list", deadline))?;
            let page = page.map_err(|error| self.trouble("list", error))?;
            let page: RawList<'_> = serde_json::from_str(&page).map_err(garbled)?;
            let items = page.items.unwrap_or_default();
            objects.extend(items.into_iter().map(|item| object::read(item.get())));
            match page.metadata.next_page.filter(|token| !token.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => {
                    let version = page.metadata.resource_version;
                    return Ok(Listed { objects, version });
                }
            }
        }
    }

    /// Opens a watch of what comes after `version`, which has to be there within `deadline`. The server is asked to
    /// close it after `length`.
    ///
    /// # Errors
    /// When there is none to be had.
    pub(super) async fn watch(
        &self,
        version: &str,
        length: Duration,
        deadline: Duration,
    ) -> Result<Watch, Trouble> {
        let seconds = u32::try_from(length.as_secs()).unwrap_or(u32::MAX);
        let mut params = WatchParams::default().timeout(seconds);
        params.label_selector.clone_from(&self.labels);
        params.field_selector.clone_from(&self.fields);
        let request = self.request().watch(&params, version);
        let request =
            request.map_err(|error| self.trouble("watch", kube::Error::BuildRequest(error)))?;
        let opened = quietly(deadline, self.client.request_stream(request)).await;
        let lines = opened.ok_or_else(|| silent("watch", deadline))?;
        Ok(Watch {
            lines: Box::pin(lines.map_err(|error| self.trouble("watch", error))?),
            line: Vec::new(),
        })
    }

    fn trouble(&self, verb: &str, error: kube::Error) -> Trouble {
        let kube::Error::Api(status) = error else {
            let kind = match error {
                kube::Error::Auth(_) => Kind::Unauthorized,
                kube::Error::FromUtf8(_) | kube::Error::BuildRequest(_) => Kind::Garbled,
                _ => Kind::Unreachable,
            };
            let text = match kind {
                Kind::Unauthorized => {
                    format!("cannot log in to the API server: {}", root_cause(&error))
                }
                _ => format!("cannot reach the API server: {}", root_cause(&error)),
            };
            return Trouble { kind, text };
        };
        self.answered(verb, status.code, &status.message)
    }

    /// What an error answer means.
    fn answered(&self, verb: &str, code: u16, message: &str) -> Trouble {
        let (name, namespace) = (self.name(), &self.namespace);
        let message: String = message.chars().take(MOST_TEXT).collect();
        let (kind, text) = match code {
            401 => (
                Kind::Unauthorized,
                format!(
                    "the API server does not accept our credentials (is the service account's token mounted and valid?): {message}"
                ),
            ),
            403 => (
                Kind::Forbidden,
                format!(
                    "we may not {verb} {name} in namespace {namespace}: grant the service account list and watch of {name} there; the API server says: {message}"
                ),
            ),
            404 => (
                Kind::NoSuchResource,
                format!(
                    "the API server has no {name} of version v1: install the CRDs of the Gateway API Inference Extension, or correct --pool-group"
                ),
            ),
            410 => (
                Kind::Expired,
                format!("the version held is too old: {message}"),
            ),
            code => (
                Kind::Failing,
                format!("the API server answers {code} to {verb}: {message}"),
            ),
        };
        Trouble { kind, text }
    }
}

impl Watch {
    /// The next line and the version it leads to (empty: not told), or `None` when the server closed the watch in
    /// order. Must come within `deadline`.
    ///
    /// # Errors
    /// When the watch cannot go on.
    pub(super) async fn next<T: Object>(
        &mut self,
        collection: &Collection,
        deadline: Duration,
    ) -> Result<Option<(Line<T>, String)>, Trouble> {
        self.line.clear();
        let read = quietly(deadline, self.lines.read_until(b'\n', &mut self.line)).await;
        match read.ok_or_else(|| silent("watch", deadline))? {
            Ok(_) if self.line.last() != Some(&b'\n') => return Ok(None),
            Ok(_) => {}
            Err(error) => {
                let text = format!("the watch broke off: {}", root_cause(&error));
                let kind = Kind::Unreachable;
                return Err(Trouble { kind, text });
            }
        }
        let line: RawLine<'_> = serde_json::from_slice(&self.line).map_err(garbled)?;
        let json = line.object.get();
        let line = match &*line.kind {
            "ADDED" | "MODIFIED" => Line::Applied(object::read::<T>(json)),
            "DELETED" => Line::Deleted {
                name: object::identity(json).name,
            },
            "ERROR" => {
                let status: RawStatus = serde_json::from_str(json).map_err(garbled)?;
                return Err(collection.answered("watch", status.code, &status.message));
            }
            _ => Line::Bookmark,
        };
        let version = match &line {
            Line::Applied(Ok(object)) => object.identity().version.clone(),
            Line::Applied(Err(refusal)) => refusal.identity.version.clone(),
            Line::Deleted { .. } | Line::Bookmark => object::identity(json).version,
        };
        Ok(Some((line, version)))
    }
}

/// Waits at most `deadline`, without the client's own log lines: it tells every failed try as an error, we tell every
/// change of condition once.
async fn quietly<T>(deadline: Duration, work: impl Future<Output = T>) -> Option<T> {
    let work = work.with_subscriber(tracing::Dispatch::none());
    timeout(deadline, work).await.ok()
}

fn silent(verb: &str, deadline: Duration) -> Trouble {
    let seconds = deadline.as_secs();
    Trouble {
        kind: Kind::Silent,
        text: format!("the API server does not answer to {verb} within {seconds} s"),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn garbled(error: serde_json::Error) -> Trouble {
    Trouble {
        kind: Kind::Garbled,
        text: format!("what answers is no Kubernetes API server: {error}"),
    }
}

/// The innermost cause, which says what happened; those around it say where.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    // The client's only deadline of its own is the connection's; it does not say so.
    let late = |error: &std::io::Error| {
        error.kind() == std::io::ErrorKind::TimedOut && error.raw_os_error().is_none()
    };
    match cause.downcast_ref::<std::io::Error>().is_some_and(late) {
        true => "no connection in time".to_owned(),
        false => cause.to_string(),
    }
}
