//! How are the watches? One log line a change, the whole in readiness, each try in the metrics.

use std::collections::{BTreeMap, HashMap};

use tracing::{info, warn};

use super::collection::{Kind, Trouble};
use super::object::Refusal;
use crate::metrics::kube::{KubeMetrics, Resource, WatchMetrics};
use crate::readiness::Readiness;

/// The key under which readiness tells of the watches.
const WATCHES: &str = "kubernetes";

/// The key under which readiness tells of a pool that cannot be read.
const POOL: &str = "InferencePool";

/// How the watches are.
pub(super) struct Conditions<'a> {
    readiness: &'a Readiness,
    metrics: &'a KubeMetrics,
    watches: BTreeMap<Resource, Condition>,
}

struct Condition {
    metrics: WatchMetrics,
    trouble: Option<Trouble>,
    /// Versions that were told to be unreadable, by name.
    refused: HashMap<String, String>,
}

impl<'a> Conditions<'a> {
    /// Nothing is watched yet.
    pub(super) fn new(readiness: &'a Readiness, metrics: &'a KubeMetrics) -> Self {
        Self {
            readiness,
            metrics,
            watches: BTreeMap::new(),
        }
    }

    fn of(&mut self, resource: Resource) -> &mut Condition {
        let metrics = self.metrics;
        self.watches.entry(resource).or_insert_with(|| {
            let metrics = metrics.watched(resource);
            metrics.connected.set(0);
            Condition {
                metrics,
                trouble: None,
                refused: HashMap::new(),
            }
        })
    }

    /// A watch begins; what was wrong with one of the same resource before no longer matters.
    pub(super) fn started(&mut self, resource: Resource) {
        self.ended(resource);
        self.of(resource);
    }

    /// A watch was ended.
    pub(super) fn ended(&mut self, resource: Resource) {
        if self.watches.remove(&resource).is_some() {
            self.metrics.forget(resource);
            self.tell();
        }
    }

    /// What is known is up to date.
    pub(super) fn connected(&mut self, resource: Resource) {
        let watch = self.of(resource);
        watch.metrics.connected.set(1);
        if let Some(trouble) = watch.trouble.take() {
            info!(resource = resource.as_str(), was = ?trouble.kind, "kubernetes watch works again");
            self.tell();
        }
    }

    /// A watch broke off or is not to be had at once; whether something is wrong will be seen.
    pub(super) fn lost(&mut self, resource: Resource, trouble: &Trouble) {
        let watch = self.of(resource);
        watch.metrics.errors.inc();
        watch.metrics.connected.set(0);
        tracing::debug!(
            resource = resource.as_str(),
            why = trouble.text,
            "kubernetes watch lost"
        );
    }

    /// A watch is not to be had.
    pub(super) fn failed(&mut self, resource: Resource, trouble: Trouble) {
        let watch = self.of(resource);
        watch.metrics.errors.inc();
        watch.metrics.connected.set(0);
        let before: Option<Kind> = watch.trouble.as_ref().map(|before| before.kind);
        if before != Some(trouble.kind) {
            warn!(
                resource = resource.as_str(),
                why = trouble.text,
                "kubernetes watch fails, what is known stays in force"
            );
        }
        watch.trouble = Some(trouble);
        self.tell();
    }

    /// An object could not be read; each version is told once.
    pub(super) fn refused(&mut self, resource: Resource, refusal: &Refusal) {
        let watch = self.of(resource);
        let identity = &refusal.identity;
        let (name, version) = (identity.name.clone(), identity.version.clone());
        if watch.refused.get(&name) == Some(&version) {
            return;
        }
        watch.metrics.refused.inc();
        warn!(
            resource = resource.as_str(),
            name,
            version,
            error = %refusal.problem,
            "object of the Kubernetes API cannot be read, this version is skipped"
        );
        watch.refused.insert(name, version);
    }

    /// An object is gone, or has a version that can be read.
    pub(super) fn settled(&mut self, resource: Resource, name: &str) {
        self.of(resource).refused.remove(name);
    }

    /// Of a whole list only these could not be read.
    pub(super) fn settled_but(&mut self, resource: Resource, refusals: &[Refusal]) {
        let still = |name: &String| {
            refusals
                .iter()
                .any(|refusal| refusal.identity.name == *name)
        };
        self.of(resource).refused.retain(|name, _| still(name));
    }

    /// Why the pool's last version is not in force, if it is not.
    pub(super) fn pool(&self, problem: Option<String>) {
        self.readiness.set_degraded(POOL, problem);
    }

    fn tell(&self) {
        let troubles = self.watches.iter().filter_map(|(resource, watch)| {
            let trouble = watch.trouble.as_ref()?;
            Some(format!("{}: {}", resource.as_str(), trouble.text))
        });
        let troubles: Vec<String> = troubles.collect();
        let why = (!troubles.is_empty()).then(|| troubles.join("; "));
        self.readiness.set_degraded(WATCHES, why);
    }
}
