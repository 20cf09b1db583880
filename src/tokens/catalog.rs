//! Which tokenizer a requested model name means: names, adapters, engines and places to look, by rules alone.
//!
//! [`Catalog`] keeps what every engine said it serves; [`Catalog::table`] turns that and the settings into a
//! [`Table`] that answers a request's model name with one hash lookup. Nothing here touches a disk or a socket:
//! a place is only named, the loader looks whether something is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{ModelSource, ServedModel, Settings};

/// What the engines of a pool said they serve.
#[derive(Clone, Debug, Default)]
pub(super) struct Catalog {
    engines: BTreeMap<SocketAddr, Served>,
}

/// One engine's word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    models: Vec<ServedModel>,
    version: Option<(u32, u32)>,
}

/// What one requested name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The adapter that the name is, if it is one.
    pub(super) adapter: Option<Arc<str>>,
    /// Where the files may be, best first; the first place that has any counts.
    pub(super) places: Arc<[ModelSource]>,
    /// Engines that can tokenize for it.
    pub(super) engines: Vec<SocketAddr>,
    /// The name under which those engines know the tokenizer.
    pub(super) served_as: Arc<str>,
    /// The version all of them have; `None` when one is unknown or they differ.
    pub(super) version: Option<(u32, u32)>,
    /// The shortest context length among them.
    pub(super) max_model_len: Option<u32>,
}

/// The meaning of every known name.
#[derive(Debug, Default)]
pub(super) struct Table {
    names: FxHashMap<Box<str>, Arc<Entry>>,
    sole: Option<Arc<Entry>>,
    subjects: Vec<Subject>,
}

/// A tokenizer as it is known here and at engines: all names that mean the same places and the same name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// A name that configuration or engines gave it.
    pub(super) name: Arc<str>,
    /// What that name means.
    pub(super) entry: Arc<Entry>,
    /// Its engines, by what should make them alike.
    pub(super) groups: Vec<Group>,
}

/// Engines that serve a model in one version from one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) version: Option<(u32, u32)>,
    pub(super) root: Option<Arc<str>>,
    pub(super) engines: Vec<SocketAddr>,
}

impl Catalog {
    /// Takes an engine's word; true if it says something new.
    pub(super) fn observe(
        &mut self,
        engine: SocketAddr,
        models: Vec<ServedModel>,
        version: Option<(u32, u32)>,
    ) -> bool {
        let served = Served { models, version };
        if self.engines.get(&engine) == Some(&served) {
            return false;
        }
        self.engines.insert(engine, served);
        true
    }

    /// Forgets an engine; true if it was known.
    pub(super) fn forget(&mut self, engine: SocketAddr) -> bool {
        self.engines.remove(&engine).is_some()
    }

    /// The meaning of every name that the configuration or an engine knows.
    pub(super) fn table(&self, settings: &Settings) -> Table {
        let bases = self.bases();
        let mut names: FxHashMap<Box<str>, Arc<Entry>> = FxHashMap::default();
        for (&name, base) in &bases {
            names.insert(name.into(), Arc::new(base.entry(name, settings)));
        }
        for (name, adapter) in self.adapters(&bases, settings) {
            names.entry(name).or_insert_with(|| Arc::new(adapter));
        }
        let sole = self.sole(&bases, &names, settings);
        for (name, source) in &settings.models {
            names
                .entry(name.as_str().into())
                .or_insert_with(|| Arc::new(configured(name, source, sole.as_deref())));
        }
        let subjects = self.subjects(&names);
        Table {
            names,
            sole,
            subjects,
        }
    }

    /// The tokenizers that the names mean, each once.
    fn subjects(&self, names: &FxHashMap<Box<str>, Arc<Entry>>) -> Vec<Subject> {
        let mut sorted: Vec<_> = names.iter().collect();
        // A model goes before its adapters, and the name that engines know before another.
        sorted.sort_unstable_by_key(|(name, entry)| {
            let is_other = ***name != *entry.served_as;
            (entry.adapter.is_some(), is_other, *name)
        });
        let mut seen = FxHashSet::default();
        sorted
            .into_iter()
            .filter(|(_, entry)| seen.insert((&entry.served_as, &entry.places)))
            .map(|(name, entry)| Subject {
                name: (**name).into(),
                entry: Arc::clone(entry),
                groups: self.groups(entry),
            })
            .collect()
    }

