//! Random lives: whatever happens, nothing is left and nothing is negative.

use proptest::prelude::*;

use super::*;

/// Microseconds a token that a prefill takes in these tests.
const SPEED: u64 = 100;

#[test]
fn a_detached_booking_ends_when_events_cover_it() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.pick(&prompt).reservation.detach(pool.now);
    assert_eq!((pool.queued(0), pool.view(0).in_flight), (1_608, 1));
    pool.store(0, &prompt[..800], 0);
    assert_eq!(pool.queued(0), 808);
    pool.store(0, &prompt, 50);
    pool.assert_empty();
}

#[test]
fn a_detached_booking_ends_when_the_learnt_prefill_time_has_passed() {
    let mut pool = Pool::new(1);
    for n in 0..3 {
        let mut teacher = pool.pick(&tokens(n + 10, 1_000));
        pool.now += Duration::from_micros(1_000 * SPEED);
        teacher.reservation.prefilled(pool.now);
    }
    let learnt = pool.view(0).prefill_us_per_token.unwrap();
    assert!((learnt - SPEED as f64).abs() < 1.0, "{learnt}");
    let ahead = pool.pick(&tokens(1, 500));
    let picked = pool.now;
    pool.pick(&tokens(2, 1_000)).reservation.detach(pool.now);
    pool.now = picked + Duration::from_micros(1_490 * SPEED);
    assert_eq!(pool.queued(0), 1_500, "the queue ahead counts");
    pool.now = picked + Duration::from_micros(1_510 * SPEED);
    assert_eq!(pool.queued(0), 500);
    drop(ahead);
    pool.assert_empty();
}

#[test]
fn one_outlier_moves_the_learnt_speed_little() {
    let mut pool = Pool::new(1);
    let mut teach = |us_per_token: u64| {
        let mut decision = pool.pick(&tokens(1, 1_000));
        pool.now += Duration::from_micros(1_000 * us_per_token);
        decision.reservation.prefilled(pool.now);
        drop(decision);
        pool.view(0).prefill_us_per_token.unwrap()
    };
    assert!((teach(100) - 100.0).abs() < 1.0);
    assert!(teach(100_000) < 120.0);
}

#[derive(Clone, Debug)]
enum Step {
    Pick {
        prompt: u32,
        tokens: usize,
        shared: usize,
        bypass: bool,
    },
    Estimate {
        bytes: usize,
    },
    Prefilled(usize),
    Served(usize, u16),
    Detach(usize),
    Drop(usize),
    End(usize),
    Answered(usize, u16),
    Refused(usize, Option<u64>),
    MoreData(usize),
    Report(usize, Option<Report>),
    Store {
        endpoint: usize,
        prompt: u32,
        tokens: usize,
        shared: usize,
    },
    Clear(usize),
    Leave(usize),
    Join(Option<u32>),
    /// The engine has been another since so many microseconds.
    Restarted(usize, u64),
    Feed(usize, bool),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = 0_u32..6;
    let length = 0_usize..200;
    let shared = 0_usize..150;
    prop_oneof![
        6 => (prompt.clone(), length.clone(), shared.clone(), prop::bool::weighted(0.1))
            .prop_map(|(prompt, tokens, shared, bypass)| Step::Pick { prompt, tokens, shared, bypass }),
        1 => (0_usize..3_000).prop_map(|bytes| Step::Estimate { bytes }),
        3 => any::<usize>().prop_map(Step::Prefilled),
        2 => (any::<usize>(), 0_u16..6).prop_map(|(n, to)| Step::Served(n, to)),
        2 => any::<usize>().prop_map(Step::Detach),
        3 => any::<usize>().prop_map(Step::Drop),
        2 => any::<usize>().prop_map(Step::End),
        2 => (any::<usize>(), prop::sample::select(vec![200, 400, 429, 500, 503]))
            .prop_map(|(n, status)| Step::Answered(n, status)),
        1 => (any::<usize>(), prop::option::of(0_u64..100)).prop_map(|(n, s)| Step::Refused(n, s)),
        1 => any::<usize>().prop_map(Step::MoreData),
        2 => (any::<usize>(), prop::option::of(report())).prop_map(|(n, report)| Step::Report(n, report)),
        4 => (any::<usize>(), prompt, length, shared)
            .prop_map(|(endpoint, prompt, tokens, shared)| Step::Store { endpoint, prompt, tokens, shared }),
        1 => any::<usize>().prop_map(Step::Clear),
        1 => any::<usize>().prop_map(Step::Leave),
        1 => prop::option::of(0_u32..3).prop_map(Step::Join),
        1 => (any::<usize>(), 0_u64..60_000).prop_map(|(n, us)| Step::Restarted(n, us)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(n, live)| Step::Feed(n, live)),
        2 => (0_u64..50_000).prop_map(Step::Pass),
        1 => (0_u64..30_000_000).prop_map(Step::Pass),
    ]
}

fn report() -> impl Strategy<Value = Report> {
    (0_u64..4, any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(computed, told, asleep)| {
        Report {
            computed: told.then_some(computed),
            running: computed,
            asleep,
            ..Report::default()
        }
    })
}

