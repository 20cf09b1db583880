//! What does the pool look like, as far as the API told? Pure: objects in, pools out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::inference_pool::Spec;
use super::members::{Note, members};
use super::object::Refusal;
use super::pod::Pod;
use super::selector::LabelSelector;
use crate::feeds::pool::Pool;

/// What has to happen to the watch of the Pods after the pool changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodWatch {
    /// Nothing.
    Keep,
    /// One of Pods with these labels begins. What there was goes on until all of these are listed.
    Start(LabelSelector),
    /// None is wanted.
    Stop,
}

/// What is known of one pool.
#[derive(Debug)]
pub(super) struct View {
    namespace: String,
    /// How the pool is made; `None`: there is no pool.
    spec: Option<Spec>,
    /// The Pods that `spec` selects, by name; `None` until they have all been listed.
    pods: Option<BTreeMap<String, Pod>>,
    /// What takes the place of `spec` when the Pods that it selects have been listed.
    next: Option<Spec>,
    /// The last pool made.
    made: Option<Arc<Pool>>,
    notes: BTreeSet<Note>,
}

impl View {
    /// Knows nothing yet.
    pub(super) fn new(namespace: String) -> Self {
        Self {
            namespace,
            spec: None,
            pods: None,
            next: None,
            made: None,
            notes: BTreeSet::new(),
        }
    }

    /// The pool is made like this from now on, or, where it selects by other labels, from [`Self::switch`] on.
    pub(super) fn set_spec(&mut self, spec: Spec) -> PodWatch {
        let newest = self.next.as_mut().or(self.spec.as_mut());
        if let Some(newest) = newest.filter(|newest| newest.selector == spec.selector) {
            *newest = spec;
            return PodWatch::Keep;
        }
        let selector = spec.selector.clone();
        match self.has_pods() {
            true => self.next = Some(spec),
            false => self.spec = Some(spec),
        }
        PodWatch::Start(selector)
    }

    /// The Pods have been listed by which the pool is made.
    pub(super) const fn has_pods(&self) -> bool {
        self.pods.is_some()
    }

    /// The Pods that the last spec selects are about to be set.
    pub(super) fn switch(&mut self) {
        if let Some(next) = self.next.take() {
            self.spec = Some(next);
        }
    }

    /// There is no pool.
    pub(super) fn clear(&mut self) -> PodWatch {
        *self = Self::new(std::mem::take(&mut self.namespace));
        PodWatch::Stop
    }

    /// These are all Pods. One that cannot be read stays as it was known.
    pub(super) fn set_pods(&mut self, listed: Vec<Pod>, refused: &[Refusal]) {
        let mut before = self.pods.take().unwrap_or_default();
        let kept = refused.iter().filter_map(|refusal| {
            let known = before.remove(&refusal.identity.name)?;
            same(&known, refusal).then_some(known)
        });
        let mut pods: BTreeMap<_, _> = kept.map(|pod| (pod.identity.name.clone(), pod)).collect();
        pods.extend(
            listed
                .into_iter()
                .map(|pod| (pod.identity.name.clone(), pod)),
        );
        self.pods = Some(pods);
    }

    /// A Pod is new, or another now. False where nothing of that is used: most changes of Pods are none of ours, and
    /// a pool is made of all its Pods anew.
    pub(super) fn set_pod(&mut self, pod: Pod) -> bool {
        let Some(pods) = &mut self.pods else {
            return false;
        };
        if let Some(known) = pods.get_mut(&pod.identity.name) {
            known.identity.version.clone_from(&pod.identity.version);
            if *known == pod {
                return false;
            }
        }
        pods.insert(pod.identity.name.clone(), pod);
        true
    }

    /// A Pod's new version cannot be read: it stays as it was known, unless it is another Pod of the same name.
    pub(super) fn refuse_pod(&mut self, refusal: &Refusal) {
        let Some(pods) = &mut self.pods else { return };
        let name = &refusal.identity.name;
        if pods.get(name).is_some_and(|known| !same(known, refusal)) {
            pods.remove(name);
        }
    }

    /// A Pod is gone.
    pub(super) fn remove_pod(&mut self, name: &str) {
        if let Some(pods) = &mut self.pods {
            pods.remove(name);
        }
    }

    /// The pool as it is known now, and what is to be said of its Pods that was not said before.
    pub(super) fn pool(&mut self) -> (Option<Arc<Pool>>, Vec<Note>) {
        let (Some(spec), Some(pods)) = (&self.spec, &self.pods) else {
            return (None, Vec::new());
        };
        let next = members(&self.namespace, &spec.ports, pods.values());
        let news = next.notes.difference(&self.notes).cloned().collect();
        self.notes = next.notes;
        // The same pool is the same version.
        if self.made.as_deref() != Some(&next.pool) {
            self.made = Some(Arc::new(next.pool));
        }
        (self.made.clone(), news)
    }
}

fn same(known: &Pod, refusal: &Refusal) -> bool {
    let uid = &refusal.identity.uid;
    uid.is_empty() || *uid == known.identity.uid
}

#[cfg(test)]
mod tests;
