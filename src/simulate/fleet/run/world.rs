//! What reaches the picker beside requests, and when: events, reports, deaths. And when is the course looked at?

use std::time::Duration;

use super::super::RunError;
use super::super::agenda::What;
use super::{Batch, Late, Run, Told};
use crate::engine::model::Model;

impl Run<'_> {
    pub(super) fn tell(&mut self, replica: usize, life: u32, what: Batch) {
        if self.settings.event_delay.is_zero() {
            self.apply(&Late {
                replica,
                life,
                what,
            });
        } else {
            self.events.push_back(Late {
                replica,
                life,
                what,
            });
            self.agenda
                .note(self.now + self.settings.event_delay, What::Events);
        }
    }

    pub(super) fn receive_events(&mut self) {
        if let Some(late) = self.events.pop_front() {
            self.apply(&late);
        }
    }

    fn apply(&mut self, late: &Late<Batch>) {
        let replica = self.replicas.get_mut(late.replica);
        if let Some(engine) = replica.and_then(|it| it.engine_of(late.life)) {
            let Batch { events, changes } = &late.what;
            match self.told {
                Told::Keys => engine
                    .view
                    .apply_keys(changes, self.settings.engine.block_size),
                Told::Events => {
                    engine.view.apply(events);
                }
            }
        }
    }

    pub(super) fn ask_report(&mut self, replica: usize) {
        self.report(replica);
        let interval = self.settings.report_interval;
        let next = self.now + interval + interval.saturating_mul(self.needless_reports());
        self.agenda.note(next, What::AskReport(replica));
    }

    /// Reports that can be left out because the fleet is idle until something happens: all say the same, and the last of
    /// them come all the same, some of them before it and those that are still under way then.
    fn needless_reports(&mut self) -> u32 {
        let quiet = self.quiet.unwrap_or_else(|| self.quiet_until());
        self.quiet = Some(quiet);
        let interval = self.settings.report_interval;
        let needed = self.settings.report_delay + 4 * interval;
        let spare = quiet.saturating_sub(self.now + needed);
        u32::try_from(spare.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX)
    }

    fn quiet_until(&self) -> Duration {
        let idle = self.replicas.iter().all(|it| it.in_flight() == 0);
        let next = self.agenda.next_but_reports().filter(|_| idle);
        next.unwrap_or(self.now)
    }

    fn report(&mut self, replica: usize) {
        let Some(place) = self.replicas.get_mut(replica) else {
            return;
        };
        let life = place.life;
        let Some(engine) = place.engine() else {
            return;
        };
        let what = engine.report(&self.settings.engine);
        if self.now < engine.started + self.settings.report_delay {
            // What it said before its start is still coming in.
            self.known
                .report(replica, engine.idle, self.base + self.now);
        }
        if self.settings.report_delay.is_zero() {
            self.known.report(replica, what, self.instant());
        } else {
            self.reports.push_back(Late {
                replica,
                life,
                what,
            });
            self.agenda
                .note(self.now + self.settings.report_delay, What::Report);
        }
    }

    pub(super) fn receive_report(&mut self) {
        let Some(Late {
            replica,
            life,
            what,
        }) = self.reports.pop_front()
        else {
            return;
        };
        let place = self.replicas.get_mut(replica);
        if place.is_some_and(|place| place.engine_of(life).is_some()) {
            self.known.report(replica, what, self.instant());
        }
    }

    pub(super) fn note_interval(&mut self) {
        let at = self.tally.start() + self.tally.course.due();
        self.agenda.note(at, What::Interval);
    }

    pub(super) fn end_interval(&mut self) {
        let at = self.now.saturating_sub(self.tally.start());
        let in_flight = self
            .replicas
            .iter()
            .map(|replica| replica.in_flight() as f32);
        let queued = self
            .known
            .queued(self.instant())
            .into_iter()
            .map(|tokens| tokens as f32);
        self.tally
            .interval(at, in_flight.collect(), queued.collect());
    }

    /// A replica is up, cold.
    pub(super) fn start(&mut self, replica: usize) -> Result<(), RunError> {
        let settings = self.settings.engine.clone();
        let model = match self.told {
            Told::Keys => Model::by_keys(settings)?,
            Told::Events => Model::new(settings)?,
        };
        let Some(view) = self.known.up(replica) else {
            return Ok(());
        };
        let Some(place) = self.replicas.get_mut(replica) else {
            return Ok(());
        };
        let is_first_life = place.life == 0;
        let idle = place.start(model, view, &self.settings.engine, self.now);
        // It was asked before anybody is sent there: nobody is left out because a first report is on its way.
        self.known.report(replica, idle, self.base + self.now);
        if is_first_life {
            // Not all of them in step.
            let share = replica as f64 / self.settings.replicas as f64;
            let offset = self.settings.report_interval.mul_f64(share);
            self.agenda
                .note(self.now + offset, What::AskReport(replica));
        }
        Ok(())
    }

    /// A replica dies. Its clients see no error: the gateway sends their requests again at once.
    pub(super) fn die(&mut self, replica: usize) {
        let Some(place) = self.replicas.get_mut(replica) else {
            return;
        };
        place.outages += 1;
        if place.outages > 1 {
            return;
        }
        let lost = place.die();
        self.known.down(replica);
        self.policy.replica_changed(replica, false);
        for id in lost {
            if let Some(flight) = self.flights.get_mut(id) {
                flight.reservation = None;
                self.tally.repeated += 1;
                self.offer(id);
            }
        }
    }
    /// An outage of a replica is over. It is back unless another goes on.
    pub(super) fn come_back(&mut self, replica: usize) -> Result<(), RunError> {
        let Some(place) = self.replicas.get_mut(replica) else {
            return Ok(());
        };
        place.outages = place.outages.saturating_sub(1);
        if place.outages == 0 {
            self.start(replica)?;
            self.policy.replica_changed(replica, true);
        }
        Ok(())
    }
}