    fn groups(&self, entry: &Entry) -> Vec<Group> {
        let mut groups: BTreeMap<_, Vec<SocketAddr>> = BTreeMap::new();
        for engine in &entry.engines {
            let Some(served) = self.engines.get(engine) else {
                continue;
            };
            let mut models = served.models.iter();
            let model = models.find(|model| *model.id == *entry.served_as);
            let root = model.and_then(|model| model.root.as_deref());
            let alike = groups.entry((served.version, root)).or_default();
            alike.push(*engine);
        }
        let groups = groups.into_iter();
        groups
            .map(|((version, root), engines)| Group {
                version,
                root: root.map(Arc::from),
                engines,
            })
            .collect()
    }

    /// Base models by name, with all that the engines serving them say.
    fn bases(&self) -> BTreeMap<&str, Base<'_>> {
        let mut bases: BTreeMap<&str, Base<'_>> = BTreeMap::new();
        for (&engine, served) in &self.engines {
            for model in served.models.iter().filter(|m| m.parent.is_none()) {
                let base = bases.entry(&model.id).or_default();
                base.add(
                    engine,
                    served.version,
                    model.root.as_deref(),
                    model.max_model_len,
                );
            }
        }
        bases
    }

    /// Adapters by name. They are tokenized as their base; all engines of the base can do it.
    fn adapters(
        &self,
        bases: &BTreeMap<&str, Base<'_>>,
        settings: &Settings,
    ) -> Vec<(Box<str>, Entry)> {
        let mut found = Vec::new();
        for (&engine, served) in &self.engines {
            for model in &served.models {
                let Some(parent) = model.parent.as_deref() else {
                    continue;
                };
                let name = base_name(parent, served);
                let mut entry = match bases.get(name) {
                    Some(base) => base.entry(name, settings),
                    None => {
                        let mut orphan = Base::default();
                        orphan.add(engine, served.version, None, None);
                        Entry {
                            served_as: model.id.as_str().into(),
                            ..orphan.entry(name, settings)
                        }
                    }
                };
                if let Some(source) = settings.models.get(&model.id) {
                    entry.places = [source.clone()].into();
                }
                entry.adapter = Some(model.id.as_str().into());
                found.push((model.id.as_str().into(), entry));
            }
        }
        found
    }

    /// The one base model that all engines serve, under whatever names; with no engine's word at all,
    /// the one model that the configuration names.
    fn sole(
        &self,
        bases: &BTreeMap<&str, Base<'_>>,
        names: &FxHashMap<Box<str>, Arc<Entry>>,
        settings: &Settings,
    ) -> Option<Arc<Entry>> {
        if self.engines.values().all(|served| served.models.is_empty()) {
            let mut configured_models = settings.models.iter();
            let (name, source) = configured_models.next()?;
            return configured_models
                .next()
                .is_none()
                .then(|| Arc::new(configured(name, source, None)));
        }
        // One name, or several names for the same weights.
        let (&name, first) = bases.first_key_value()?;
        let one_root = first.roots.len() == 1
            && bases
                .values()
                .all(|base| base.roots.keys().eq(first.roots.keys()));
        (bases.len() == 1 || one_root)
            .then(|| names.get(name).cloned())
            .flatten()
    }
}

impl Table {
    /// What a request's model name means; `None` when that cannot be known.
    pub(super) fn resolve(&self, model: Option<&str>) -> Option<&Arc<Entry>> {
        model
            .and_then(|name| self.names.get(name))
            .or(self.sole.as_ref())
    }

    /// Every tokenizer that a name means.
    pub(super) fn subjects(&self) -> &[Subject] {
        &self.subjects
    }

