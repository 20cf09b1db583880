//! What happens when something is told of the pool or its Pods? One task hears both and sends versions.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::collection::Collection;
use super::condition::Conditions;
use super::follow::{Event, follow};
use super::inference_pool::{InferencePool, Spec};
use super::object::{Object, Refusal};
use super::pod::Pod;
use super::view::{PodWatch, View};
use super::{Kubernetes, Target};
use crate::feeds::pool::Pool;
use crate::metrics::kube::{KubeMetrics, Resource};
use crate::readiness::Readiness;

/// Events between a follower and us. A follower that is ahead waits: the API server keeps the rest.
const EVENTS: usize = 64;

/// Why the watch is no more.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// A follower ended, though it was not told to.
    #[error("a follower of the Kubernetes API ended by itself")]
    Ended,
    /// A follower panicked.
    #[error("a follower of the Kubernetes API failed")]
    Panicked(#[source] JoinError),
}

/// Watches until `stop`.
pub(super) async fn run(
    source: Kubernetes,
    sender: watch::Sender<Option<Arc<Pool>>>,
    readiness: &Readiness,
    metrics: &KubeMetrics,
    stop: CancellationToken,
) -> Result<(), WatchError> {
    let described = source.describe();
    let mut watching = Watching {
        view: View::new(source.namespace.clone()),
        conditions: Conditions::new(readiness, metrics),
        tasks: JoinSet::new(),
        pods: None,
        former: None,
        due: None,
        described,
        sender,
        source,
    };
    let mut pool = watching.start();
    loop {
        let due = watching.due;
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => watching.publish(),
            event = next(pool.as_mut()) => watching.pool_event(event),
            event = next(events(&mut watching.pods)) => watching.pod_event(event),
            event = next(events(&mut watching.former)) => watching.pods_changed(event),
            Some(ended) = watching.tasks.join_next() => match ended {
                Err(aborted) if aborted.is_cancelled() => {}
                Err(panicked) => return Err(WatchError::Panicked(panicked)),
                Ok(()) => return Err(WatchError::Ended),
            },
        }
    }
}

/// Ends what it follows with itself.
struct PodFollower {
    events: mpsc::Receiver<Event<Pod>>,
    task: AbortHandle,
}

impl Drop for PodFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The next event; never, where nothing is followed or the follower ended, which its task tells.
async fn next<T>(events: Option<&mut mpsc::Receiver<Event<T>>>) -> Event<T> {
    let event = match events {
        Some(events) => events.recv().await,
        None => None,
    };
    match event {
        Some(event) => event,
        None => std::future::pending().await,
    }
}

fn events(pods: &mut Option<PodFollower>) -> Option<&mut mpsc::Receiver<Event<Pod>>> {
    pods.as_mut().map(|pods| &mut pods.events)
}

struct Watching<'a> {
    source: Kubernetes,
    described: String,
    view: View,
    conditions: Conditions<'a>,
    tasks: JoinSet<()>,
    /// Of the Pods that the last known selector selects.
    pods: Option<PodFollower>,
    /// Of the Pods that the former selector selects, until those of the new one are listed. How this watch is no
    /// longer matters.
    former: Option<PodFollower>,
    /// When the next version is to be made, if something changed.
    due: Option<Instant>,
    sender: watch::Sender<Option<Arc<Pool>>>,
}

