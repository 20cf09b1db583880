//! What do the engines of one model make of our canaries, taken together? Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rustc_hash::FxHashMap;

use crate::tokens::catalog::Group;

/// Where an engine's ids first part from ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Which canary.
    pub(super) canary: &'static str,
    /// The first token that differs.
    pub(super) position: usize,
    /// Ours there; `None` where ours end, or where the template here refuses.
    pub(super) ours: Option<u32>,
    /// The engine's.
    pub(super) theirs: Option<u32>,
    /// A hash of all that the engine made: engines with the same one have the same tokenizer and template.
    pub(super) reading: u64,
}

impl Difference {
    /// The first one between two lists; `None` if they are equal.
    pub(super) fn between(canary: &'static str, ours: &[u32], theirs: &[u32]) -> Option<Self> {
        let alike = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        (ours != theirs).then(|| Self {
            canary,
            position: alike,
            ours: ours.get(alike).copied(),
            theirs: theirs.get(alike).copied(),
            reading: 0,
        })
    }
}

/// What one engine made of the canaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// What we made.
    Agrees,
    /// Something else.
    Differs(Difference),
}

/// All of them together. The ids of one request can be those of one reading only, since they are made before the
/// engine is chosen: the reading that most engines have is in force, ours if it is as common as any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody could be asked yet.
    Unknown,
    /// All who could be asked have our ids.
    Agrees,
    /// Most do; so many engines do not, and for them no ids are exact.
    Split {
        /// How many engines have ours.
        ours: usize,
        /// How many have others.
        others: usize,
    },
    /// Most have the ids of these engines, so many have others.
    Differs {
        /// Who can be asked for them.
        engines: Vec<SocketAddr>,
        /// Engines with yet other ids, or with ours.
        others: usize,
    },
}

/// `None` is our own reading.
type Readings = BTreeMap<Option<u64>, Vec<SocketAddr>>;

/// Judges what was found. An engine that was not asked is taken to be like its group as long as that is of one mind.
pub(super) fn judge(groups: &[Group], findings: &FxHashMap<SocketAddr, Finding>) -> Verdict {
    let mut readings = Readings::new();
    for group in groups {
        let mut found = Readings::new();
        for engine in &group.engines {
            if let Some(finding) = findings.get(engine) {
                found.entry(reading(finding)).or_default().push(*engine);
            }
        }
        if let (1, Some(like_all)) = (found.len(), found.values_mut().next()) {
            like_all.clone_from(&group.engines);
        }
        for (reading, engines) in found {
            readings.entry(reading).or_default().extend(engines);
        }
    }
    let all: usize = readings.values().map(Vec::len).sum();
    let ours = readings.get(&None).map_or(0, Vec::len);
    // The first of equals is ours.
    let most = readings
        .into_iter()
        .rev()
        .max_by_key(|(_, engines)| engines.len());
    match most {
        None => Verdict::Unknown,
        Some((None, _)) if ours == all => Verdict::Agrees,
        Some((None, _)) => Verdict::Split {
            ours,
            others: all - ours,
        },
        Some((Some(_), engines)) => Verdict::Differs {
            others: all - engines.len(),
            engines,
        },
    }
}

fn reading(finding: &Finding) -> Option<u64> {
    match finding {
        Finding::Agrees => None,
        Finding::Differs(difference) => Some(difference.reading),
    }
}
