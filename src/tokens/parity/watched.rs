//! One model under watch: whom to ask next, and whose tokens its requests get. Time is an argument.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::evidence::Evidence;
use super::verdict::{Difference, Finding, Verdict, judge};
use crate::metrics::token_sources::Degradation;
use crate::tokens::catalog::{Entry, Group, Subject};
use crate::tokens::loader::Loaded;

/// While engines differ or have not been asked yet, rounds come so many times as often.
const URGENCY: u32 = 10;

/// One engine to be asked.
pub(super) struct Job {
    pub(super) entry: Arc<Entry>,
    pub(super) engine: SocketAddr,
    pub(super) version: Option<(u32, u32)>,
    pub(super) loaded: Arc<Loaded>,
}

/// Whose tokens a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tokens) struct Standing {
    /// Ours may be used.
    pub(in crate::tokens) local: bool,
    /// Who is asked where ours may not be used; `None`: nobody.
    pub(in crate::tokens) engine: Option<Arc<Entry>>,
}

/// In one word, for pages and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Unknown,
    Agrees,
    Split,
    Differs,
    Unstored,
}

impl Word {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Agrees => "agrees",
            Self::Split => "split",
            Self::Differs => "differs",
            Self::Unstored => "unstored",
        }
    }

    /// The gauge's value; none while nothing is known.
    pub(super) const fn gauge(self) -> Option<i64> {
        match self {
            Self::Unknown => None,
            Self::Agrees => Some(1),
            Self::Split | Self::Differs | Self::Unstored => Some(0),
        }
    }
}

/// One model.
pub(super) struct Watched {
    pub(super) subject: Subject,
    loaded: Weak<Loaded>,
    findings: FxHashMap<SocketAddr, Finding>,
    unasked: FxHashMap<SocketAddr, Degradation>,
    asked: FxHashMap<SocketAddr, Instant>,
    next_round: Option<Instant>,
    /// What engines store of prompts cut here, and by their own tokenizer.
    pub(super) local: Evidence,
    pub(super) engine: Evidence,
    pub(super) next_trial: Option<Instant>,
    verdict: Verdict,
    /// What was logged last.
    pub(super) said: Word,
}

impl Watched {
    pub(super) fn new(subject: Subject) -> Self {
        Self {
            subject,
            loaded: Weak::new(),
            findings: FxHashMap::default(),
            unasked: FxHashMap::default(),
            asked: FxHashMap::default(),
            next_round: None,
            local: Evidence::default(),
            engine: Evidence::default(),
            next_trial: None,
            verdict: Verdict::Unknown,
            said: Word::Unknown,
        }
    }

    /// The catalog or the loader may say something new of it: what no longer holds is forgotten, and what is new is
    /// asked for at once.
    pub(super) fn update(&mut self, subject: Subject, loaded: Option<&Arc<Loaded>>) {
        if let Some(loaded) = loaded
            && self.loaded.as_ptr() != Arc::as_ptr(loaded)
        {
            self.loaded = Arc::downgrade(loaded);
            self.findings.clear();
            self.asked.clear();
            self.local = Evidence::default();
            self.next_round = None;
        }
        if self.subject.groups != subject.groups {
            self.next_round = None;
            // Perhaps it is mended.
            self.next_trial = None;
            let before = &self.subject.entry.engines;
            let stays = |engine: &SocketAddr| before.contains(engine);
            if !before.is_empty() && !subject.entry.engines.iter().any(stays) {
                self.local = Evidence::default();
                self.engine = Evidence::default();
            }
        }
        self.subject = subject;
        let groups = &self.subject.groups;
        let serves =
            |engine: &SocketAddr| groups.iter().any(|group| group.engines.contains(engine));
        self.findings.retain(|engine, _| serves(engine));
        self.unasked.retain(|engine, _| serves(engine));
        self.asked.retain(|engine, _| serves(engine));
        self.judge();
    }

    /// What is known of an engine is of a life that has ended.
    pub(super) fn forget(&mut self, engine: SocketAddr) {
        self.findings.remove(&engine);
        self.unasked.remove(&engine);
        self.asked.remove(&engine);
        self.judge();
    }

    /// Another process answers at its address, perhaps with another template: it is asked at once. What the one before
    /// said stands until then.
    pub(super) fn restarted(&mut self, engine: SocketAddr) {
        let mut groups = self.subject.groups.iter();
        if groups.any(|group| group.engines.contains(&engine)) {
            self.asked.remove(&engine);
            self.next_round = None;
            // Perhaps it is mended.
            self.next_trial = None;
        }
    }

    /// Whom to ask now: of each group the one whose turn it is, or all of them where one is known to differ.
    pub(super) fn round(&mut self, now: Instant, interval: Duration) -> Vec<Job> {
        if self.next_round.is_some_and(|at| at > now) {
            return Vec::new();
        }
        let Some(loaded) = self.loaded.upgrade() else {
            self.next_round = Some(now + interval);
            return Vec::new();
        };
        let mut jobs = Vec::new();
        for group in &self.subject.groups {
            let turn = group.engines.iter().min_by_key(|&e| self.asked.get(e));
            let asked = match self.is_doubtful(group) {
                true => group.engines.as_slice(),
                false => turn.map(std::slice::from_ref).unwrap_or_default(),
            };
            jobs.extend(asked.iter().map(|&engine| Job {
                entry: Arc::clone(&self.subject.entry),
                engine,
                version: group.version,
                loaded: Arc::clone(&loaded),
            }));
        }
        self.asked.extend(jobs.iter().map(|job| (job.engine, now)));
        let mut engines = self.subject.groups.iter().flat_map(|group| &group.engines);
        let new = engines.any(|engine| !self.asked.contains_key(engine));
        let doubtful = self.subject.groups.iter().any(|g| self.is_doubtful(g));
        self.next_round = Some(
            now + if new || doubtful {
                interval / URGENCY
            } else {
                interval
            },
        );
        jobs
    }