impl Watching<'_> {
    /// Begins with what the target names.
    fn start(&mut self) -> Option<mpsc::Receiver<Event<InferencePool>>> {
        info!(pool = self.described, "watching Kubernetes");
        match self.source.target.clone() {
            Target::Pool { name, group } => {
                let fields = Some(format!("metadata.name={name}"));
                let pools = self.collection(Resource::InferencePools, group, None, fields);
                Some(self.follow(pools).0)
            }
            Target::Pods { selector, ports } => {
                let todo = self.view.set_spec(Spec { selector, ports });
                self.watch_pods(todo);
                None
            }
        }
    }

    fn collection(
        &self,
        resource: Resource,
        group: String,
        labels: Option<String>,
        fields: Option<String>,
    ) -> Collection {
        Collection {
            client: self.source.client.clone(),
            resource,
            group,
            namespace: self.source.namespace.clone(),
            labels,
            fields,
        }
    }

    fn follow<T: Object>(&mut self, what: Collection) -> (mpsc::Receiver<Event<T>>, AbortHandle) {
        self.conditions.started(what.resource);
        let (send, events) = mpsc::channel(EVENTS);
        let task = self.tasks.spawn(follow::<T>(what, self.source.pace, send));
        (events, task)
    }

    fn watch_pods(&mut self, todo: PodWatch) {
        match todo {
            PodWatch::Keep => {}
            PodWatch::Start(selector) => {
                let labels = Some(selector.as_str().to_owned());
                let pods = self.collection(Resource::Pods, String::new(), labels, None);
                let (events, task) = self.follow(pods);
                let before = self.pods.replace(PodFollower { events, task });
                match self.former {
                    None if self.view.has_pods() => self.former = before,
                    // It has listed nothing that is in force.
                    _ => drop(before),
                }
            }
            PodWatch::Stop => {
                (self.pods, self.former) = (None, None);
                self.conditions.ended(Resource::Pods);
            }
        }
    }

    fn pool_event(&mut self, event: Event<InferencePool>) {
        const RESOURCE: Resource = Resource::InferencePools;
        let Target::Pool { name: ours, .. } = &self.source.target else {
            return;
        };
        match event {
            // The server was asked for this one alone; a server that gives more is not to confuse us.
            Event::Listed(objects) => {
                let found = objects.into_iter().find(|object| {
                    let name = name(object);
                    name == ours || name.is_empty()
                });
                match found {
                    Some(object) => self.set_pool(object),
                    None => self.clear_pool(),
                }
            }
            Event::Applied(object) if name(&object) == ours => self.set_pool(object),
            Event::Deleted { name } if name == *ours => self.clear_pool(),
            Event::Applied(_) | Event::Deleted { .. } => {}
            Event::Connected => self.conditions.connected(RESOURCE),
            Event::Lost(trouble) => self.conditions.lost(RESOURCE, &trouble),
            Event::Failed(trouble) => self.conditions.failed(RESOURCE, trouble),
        }
    }

    fn set_pool(&mut self, object: Result<InferencePool, Refusal>) {
        match object {
            Ok(pool) if pool.terminating => self.clear_pool(),
            Ok(pool) => {
                self.conditions
                    .settled(Resource::InferencePools, &pool.identity.name);
                self.conditions.pool(None);
                let todo = self.view.set_spec(pool.spec);
                self.watch_pods(todo);
                self.changed();
            }
            Err(refusal) => {
                self.conditions.refused(Resource::InferencePools, &refusal);
                let problem = format!(
                    "version {} of the {} cannot be read and is passed over: {}",
                    refusal.identity.version, self.described, refusal.problem
                );
                self.conditions.pool(Some(problem));
            }
        }
    }

    fn clear_pool(&mut self) {
        self.conditions.settled_but(Resource::InferencePools, &[]);
        self.conditions.pool(None);
        let todo = self.view.clear();
        self.watch_pods(todo);
        if self.sender.borrow().is_none() {
            warn!(
                pool = self.described,
                "there is no such pool (yet): nothing can be picked"
            );
        }
        // At once: nobody is to be sent to a pool that is gone.
        self.publish();
    }

    fn pod_event(&mut self, event: Event<Pod>) {
        const RESOURCE: Resource = Resource::Pods;
        match event {
            Event::Connected => self.conditions.connected(RESOURCE),
            Event::Lost(trouble) => self.conditions.lost(RESOURCE, &trouble),
            Event::Failed(trouble) => self.conditions.failed(RESOURCE, trouble),
            Event::Listed(objects) => {
                self.former = None;
                self.view.switch();
                self.pods_changed(Event::Listed(objects));
            }
            event @ (Event::Applied(_) | Event::Deleted { .. }) => self.pods_changed(event),
        }
    }

    /// Takes what an event says of Pods.
    fn pods_changed(&mut self, event: Event<Pod>) {
        const RESOURCE: Resource = Resource::Pods;
        match event {
            Event::Listed(objects) => {
                let (mut pods, mut refusals) = (Vec::new(), Vec::new());
                for object in objects {
                    match object {
                        Ok(pod) => pods.push(pod),
                        Err(refusal) => refusals.push(refusal),
                    }
                }
                self.conditions.settled_but(RESOURCE, &refusals);
                for refusal in &refusals {
                    self.conditions.refused(RESOURCE, refusal);
                }
                self.view.set_pods(pods, &refusals);
            }
            Event::Applied(Ok(pod)) => {
                self.conditions.settled(RESOURCE, &pod.identity.name);
                // Nine of ten changes are of no use. With 1,000 Pods and ten changes a second that saves four fifths of
                // the work, with 5,000 Pods nine tenths (docs/performance.md).
                if !self.view.set_pod(pod) {
                    return;
                }
            }
            Event::Applied(Err(refusal)) => {
                self.conditions.refused(RESOURCE, &refusal);
                self.view.refuse_pod(&refusal);
            }
            Event::Deleted { name } => {
                self.conditions.settled(RESOURCE, &name);
                self.view.remove_pod(&name);
            }
            Event::Connected | Event::Lost(_) | Event::Failed(_) => return,
        }
        self.changed();
    }

    /// A version is due, soon: what comes until then goes into the same one.
    fn changed(&mut self) {
        let gather = self.source.pace.gather;
        self.due.get_or_insert_with(|| Instant::now() + gather);
    }

    fn publish(&mut self) {
        self.due = None;
        let (next, news) = self.view.pool();
        for note in news {
            warn!(
                pod = note.pod,
                note = note.text,
                "Pod is not as its owner may think"
            );
        }
        let same = match (&*self.sender.borrow(), &next) {
            (Some(before), Some(next)) => Arc::ptr_eq(before, next),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        let described = &self.described;
        let endpoints = next.as_ref().map(|pool| pool.members().len());
        match (self.sender.send_replace(next), endpoints) {
            (None, Some(endpoints)) => info!(pool = described, endpoints, "pool is there"),
            (_, None) => warn!(pool = described, "pool is gone, nothing can be picked"),
            (Some(_), Some(_)) => {}
        }
    }
}

/// The name of an object, as far as it can be read.
fn name<T: Object>(object: &Result<T, Refusal>) -> &str {
    match object {
        Ok(object) => &object.identity().name,
        Err(refusal) => &refusal.identity.name,
    }
}
