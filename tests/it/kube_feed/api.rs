//! A double of the Kubernetes API server: lists and watches of two resources, in memory, with faults.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub(super) const POOLS: &str = "inferencepools";
pub(super) const PODS: &str = "pods";

/// How a request is met.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mood {
    Well,
    /// With this status and message.
    Fails(u16, &'static str),
    /// Never.
    Silent,
    /// With a page of something else.
    Garbled,
}

type Lines = mpsc::UnboundedSender<io::Result<String>>;
pub(super) type Parameters = BTreeMap<String, String>;

struct Collection {
    objects: BTreeMap<String, Value>,
    /// Version, kind and object of every change.
    history: Vec<(u64, &'static str, Value)>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    watches: Vec<(Lines, Option<String>)>,
    refuses_next_page: bool,
    list: Mood,
    watch: Mood,
    /// `list` or `watch` with its parameters, in order.
    asked: Vec<(&'static str, Parameters)>,
}

/// The double; clones share it.
#[derive(Clone)]
pub(super) struct Api {
    state: Arc<Mutex<Inner>>,
}

struct Inner {
    version: u64,
    collections: BTreeMap<&'static str, Collection>,
}

impl Api {
    pub(super) fn new() -> Self {
        let collection = || Collection {
            objects: BTreeMap::new(),
            history: Vec::new(),
            forgotten: 0,
            watches: Vec::new(),
            refuses_next_page: false,
            list: Mood::Well,
            watch: Mood::Well,
            asked: Vec::new(),
        };
        let collections = BTreeMap::from([(POOLS, collection()), (PODS, collection())]);
        let inner = Inner {
            version: 100,
            collections,
        };
        Self {
            state: Arc::new(Mutex::new(inner)),
        }
    }

    pub(super) fn router(&self) -> Router {
        let core = |State(api): State<Self>, Path((namespace, resource)), Query(parameters)| async move {
            api.answer("", namespace, resource, parameters).await
        };
        let grouped = |State(api): State<Self>,
                       Path((group, namespace, resource)),
                       Query(parameters): Query<Parameters>| async move {
            let group: String = group;
            api.answer(&group, namespace, resource, parameters).await
        };
        Router::new()
            .route("/api/v1/namespaces/{namespace}/{resource}", get(core))
            .route(
                "/apis/{group}/v1/namespaces/{namespace}/{resource}",
                get(grouped),
            )
            .with_state(self.clone())
    }

    fn with<T>(&self, resource: &str, act: impl FnOnce(&mut Collection) -> T) -> T {
        act(self.state.lock().collections.get_mut(resource).unwrap())
    }

    /// Creates or replaces an object, and tells the watches.
    pub(super) fn put(&self, resource: &str, mut object: Value) {
        let mut inner = self.state.lock();
        inner.version += 1;
        let version = inner.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let name = object["metadata"]["name"].to_string();
        let collection = inner.collections.get_mut(resource).unwrap();
        let kind = match collection.objects.insert(name, object.clone()) {
            Some(_) => "MODIFIED",
            None => "ADDED",
        };
        collection.tell(version, kind, object);
    }

    pub(super) fn delete(&self, resource: &str, name: &str) {
        let mut inner = self.state.lock();
        inner.version += 1;
        let version = inner.version;
        let collection = inner.collections.get_mut(resource).unwrap();
        let mut object = collection.objects.remove(&json!(name).to_string()).unwrap();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        collection.tell(version, "DELETED", object);
    }

    /// Meets requests like this from now on; open watches stay open.
    pub(super) fn set(&self, resource: &str, list: Mood, watch: Mood) {
        self.with(resource, |collection| {
            (collection.list, collection.watch) = (list, watch);
        });
    }

    /// The same for every request of every resource, and breaks every watch off.
    pub(super) fn set_all(&self, mood: &Mood) {
        for resource in [POOLS, PODS] {
            self.set(resource, mood.clone(), mood.clone());
            self.cut(resource);
        }
    }

    /// The next further page of a list is not to be had any more.
    pub(super) fn refuse_next_page(&self, resource: &str) {
        self.with(resource, |collection| collection.refuses_next_page = true);
    }

    /// Breaks the open watches off.
    pub(super) fn cut(&self, resource: &str) {
        self.with(resource, |collection| {
            for (lines, _) in collection.watches.drain(..) {
                lines.send(Err(io::Error::other("connection reset"))).ok();
            }
        });
    }

    /// Ends the open watches in order, after a bookmark.
    pub(super) fn rotate(&self, resource: &str) {
        let version = self.state.lock().version;
        let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": version.to_string()}}});
        self.raw(resource, &bookmark.to_string());
        self.with(resource, |collection| collection.watches.clear());
    }

    /// Ends the open watches in order.
    pub(super) fn end(&self, resource: &str) {
        self.with(resource, |collection| collection.watches.clear());
    }

    /// Forgets all changes made so far, as etcd's compaction does.
    pub(super) fn forget(&self, resource: &str) {
        let version = self.state.lock().version;
        self.with(resource, |collection| {
            collection.history.clear();
            collection.forgotten = version;
        });
    }

    /// Sends a line as it is.
    pub(super) fn raw(&self, resource: &str, line: &str) {
        self.with(resource, |collection| {
            for (lines, _) in &collection.watches {
                lines.send(Ok(format!("{line}\n"))).ok();
            }
        });
    }

    /// How many watches are open.
    pub(super) fn watches(&self, resource: &str) -> usize {
        self.with(resource, |collection| {
            collection.watches.retain(|(lines, _)| !lines.is_closed());
            collection.watches.len()
        })
    }

    /// The requests so far: `list` or `watch`, and parameters.
    pub(super) fn asked(&self, resource: &str) -> Vec<(&'static str, Parameters)> {
        self.with(resource, |collection| collection.asked.clone())
    }

    async fn answer(
        &self,
        group: &str,
        namespace: String,
        resource: String,
        parameters: Parameters,
    ) -> Response {
        let known = [("", PODS), ("inference.networking.k8s.io", POOLS)];
        if !known.contains(&(group, resource.as_str())) || namespace != "prod" {
            return status(404, "the server could not find the requested resource");
        }
        let watch = parameters.get("watch").is_some_and(|value| value == "true");
        let mood = self.with(&resource, |collection| {
            let kind = if watch { "watch" } else { "list" };
            collection.asked.push((kind, parameters.clone()));
            if watch {
                collection.watch.clone()
            } else {
                collection.list.clone()
            }
        });
        match mood {
            Mood::Well if watch => self.open(&resource, &parameters),
            Mood::Well => self.list(&resource, &parameters),
            Mood::Fails(code, message) => status(code, message),
            Mood::Silent => std::future::pending().await,
            Mood::Garbled => "<html>a captive portal</html>".into_response(),
        }
    }

    fn list(&self, resource: &str, parameters: &Parameters) -> Response {
        let version = self.state.lock().version.to_string();
        self.with(resource, |collection| {
            let selected = collection
                .objects
                .values()
                .filter(|object| selects(parameters.get("labelSelector"), object));
            let start: usize = parameters
                .get("continue")
                .map_or(0, |token| token.parse().unwrap());
            if start > 0 && std::mem::take(&mut collection.refuses_next_page) {
                return status(410, "the provided continue parameter is too old");
            }
            let limit: usize = parameters["limit"].parse().unwrap();
            let items: Vec<_> = selected.skip(start).take(limit + 1).cloned().collect();
            let mut metadata = json!({ "resourceVersion": version });
            if items.len() > limit {
                metadata["continue"] = json!((start + limit).to_string());
            }
            let items = &items[..items.len().min(limit)];
            Json(json!({"kind": "List", "metadata": metadata, "items": items})).into_response()
        })
    }

    fn open(&self, resource: &str, parameters: &Parameters) -> Response {
        let from: u64 = parameters["resourceVersion"].parse().unwrap();
        self.with(resource, |collection| {
            if from < collection.forgotten {
                return status(410, "too old resource version");
            }
            let (send, receive) = mpsc::unbounded_channel();
            let selector = parameters.get("labelSelector").cloned();
            for (version, kind, object) in &collection.history {
                if *version > from && selects(selector.as_ref(), object) {
                    send.send(Ok(line(kind, object))).unwrap();
                }
            }
            collection.watches.push((send, selector));
            let lines = futures_util::stream::unfold(receive, |mut receive| async {
                receive.recv().await.map(|line| (line, receive))
            });
            Body::from_stream(lines).into_response()
        })
    }
}

impl Collection {
    fn tell(&mut self, version: u64, kind: &'static str, object: Value) {
        for (lines, selector) in &self.watches {
            if selects(selector.as_ref(), &object) {
                lines.send(Ok(line(kind, &object))).ok();
            }
        }
        self.history.push((version, kind, object));
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn status(code: u16, message: &str) -> Response {
    let body = json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
    (StatusCode::from_u16(code).unwrap(), Json(body)).into_response()
}

/// Only `key=value` parts: that is what the tests select by.
fn selects(selector: Option<&String>, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let part = |part: &str| {
        let (key, value) = part.split_once('=').unwrap();
        labels[key] == value
    };
    selector.is_none_or(|selector| selector.split(',').all(part))
}
