//! What is to be followed at one address, and is it one endpoint or one a rank? Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::feeds::kv_events::{Settings, Source};
use crate::feeds::pool::EventHints;
use crate::feeds::probe::{Events, Profile};

/// Engines of before this version do not obey the header that pins a request to a rank.
const FIRST_VERSION_THAT_PINS: (u32, u32) = (0, 11);

/// What is made of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The ranks that are endpoints of their own; none: the address is one endpoint.
    pub(crate) ranks: BTreeSet<u32>,
    /// The event source of each rank, or why it has none that can be followed.
    pub(crate) sources: Sources,
}

type Sources = BTreeMap<u32, Result<Source, String>>;

/// All that is known of an address.
pub(crate) struct Known<'a> {
    pub(crate) engine: IpAddr,
    pub(crate) profile: &'a Profile,
    /// The ranks that its metrics page speaks of.
    pub(crate) page_ranks: &'a BTreeSet<u32>,
    pub(crate) hints: &'a EventHints,
    pub(crate) settings: &'a Settings,
}

impl Plan {
    /// The plan for what is known; `None` until the engine answered where its events are.
    ///
    /// The engine's own word comes first, then what discovery says, then the usual ports. What an
    /// engine before [`/kv_event_sources`](Events::Untold) or without events would not tell, its
    /// metrics page does: which ranks it has.
    pub(crate) fn new(known: &Known<'_>) -> Option<Self> {
        let events = known.profile.events.as_ref()?;
        if let Events::Told(sources) = events {
            let ranks = known.endpoints_of(sources.keys().copied());
            let sources = told_apart(sources.clone(), &ranks);
            return Some(Self { ranks, sources });
        }
        let followed = match known.hints.rank {
            Some(rank) => BTreeSet::from([rank]),
            None if known.page_ranks.is_empty() => BTreeSet::from([0]),
            None => known.page_ranks.clone(),
        };
        let version = known.profile.version;
        let ranks = match version.is_none_or(|version| version >= FIRST_VERSION_THAT_PINS) {
            true => known.endpoints_of(followed.iter().copied()),
            false => BTreeSet::new(),
        };
        let source = |&rank: &u32| match events {
            Events::Off => {
                let why = "the engine publishes no KV events (--kv-events-config)";
                (rank, Err(why.to_owned()))
            }
            _ => (rank, known.usual_source(rank)),
        };
        let sources = told_apart(followed.iter().map(source).collect(), &ranks);
        Some(Self { ranks, sources })
    }
}

impl Known<'_> {
    /// Which of its ranks are endpoints. One of several target ports is one rank, whatever the
    /// engine says of the others.
    fn endpoints_of(&self, ranks: impl Iterator<Item = u32>) -> BTreeSet<u32> {
        match self.hints.rank {
            None => pinnable(ranks),
            Some(_one_of_many) => BTreeSet::new(),
        }
    }

    /// Where the socket of a rank is, if that of rank 0 has this port.
    fn at(&self, base: u16, rank: u32) -> Option<String> {
        let port = base.checked_add(u16::try_from(rank).ok()?)?;
        Some(format!("tcp://{}", SocketAddr::new(self.engine, port)))
    }

    /// Where the events of a rank are for an engine that does not tell: its sockets are so many
    /// ports on from those of rank 0.
    fn usual_source(&self, rank: u32) -> Result<Source, String> {
        let EventHints {
            live_port,
            replay_port,
            ..
        } = *self.hints;
        let base = live_port.unwrap_or(self.settings.live_port);
        let Some(live) = self.at(base, rank) else {
            return Err(format!(
                "there is no port {rank} on from {base} for the KV events of rank {rank}"
            ));
        };
        Ok(Source {
            rank,
            live,
            replay: self.at(replay_port.unwrap_or(self.settings.replay_port), rank),
            known: live_port.is_some() || replay_port.is_some(),
            ..Source::default()
        })
    }
}

/// Sources that know whether there are others beside them.
fn told_apart(mut sources: Sources, endpoints: &BTreeSet<u32>) -> Sources {
    let several = sources.len() > 1;
    for source in sources.values_mut().flatten() {
        source.one_of_several = several;
        source.shares_reports = several && endpoints.is_empty();
    }
    sources
}

