//! What was found: the questions asked of an engine, the answer to each, and what to do about it.

use serde::Serialize;

/// One question, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Topic {
    /// Does it answer at all?
    Reachable,
    /// Which engine, which version?
    Version,
    /// What does it serve?
    Model,
    /// Is there a state report?
    StateReport,
    /// Does it cache prefixes?
    PrefixCaching,
    /// Can the hashes of its blocks be sent?
    HashAlgorithm,
    /// Where are its KV events?
    EventSources,
    /// Do they arrive?
    Events,
    /// How large are its blocks?
    BlockSize,
    /// Can lost ones be had again?
    Replay,
    /// Does it report cached tokens?
    CachedTokens,
    /// Do streams report usage unasked?
    StreamUsage,
    /// Are our tokens its tokens?
    Tokenizer,
}

impl Topic {
    pub(super) const ALL: [Self; 13] = [
        Self::Reachable,
        Self::Version,
        Self::Model,
        Self::StateReport,
        Self::PrefixCaching,
        Self::HashAlgorithm,
        Self::EventSources,
        Self::Events,
        Self::BlockSize,
        Self::Replay,
        Self::CachedTokens,
        Self::StreamUsage,
        Self::Tokenizer,
    ];

    /// The word in the table.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Reachable => "reachable",
            Self::Version => "version",
            Self::Model => "model",
            Self::StateReport => "state-report",
            Self::PrefixCaching => "prefix-caching",
            Self::HashAlgorithm => "hash-algorithm",
            Self::EventSources => "event-sources",
            Self::Events => "events",
            Self::BlockSize => "block-size",
            Self::Replay => "replay",
            Self::CachedTokens => "cached-tokens",
            Self::StreamUsage => "stream-usage",
            Self::Tokenizer => "tokenizer",
        }
    }
}

/// How good an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Could not be looked at.
    LeftOut,
    /// It works, and could be better.
    Warning,
    /// Picks will be worse for it.
    Failed,
}

impl Level {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::LeftOut => "left out",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
        }
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    #[serde(rename = "check")]
    pub(super) topic: Topic,
    pub(super) level: Level,
    /// What was seen.
    pub(super) saw: String,
    /// What to change; nothing where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// The answers of one engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, topic: Topic, saw: impl Into<String>) {
        self.note(topic, Level::Ok, saw.into(), None);
    }

    pub(super) fn left_out(&mut self, topic: Topic, why: impl Into<String>) {
        self.note(topic, Level::LeftOut, why.into(), None);
    }

    pub(super) fn warn(&mut self, topic: Topic, saw: impl Into<String>, advice: impl Into<String>) {
        self.note(topic, Level::Warning, saw.into(), Some(advice.into()));
    }

    pub(super) fn fail(&mut self, topic: Topic, saw: impl Into<String>, advice: impl Into<String>) {
        self.note(topic, Level::Failed, saw.into(), Some(advice.into()));
    }

    fn note(&mut self, topic: Topic, level: Level, saw: String, advice: Option<String>) {
        self.0.push(Finding {
            topic,
            level,
            saw,
            advice,
        });
    }

    pub(super) fn has(&self, topic: Topic) -> bool {
        self.0.iter().any(|finding| finding.topic == topic)
    }

    /// Sorts them into the order of the questions.
    pub(super) fn in_order(&mut self) {
        self.0.sort_by_key(|finding| finding.topic);
    }

    pub(super) fn all(&self) -> &[Finding] {
        &self.0
    }
}