    /// Every list of places in which a tokenizer is to be looked for, each once.
    pub(super) fn wanted(&self) -> BTreeSet<Arc<[ModelSource]>> {
        self.names
            .values()
            .chain(&self.sole)
            .map(|entry| Arc::clone(&entry.places))
            .filter(|places| !places.is_empty())
            .collect()
    }
}

/// A base model as all engines that serve it tell it.
#[derive(Debug, Default)]
struct Base<'a> {
    engines: Vec<SocketAddr>,
    /// How many engines name each root.
    roots: BTreeMap<&'a str, usize>,
    versions: BTreeSet<Option<(u32, u32)>>,
    max_model_len: Option<u32>,
}

impl<'a> Base<'a> {
    fn add(
        &mut self,
        engine: SocketAddr,
        version: Option<(u32, u32)>,
        root: Option<&'a str>,
        max_model_len: Option<u32>,
    ) {
        self.engines.push(engine);
        self.versions.insert(version);
        if let Some(root) = root {
            *self.roots.entry(root).or_default() += 1;
        }
        self.max_model_len = match (self.max_model_len, max_model_len) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    fn entry(&self, name: &str, settings: &Settings) -> Entry {
        let version = match self.versions.first() {
            Some(&version) if self.versions.len() == 1 => version,
            _ => None,
        };
        // While a new version of the weights rolls out, the root of most engines counts.
        let root = self
            .roots
            .iter()
            .max_by_key(|&(_, engines)| *engines)
            .map(|(&root, _)| root);
        Entry {
            adapter: None,
            places: places(name, root, settings).into(),
            engines: self.engines.clone(),
            served_as: name.into(),
            version,
            max_model_len: self.max_model_len,
        }
    }
}

/// The base model that an adapter's `parent` means: that name, or, when the engine does not serve
/// anything under it (a path, an older name), the only base model that the engine has.
fn base_name<'a>(parent: &'a str, served: &'a Served) -> &'a str {
    let mut bases = served.models.iter().filter(|m| m.parent.is_none());
    if bases.clone().any(|base| base.id == parent) {
        return parent;
    }
    match (bases.next(), bases.next()) {
        (Some(only), None) => &only.id,
        _ => parent,
    }
}

/// A name that only the configuration knows; the pool's one model, if there is one, serves it.
fn configured(name: &str, source: &ModelSource, sole: Option<&Entry>) -> Entry {
    let served = sole.cloned().unwrap_or_else(|| Entry {
        adapter: None,
        places: Arc::default(),
        engines: Vec::new(),
        served_as: name.into(),
        version: None,
        max_model_len: None,
    });
    Entry {
        adapter: None,
        places: [source.clone()].into(),
        ..served
    }
}

/// Where the files of a base model may be, best first. A configured source is the only one: whoever
/// names it would not want another one used in silence.
fn places(name: &str, root: Option<&str>, settings: &Settings) -> Vec<ModelSource> {
    if let Some(source) = settings.models.get(name) {
        return vec![source.clone()];
    }
    let mut places = Vec::new();
    if let Some(directory) = &settings.directory {
        let dashed = root.map(|root| root.trim_matches('/').replace('/', "--"));
        let last = root.and_then(|root| root.trim_end_matches('/').rsplit('/').next());
        for folder in [Some(name), last, dashed.as_deref()].into_iter().flatten() {
            let place = ModelSource::Directory(directory.join(folder));
            if is_plain_relative(folder) && !places.contains(&place) {
                places.push(place);
            }
        }
    }
    match root {
        Some(root) if Path::new(root).is_absolute() => {
            places.push(ModelSource::Directory(PathBuf::from(root)));
        }
        Some(root) if settings.hub && is_hub_id(root) => {
            places.push(ModelSource::Hub(root.to_owned()));
        }
        _ => {}
    }
    places
}

/// A relative path that stays below where it is joined. Engines are not to name folders elsewhere.
fn is_plain_relative(folder: &str) -> bool {
    !folder.is_empty()
        && Path::new(folder)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// `org/name` in the hub's alphabet.
fn is_hub_id(root: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.contains("..")
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    matches!(root.split_once('/'), Some((org, name)) if is_part(org) && is_part(name))
}

#[cfg(test)]
mod tests;