fn prompt_of(prompt: u32, own: usize, shared: usize) -> Vec<u32> {
    joined(&[&tokens(1_000, shared), &tokens(prompt, own)])
}

/// With alternates, whose addresses are checked whenever a decision is kept.
fn ask(pool: &Pool, chance: u64) -> Ask<'static> {
    Ask {
        alternates: 3,
        ..pool.ask(chance)
    }
}

struct World {
    pool: Pool,
    held: Vec<Decision>,
    joined: u16,
}

impl World {
    fn take(&mut self, step: Step) {
        let pool = &mut self.pool;
        let n_held = self.held.len();
        let n_views = pool.views.len();
        match step {
            Step::Pick {
                prompt,
                tokens,
                shared,
                bypass,
            } => {
                let sequences = [
                    Sequence::Tokens(prompt_of(prompt, tokens, shared)),
                    Sequence::Tokens(prompt_of(prompt + 1, tokens / 2, shared)),
                ];
                let prepared = pool.router.prepare(&sequences, &Scope::default());
                let prepared = if bypass {
                    prepared.bypassing_cache()
                } else {
                    prepared
                };
                self.held
                    .extend(pool.router.pick(&prepared, &ask(pool, u64::from(prompt))));
            }
            Step::Estimate { bytes } => {
                let sequences = [Sequence::Estimate {
                    tokens: TokenCount::new(bytes as u64 / 3),
                    text: vec![b'x'; bytes],
                }];
                let prepared = pool.router.prepare(&sequences, &Scope::default());
                self.held
                    .extend(pool.router.pick(&prepared, &ask(pool, bytes as u64)));
            }
            Step::Prefilled(n) if n_held > 0 => {
                self.held[n % n_held].reservation.prefilled(pool.now);
            }
            Step::Served(n, to) if n_held > 0 => {
                self.held[n % n_held]
                    .reservation
                    .served_by(address(to), pool.now);
            }
            Step::Detach(n) if n_held > 0 => {
                self.held
                    .swap_remove(n % n_held)
                    .reservation
                    .detach(pool.now);
            }
            Step::Drop(n) if n_held > 0 => drop(self.held.swap_remove(n % n_held)),
            Step::End(n) if n_held > 0 => {
                self.held.swap_remove(n % n_held).reservation.end(pool.now);
            }
            Step::Answered(n, status) if n_held > 0 => {
                self.held[n % n_held].reservation.answered(status);
            }
            Step::Refused(n, seconds) if n_held > 0 => {
                let retry_after = seconds.map(Duration::from_secs);
                self.held[n % n_held]
                    .reservation
                    .refused(retry_after, pool.now);
            }
            Step::MoreData(n) if n_held > 0 => self.held[n % n_held].reservation.more_data(),
            Step::Report(n, report) if n_views > 0 => {
                let outcome = report.map_or(ReportOutcome::Refused, ReportOutcome::Fresh);
                pool.router.report(pool.ids[n % n_views], outcome, pool.now);
            }
            Step::Store {
                endpoint,
                prompt,
                tokens,
                shared,
            } if n_views > 0 => {
                let tokens = prompt_of(prompt, tokens, shared);
                pool.store(endpoint % n_views, &tokens, 0);
                if prompt % 3 == 0 {
                    let from = tokens.len() / 32;
                    pool.offload(endpoint % n_views, &tokens, from);
                }
            }
            Step::Clear(n) if n_views > 0 => pool.views[n % n_views].clear(),
            Step::Leave(n) if n_views > 0 => {
                // Its view lives on, as a subscriber that has not noticed would.
                pool.router.leave(pool.ids[n % n_views]);
            }
            Step::Join(rank) => {
                pool.join_as(Endpoint {
                    rank,
                    ..endpoint(self.joined % 6)
                });
                self.joined += 1;
            }
            Step::Restarted(n, ago) if n_views > 0 => {
                let since = pool.now.checked_sub(Duration::from_micros(ago));
                let since = since.unwrap_or(pool.now);
                pool.router
                    .restarted(pool.ids[n % n_views], since, pool.now);
            }
            Step::Feed(n, live) if n_views > 0 => {
                let state = if live {
                    FeedState::Live
                } else {
                    FeedState::Absent("off".into())
                };
                pool.views[n % n_views].set_feed(state);
            }
            Step::Pass(us) => pool.now += Duration::from_micros(us),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_any_life_nothing_is_left_booked(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World { pool: Pool::new(3), held: Vec::new(), joined: 3 };
        for step in steps {
            // Releasing more than was booked trips an assertion of the ledger itself.
            world.take(step);
            world.pool.router.state.ledger.lock().check();
            if let Some(decision) = world.held.last() {
                let mut named = decision.alternates.clone();
                named.push(decision.address);
                let count = named.len();
                named.sort_unstable();
                named.dedup();
                prop_assert_eq!(named.len(), count, "an address is named twice");
            }
        }
        world.held.clear();
        world.pool.now += Duration::from_secs(7_200);
        for &id in &world.pool.ids {
            // Nobody else's requests are there either.
            let outcome = ReportOutcome::Fresh(Report::default());
            world.pool.router.report(id, outcome, world.pool.now);
        }
        world.pool.assert_empty();
        world.pool.router.state.ledger.lock().assert_nothing_held();
    }
}
