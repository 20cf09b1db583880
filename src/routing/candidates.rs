//! Who may take a request, and why the others may not.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::endpoint::Report;
use super::router::{Exclusion, Settings, SubsetEntry};

/// What is known of an endpoint's state, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// The last report and when it came.
    pub report: Option<(Report, Instant)>,
    /// It has no report page: nothing can be asked of it, so nothing is held against it.
    pub no_page: bool,
    /// Nobody listened when it was last asked. Requests end at once there, so that it would seem the
    /// least busy of all.
    pub refused: bool,
    /// The first time it was looked at, from which an age counts until a report comes.
    pub known_since: Option<Instant>,
    /// When it last became busy; `None` while it is idle.
    pub busy_since: Option<Instant>,
}

impl Health {
    /// How old what we know is: the last report's age, or the time it has been owed.
    pub fn report_age(&self, now: Instant) -> Duration {
        let from = self.report.map(|(_, at)| at).or(self.known_since);
        from.map_or(Duration::ZERO, |from| now.saturating_duration_since(from))
    }

    /// The guard that leaves the endpoint out, if one does.
    pub fn guard(&self, settings: &Settings, now: Instant) -> Option<Exclusion> {
        if self.refused {
            return Some(Exclusion::Unreachable);
        }
        if self.no_page {
            return None;
        }
        if let Some((report, _)) = self.report
            && report.kv_usage > settings.kv_usage_limit
        {
            return Some(Exclusion::KvUsage);
        }
        let too_old = match self.busy_since {
            // An idle endpoint is asked seldom: when it becomes busy its report may be
            // older than the limit for busy ones, and gets that long to be renewed.
            Some(since) => {
                let busy_for = now.saturating_duration_since(since);
                self.report_age(now).min(busy_for) > settings.report_age_limit
            }
            None => self.report_age(now) > settings.idle_report_age_limit,
        };
        too_old.then_some(Exclusion::ReportAge)
    }
}

impl Exclusion {
    /// The guards, in the order in which they are asked; the other causes are no guards.
    pub const GUARDS: [Self; 5] = [
        Self::Unreachable,
        Self::Refusing,
        Self::Stalled,
        Self::KvUsage,
        Self::ReportAge,
    ];

    /// A guard leaves out what could be taken all the same where it leaves nobody.
    pub fn is_guard(self) -> bool {
        Self::GUARDS.contains(&self)
    }

    /// The word in pages and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotReady => "not_ready",
            Self::Subset => "subset",
            Self::KvUsage => "kv_usage",
            Self::ReportAge => "report_age",
            Self::Unreachable => "unreachable",
            Self::Asleep => "asleep",
            Self::Refusing => "refusing",
            Self::Stalled => "stalled",
        }
    }
}

/// Whether a subset names an address; no subset names all of them.
pub fn in_subset(subset: Option<&[SubsetEntry]>, address: SocketAddr) -> bool {
    subset.is_none_or(|entries| {
        entries.iter().any(|entry| match *entry {
            SubsetEntry::Endpoint(endpoint) => endpoint == address,
            SubsetEntry::Address(ip) => ip == address.ip(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::cost::Tiers;
    use crate::routing::router::Policy;

    const LIMITS: Settings = Settings {
        policy: Policy::LeastPrefill,
        kv_usage_limit: 0.95,
        report_age_limit: Duration::from_millis(500),
        idle_report_age_limit: Duration::from_secs(6),
        tiers: Tiers {
            cpu: 0.25,
            storage: 1.0,
        },
    };

    fn reported(at: Instant, kv_usage: f64) -> Health {
        let report = Report {
            kv_usage,
            ..Report::default()
        };
        Health {
            report: Some((report, at)),
            ..Health::default()
        }
    }

    #[test]
    fn kv_usage_above_the_limit_excludes_and_at_the_limit_does_not() {
        let now = Instant::now();
        assert_eq!(reported(now, 0.95).guard(&LIMITS, now), None);
        assert_eq!(
            reported(now, 0.96).guard(&LIMITS, now),
            Some(Exclusion::KvUsage)
        );
    }

    #[test]
    fn a_busy_endpoints_report_ages_from_when_it_became_busy() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let health = Health {
            busy_since: Some(at(3_000)),
            ..reported(start, 0.0)
        };
        assert_eq!(health.guard(&LIMITS, at(3_500)), None);
        assert_eq!(health.guard(&LIMITS, at(3_501)), Some(Exclusion::ReportAge));
        let renewed = Health {
            busy_since: Some(at(3_000)),
            ..reported(at(3_400), 0.0)
        };
        assert_eq!(renewed.guard(&LIMITS, at(3_900)), None);
        assert_eq!(
            renewed.guard(&LIMITS, at(3_901)),
            Some(Exclusion::ReportAge)
        );
    }

    #[test]
    fn an_idle_endpoint_has_the_longer_limit_and_one_without_a_page_none() {
        let start = Instant::now();
        let late = start + Duration::from_millis(6_001);
        assert_eq!(
            reported(start, 0.0).guard(&LIMITS, start + Duration::from_secs(6)),
            None
        );
        assert_eq!(
            reported(start, 0.0).guard(&LIMITS, late),
            Some(Exclusion::ReportAge)
        );
        let silent = Health {
            known_since: Some(start),
            ..Health::default()
        };
        assert_eq!(silent.guard(&LIMITS, late), Some(Exclusion::ReportAge));
        let without_page = Health {
            no_page: true,
            ..silent
        };
        assert_eq!(without_page.guard(&LIMITS, late), None);
    }

    #[test]
    fn a_subset_names_one_port_or_all_ports_or_nobody() {
        let address: SocketAddr = "[fd00::1]:8000".parse().unwrap();
        let other: SocketAddr = "[fd00::1]:8001".parse().unwrap();
        assert!(in_subset(None, address));
        assert!(!in_subset(Some(&[]), address));
        assert!(in_subset(
            Some(&[SubsetEntry::Address(address.ip())]),
            address
        ));
        assert!(in_subset(Some(&[SubsetEntry::Endpoint(address)]), address));
        assert!(!in_subset(Some(&[SubsetEntry::Endpoint(other)]), address));
    }
}