/// The ranks, if there are several and a request can be pinned to each by its number. A server
/// that stands before some ranks of many (vLLM's hybrid balancing) begins with another number
/// than 0 and counts its own from 0 in the header; it stays one endpoint.
fn pinnable(ranks: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    let ranks: BTreeSet<u32> = ranks.collect();
    let all_from_zero = (0..).zip(&ranks).all(|(n, &rank)| n == rank);
    if ranks.len() > 1 && all_from_zero {
        ranks
    } else {
        BTreeSet::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Semaphore;

    use super::*;

    fn settings() -> Settings {
        Settings {
            live_port: 5557,
            replay_port: 5600,
            replay_timeout: Duration::from_secs(1),
            guess_timeout: Duration::from_secs(1),
            quiet_timeout: Duration::from_secs(1),
            max_orphans: 1,
            replays: Arc::new(Semaphore::new(1)),
        }
    }

    fn plan(
        events: Option<Events>,
        version: (u32, u32),
        page: &[u32],
        hints: &EventHints,
    ) -> Option<Plan> {
        let profile = Profile {
            events,
            version: Some(version),
            ..Profile::default()
        };
        Plan::new(&Known {
            engine: "10.0.0.7".parse().unwrap(),
            profile: &profile,
            page_ranks: &page.iter().copied().collect(),
            hints,
            settings: &settings(),
        })
    }

    fn source(rank: u32, live: u16, replay: u16, known: bool) -> Result<Source, String> {
        Ok(Source {
            rank,
            live: format!("tcp://10.0.0.7:{live}"),
            replay: Some(format!("tcp://10.0.0.7:{replay}")),
            known,
            ..Source::default()
        })
    }

    /// One of several: of an endpoint of its own, or (`shares_reports`) of one for all.
    fn beside_others(
        source: Result<Source, String>,
        shares_reports: bool,
    ) -> Result<Source, String> {
        source.map(|source| Source {
            one_of_several: true,
            shares_reports,
            ..source
        })
    }

    fn told(ranks: &[u32]) -> Events {
        Events::Told(
            ranks
                .iter()
                .map(|&rank| (rank, Err("x".to_owned())))
                .collect(),
        )
    }

    fn hints(live_port: Option<u16>, replay_port: Option<u16>, rank: Option<u32>) -> EventHints {
        EventHints {
            live_port,
            replay_port,
            rank,
        }
    }

    const NEW: (u32, u32) = (0, 31);

    #[test]
    fn several_ranks_from_zero_on_are_endpoints_and_others_are_not() {
        let none = EventHints::default();
        for (ranks, expected) in [
            (&[0, 1, 2][..], &[0, 1, 2][..]),
            (&[0], &[]),
            (&[3], &[]),
            (&[2, 3], &[]),
            (&[0, 2], &[]),
        ] {
            let plan = plan(Some(told(ranks)), NEW, &[], &none).unwrap();
            assert!(plan.ranks.iter().eq(expected), "{ranks:?}");
            assert!(plan.sources.keys().eq(ranks));
        }
    }

    #[test]
    fn the_engines_own_word_comes_before_hints_and_page() {
        let own: BTreeMap<_, _> = [0, 1]
            .map(|rank| {
                (
                    u32::from(rank),
                    source(rank.into(), 7000 + rank, 7100 + rank, true),
                )
            })
            .into();
        let all = hints(Some(9), Some(10), Some(1));
        let told = plan(Some(Events::Told(own.clone())), NEW, &[0, 1], &all);
        let expected = Plan {
            // Discovery says that it is one rank of many.
            ranks: BTreeSet::new(),
            sources: own
                .into_iter()
                .map(|(rank, source)| (rank, beside_others(source, true)))
                .collect(),
        };
        assert_eq!(told, Some(expected));
        assert_eq!(plan(None, NEW, &[0, 1], &all), None);
    }

    #[test]
    fn hinted_ports_are_those_of_rank_zero_and_known() {
        for (hints, expected) in [
            (hints(None, None, None), source(0, 5557, 5600, false)),
            (hints(None, None, Some(2)), source(2, 5559, 5602, false)),
            (
                hints(Some(7000), Some(7100), None),
                source(0, 7000, 7100, true),
            ),
            (
                hints(Some(7000), None, Some(3)),
                source(3, 7003, 5603, true),
            ),
        ] {
            let plan = plan(Some(Events::Untold), NEW, &[], &hints).unwrap();
            assert!(plan.ranks.is_empty());
            let rank = hints.rank.unwrap_or(0);
            assert_eq!(plan.sources, BTreeMap::from([(rank, expected)]));
        }
    }

    #[test]
    fn a_port_beyond_the_last_is_no_source() {
        let plan = plan(
            Some(Events::Untold),
            NEW,
            &[],
            &hints(Some(65_535), None, Some(1)),
        )
        .unwrap();
        let why = plan.sources[&1].clone().unwrap_err();
        assert_eq!(
            why,
            "there is no port 1 on from 65535 for the KV events of rank 1"
        );
    }

    #[test]
    fn where_the_engine_does_not_tell_its_metrics_page_tells_of_ranks() {
        let none = EventHints::default();
        let untold = plan(Some(Events::Untold), (0, 20), &[0, 1], &none).unwrap();
        assert!(untold.ranks.iter().eq(&[0, 1]));
        assert_eq!(
            untold.sources[&1],
            beside_others(source(1, 5558, 5601, false), false)
        );
        let off = plan(Some(Events::Off), NEW, &[0, 1], &none).unwrap();
        assert!(off.ranks.iter().eq(&[0, 1]));
        assert!(off.sources.values().all(Result::is_err));
        let old = plan(Some(Events::Untold), (0, 10), &[0, 1], &none).unwrap();
        assert!(old.ranks.is_empty(), "it would not obey the header");
        assert!(old.sources.keys().eq(&[0, 1]), "all caches are its");
    }

    #[test]
    fn a_server_before_some_ranks_has_the_events_of_those_that_its_page_names() {
        let none = EventHints::default();
        for page in [&[3][..], &[2, 3]] {
            let plan = plan(Some(Events::Untold), (0, 20), page, &none).unwrap();
            assert!(plan.ranks.is_empty());
            assert!(plan.sources.keys().eq(page));
            let third = plan.sources[&3].clone().unwrap();
            let expected = source(3, 5560, 5603, false).unwrap();
            assert_eq!((third.live, third.replay), (expected.live, expected.replay));
            assert_eq!(third.one_of_several, page.len() > 1);
            assert_eq!(third.shares_reports, page.len() > 1);
        }
    }

    #[test]
    fn one_of_several_ports_is_one_rank_whatever_the_engine_says_of_the_others() {
        for rank in [0, 1] {
            let one_of_many = hints(None, None, Some(rank));
            let by_page = plan(Some(Events::Untold), NEW, &[0, 1], &one_of_many).unwrap();
            assert!(by_page.ranks.is_empty());
            assert!(by_page.sources.keys().eq(&[rank]));
            let told = plan(Some(told(&[0, 1])), NEW, &[0, 1], &one_of_many).unwrap();
            assert!(told.ranks.is_empty());
        }
    }
}