    fn is_doubtful(&self, group: &Group) -> bool {
        let mut engines = group.engines.iter();
        engines.any(|engine| matches!(self.findings.get(engine), Some(Finding::Differs(_))))
    }

    /// What an engine answered. A first difference brings the others' turn at once.
    pub(super) fn found(
        &mut self,
        engine: SocketAddr,
        loaded: &Arc<Loaded>,
        found: Result<Finding, Degradation>,
    ) {
        let mut groups = self.subject.groups.iter();
        let group = groups.find(|group| group.engines.contains(&engine));
        // It left meanwhile, or another tokenizer was loaded.
        let Some(group) = group.filter(|_| self.loaded.as_ptr() == Arc::as_ptr(loaded)) else {
            return;
        };
        match found {
            Ok(finding) => {
                let first = matches!(finding, Finding::Differs(_)) && !self.is_doubtful(group);
                if first && group.engines.len() > 1 {
                    self.next_round = None;
                }
                self.unasked.remove(&engine);
                self.findings.insert(engine, finding);
            }
            // What it said before stands.
            Err(why) => {
                self.unasked.insert(engine, why);
            }
        }
        self.judge();
    }

    fn judge(&mut self) {
        self.verdict = judge(&self.subject.groups, &self.findings);
    }

    /// When it wants to be looked at again.
    pub(super) fn next_round(&self, now: Instant) -> Instant {
        self.next_round.unwrap_or(now)
    }

    pub(super) fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub(super) fn word(&self) -> Word {
        let unstored = self.local.distrusted().is_some() || self.engine.distrusted().is_some();
        match &self.verdict {
            _ if unstored => Word::Unstored,
            Verdict::Unknown => Word::Unknown,
            Verdict::Agrees => Word::Agrees,
            Verdict::Split { .. } => Word::Split,
            Verdict::Differs { .. } => Word::Differs,
        }
    }

    /// Nothing stands against its tokens, whoever makes them.
    pub(super) fn is_fine(&self) -> bool {
        self.standing(false) == Standing::ours(&self.subject.entry)
    }

    /// Whose tokens a request gets; `trial`: as if nothing had been seen against the best way.
    pub(super) fn standing(&self, trial: bool) -> Standing {
        let differs = matches!(self.verdict, Verdict::Differs { .. });
        let local_unstored = self.local.distrusted().is_some();
        // The engine's tokenizer makes the same ids as ours, and those are not what it prefills.
        let same =
            local_unstored && matches!(self.verdict, Verdict::Agrees | Verdict::Split { .. });
        let engine_unstored = self.engine.distrusted().is_some() || same;
        let entry = match &self.verdict {
            Verdict::Differs { engines, .. } => Arc::new(Entry {
                engines: engines.clone(),
                ..Entry::clone(&self.subject.entry)
            }),
            _ => Arc::clone(&self.subject.entry),
        };
        Standing {
            local: !differs && (trial || !local_unstored),
            engine: (trial || !engine_unstored).then_some(entry),
        }
    }

    /// An engine that differs, and where.
    pub(super) fn difference(&self) -> Option<(SocketAddr, &Difference)> {
        let mut engines = self.subject.groups.iter().flat_map(|group| &group.engines);
        engines.find_map(|engine| match self.findings.get(engine)? {
            Finding::Differs(difference) => Some((*engine, difference)),
            Finding::Agrees => None,
        })
    }

    /// As pages show it.
    pub(super) fn to_json(&self) -> Value {
        let standing = self.standing(false);
        let source = match (
            standing.local && self.loaded.strong_count() > 0,
            standing.engine,
        ) {
            (true, _) => "local",
            (false, Some(_)) => "engine",
            (false, None) => "estimate",
        };
        let agree = self.findings.values();
        let agree = agree.filter(|found| **found == Finding::Agrees).count();
        let engines: usize = self.subject.groups.iter().map(|g| g.engines.len()).sum();
        let difference = self.difference().map(|(engine, difference)| {
            json!({
                "engine": engine.to_string(),
                "canary": difference.canary,
                "position": difference.position,
                "ours": difference.ours,
                "theirs": difference.theirs,
            })
        });
        let beginnings = self.local.distrusted().or_else(|| self.engine.distrusted());
        let not_asked = self.unasked.iter();
        let not_asked: Vec<Value> = not_asked
            .map(|(engine, why)| json!({"engine": engine.to_string(), "reason": why.as_str()}))
            .collect();
        json!({
            "model": &*self.subject.name,
            "source": source,
            "parity": self.word().as_str(),
            "engines": engines,
            "engines_compared": self.findings.len(),
            "engines_equal": agree,
            "not_asked": not_asked,
            "difference": difference,
            "not_stored": beginnings.map(|b| json!({"ours": b.ours, "stored": b.stored})),
        })
    }
}

impl Standing {
    /// The standing of a model against which nothing is known.
    pub(super) fn ours(entry: &Arc<Entry>) -> Self {
        Self {
            local: true,
            engine: Some(Arc::clone(entry)),
        }
    }
}
