//! The pace of questions in virtual time, and which page is asked for.

use parking_lot::Mutex;

use super::*;
use crate::feeds::life::tests::{life, member, world};
use crate::routing::router::Router;

const PAGE: &str = "vllm:num_requests_running{engine=\"0\"} 0\nvllm:kv_cache_usage_perc 0.5\n";
const BUSY: &str = "vllm:num_requests_running{engine=\"0\"} 3\n";

/// Answers by a script, and keeps what was asked when.
#[derive(Clone)]
struct Double {
    answer: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<(Duration, String)>>>,
    began: Instant,
}

type Answers = Box<dyn FnMut(&str) -> Option<(u16, &'static str)> + Send>;

impl Double {
    /// `answer` of `None` is silence until the deadline.
    fn new(answer: impl FnMut(&str) -> Option<(u16, &'static str)> + Send + 'static) -> Self {
        Self {
            answer: Arc::new(Mutex::new(Box::new(answer))),
            asked: Arc::default(),
            began: Instant::now(),
        }
    }

    fn becomes(&self, answer: impl FnMut(&str) -> Option<(u16, &'static str)> + Send + 'static) {
        *self.answer.lock() = Box::new(answer);
    }

    fn times_ms(&self) -> Vec<u128> {
        self.asked
            .lock()
            .iter()
            .map(|(at, _)| at.as_millis())
            .collect()
    }

    fn paths(&self) -> Vec<String> {
        self.asked
            .lock()
            .iter()
            .map(|(_, path)| path.clone())
            .collect()
    }
}

impl Ask for Double {
    async fn get(&self, path: &str, deadline: Duration) -> Result<Answer, AskError> {
        self.asked
            .lock()
            .push((self.began.elapsed(), path.to_owned()));
        let answer = (self.answer.lock())(path);
        match answer {
            Some((status, body)) => Ok(Answer {
                status,
                body: body.into(),
            }),
            None => {
                tokio::time::sleep(deadline).await;
                Err(AskError::Late {
                    address: ([127, 0, 0, 1], 1).into(),
                    path: path.to_owned(),
                    deadline,
                })
            }
        }
    }
}

fn settings() -> Settings {
    Settings {
        path: "/metrics".to_owned(),
        idle_interval: Duration::from_secs(2),
        age_limit: Duration::from_millis(500),
    }
}

struct Bench {
    double: Double,
    life: Arc<Life>,
    router: Arc<Router>,
    waker: Arc<Waker>,
    metrics: Arc<ReportMetrics>,
    ranks: watch::Sender<BTreeSet<u32>>,
}

impl Bench {
    fn new(double: Double) -> Self {
        let world = world();
        Self {
            double,
            life: life(&world, member(0)),
            router: Arc::clone(&world.router),
            waker: Arc::clone(&world.waker),
            metrics: Arc::new(ReportMetrics::register(&prometheus::Registry::new()).unwrap()),
            ranks: watch::Sender::default(),
        }
    }

    fn id(&self) -> EndpointId {
        self.router.endpoints(Instant::now().into_std())[0].id
    }

    fn report_loop(&self) -> ReportLoop<Double> {
        ReportLoop {
            life: Arc::clone(&self.life),
            engine: self.double.clone(),
            ranks: self.ranks.clone(),
            settings: settings(),
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// Runs the loop for some virtual time.
    async fn run(&self, time: Duration) {
        let ended = tokio::time::timeout(time, self.report_loop().run()).await;
        assert!(ended.is_err(), "the loop must not end");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_endpoint_is_asked_every_two_seconds_out_of_step() {
    let bench = Bench::new(Double::new(|_| Some((200, PAGE))));
    bench.run(Duration::from_secs(20)).await;
    let times = bench.double.times_ms();
    assert!((9..=12).contains(&times.len()), "{times:?}");
    for pair in times.windows(2) {
        assert!((1_800..=2_200).contains(&(pair[1] - pair[0])), "{times:?}");
    }
    assert_eq!(bench.metrics.fresh(), times.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn a_busy_endpoint_is_asked_four_times_within_the_age_limit() {
    let bench = Bench::new(Double::new(|_| Some((200, BUSY))));
    bench.run(Duration::from_millis(1_001)).await;
    assert_eq!(
        bench.double.times_ms(),
        [0, 125, 250, 375, 500, 625, 750, 875, 1_000]
    );
}

#[test]
fn a_wide_age_limit_does_not_have_busy_endpoints_asked_less_often_than_idle_ones() {
    let wide = Settings {
        age_limit: Duration::from_secs(30),
        ..settings()
    };
    assert_eq!(wide.busy_interval(), wide.idle_interval);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_engine_is_asked_three_times_within_the_age_limit_while_busy() {
    let mut first = true;
    let bench = Bench::new(Double::new(move |_| {
        std::mem::take(&mut first).then_some((200, BUSY))
    }));
    // Its last word was "busy", then silence: the router would hold bookings; here the bell stands for them.
    let ring = async {
        loop {
            bench.waker.wake(bench.id());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = bench.run(Duration::from_millis(700)) => {}
        () = ring => {}
    }
    let within: Vec<_> = bench
        .double
        .times_ms()
        .into_iter()
        .filter(|at| (1..=501).contains(at))
        .collect();
    assert!(within.len() >= 3, "{within:?}");
    assert!(bench.metrics.failed() >= 3);
}

#[tokio::test(start_paused = true)]
async fn a_bell_makes_an_idle_endpoint_be_asked_at_once() {
    let bench = Bench::new(Double::new(|_| Some((200, PAGE))));
    let ring = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        bench.waker.wake(bench.id());
    };
    tokio::join!(bench.run(Duration::from_secs(1)), ring);
    assert_eq!(bench.double.times_ms(), [0, 300]);
    Life::end(&[Arc::clone(&bench.life)]);
    assert!(
        bench.waker.bells.read().is_empty(),
        "the bell goes with the endpoint"
    );
}

#[tokio::test(start_paused = true)]
async fn bells_in_a_row_are_one_question_in_a_quarter_of_the_age_limit() {
    let bench = Bench::new(Double::new(|_| Some((200, PAGE))));
    // Many short requests, each on an endpoint (or a rank of it) that was idle.
    let ring = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            bench.waker.wake(bench.id());
        }
    };
    tokio::select! {
        () = bench.run(Duration::from_millis(501)) => {}
        () = ring => {}
    }
    assert_eq!(bench.double.times_ms(), [0, 125, 250, 375, 500]);
}

#[tokio::test(start_paused = true)]
async fn absurd_gauges_are_a_busy_engine_and_no_overflow() {
    let page = "vllm:num_requests_running 1e300\nvllm:num_requests_waiting +Inf\n";
    let bench = Bench::new(Double::new(move |_| Some((200, page))));
    bench.run(Duration::from_millis(126)).await;
    assert_eq!(bench.double.times_ms(), [0, 125]);
    assert!(bench.life.is_busy());
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_finds_nothing_means_the_whole_page_and_is_tried_again_later() {
    let bench = Bench::new(Double::new(|path| {
        Some((200, if path == "/metrics" { PAGE } else { "" }))
    }));
    bench.run(Duration::from_secs(70)).await;
    let paths = bench.double.paths();
    let filtered = paths.iter().filter(|path| path.contains("name[]")).count();
    assert_eq!(filtered, 2, "{paths:?}");
    assert!(
        paths[0].starts_with("/metrics/?name[]=vllm:kv_cache_usage_perc&name[]="),
        "{paths:?}"
    );
    assert_eq!(bench.metrics.fresh(), paths.len() as u64 - 2);
}

#[tokio::test(start_paused = true)]
async fn announced_gauges_without_samples_are_a_fresh_report() {
    let bench = Bench::new(Double::new(|path| {
        let whole = "# TYPE vllm:num_requests_running gauge\n";
        Some((200, if path == "/metrics" { whole } else { "" }))
    }));
    bench.run(Duration::from_secs(1)).await;
    assert_eq!(bench.metrics.fresh(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_page_it_is_asked_rarely_whatever_rings() {
    let bench = Bench::new(Double::new(|_| Some((404, "no"))));
    let ring = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.waker.wake(bench.id());
    };
    tokio::join!(bench.run(Duration::from_secs(59)), ring);
    assert_eq!(bench.metrics.no_page(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_server_is_a_failure_and_not_a_missing_page() {
    let bench = Bench::new(Double::new(|_| Some((503, "starting"))));
    bench.run(Duration::from_secs(1)).await;
    assert_eq!((bench.metrics.failed(), bench.metrics.no_page()), (1, 0));
    assert_eq!(
        bench.double.paths().len(),
        1,
        "an overloaded engine is not asked twice"
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_again_is_announced() {
    let bench = Bench::new(Double::new(|_| None));
    let bell = bench.life.profile_bell();
    let returns = async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        bench.double.becomes(|_| Some((200, PAGE)));
        tokio::time::timeout(Duration::from_secs(4), bell.notified()).await
    };
    let ((), announced) = tokio::join!(bench.run(Duration::from_secs(15)), returns);
    announced.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_question_serves_all_ranks_and_the_page_tells_which_there_are() {
    let page = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 4\n\
                vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n\
                vllm:cache_config_info{engine=\"0\",block_size=\"32\",kv_cache_size_tokens=\"12800\"} 1\n";
    let bench = Bench::new(Double::new(move |_| Some((200, page))));
    bench.life.divide(&BTreeSet::from([0, 1, 2]));
    bench.life.report_wanted().await;
    bench.run(Duration::from_millis(1)).await;
    assert_eq!(bench.double.paths().len(), 1);
    assert_eq!(*bench.ranks.borrow(), BTreeSet::from([0, 1]));
    let mut views = bench.router.endpoints(Instant::now().into_std());
    views.sort_by_key(|view| view.endpoint.rank);
    let reports: Vec<_> = views
        .iter()
        .map(|view| {
            let report = view.report.unwrap().0;
            (
                report.running,
                report.kv_usage,
                report.kv_capacity.unwrap().get(),
            )
        })
        .collect();
    // Rank 2 has not yet made a step.
    assert_eq!(
        reports,
        [(1, 0.0, 12_800), (4, 0.5, 12_800), (0, 0.0, 12_800)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_page_that_does_not_tell_ranks_apart_serves_them_all() {
    let page = "sglang:num_running_reqs 3\nsglang:token_usage 0.25\n";
    let bench = Bench::new(Double::new(move |_| Some((200, page))));
    bench.life.divide(&BTreeSet::from([0, 1]));
    bench.run(Duration::from_millis(1)).await;
    let views = bench.router.endpoints(Instant::now().into_std());
    assert_eq!(views.len(), 2);
    assert!(views.iter().all(|view| view.report.unwrap().0.running == 3));
    assert!(bench.ranks.borrow().is_empty());
}

#[test]
fn a_condition_changes_with_the_third_failure_in_a_row_and_with_one_report() {
    let fresh = ReportOutcome::Fresh(Report::default());
    let failed = ReportOutcome::Failed;
    let mut history = History::default();
    assert_eq!(history.turn(fresh), Some((None, Condition::Answers)));
    for outcome in [failed, failed, fresh, failed, failed] {
        assert_eq!(history.turn(outcome), None);
    }
    let (answers, fails) = (Condition::Answers, Condition::Fails);
    assert_eq!(history.turn(failed), Some((Some(answers), fails)));
    assert_eq!(history.turn(failed), None);
    assert_eq!(history.turn(fresh), Some((Some(fails), answers)));
}

#[tokio::test(start_paused = true)]
async fn what_engines_say_to_have_finished_is_asked_for_and_counted_by_endpoint() {
    let registry = prometheus::Registry::new();
    let mut bench = Bench::new(Double::new(|_| {
        let page =
            "vllm:num_requests_running 0\nvllm:request_success_total{finished_reason=\"stop\"} ";
        Some((200, [page, "7\n"].concat().leak()))
    }));
    bench.metrics = Arc::new(ReportMetrics::register(&registry).unwrap());
    let series = || {
        let families = registry.gather();
        let finished = families
            .iter()
            .find(|family| family.name() == "warmpath_engine_finished_requests_total")?;
        Some(finished.get_metric()[0].get_counter().get_value())
    };
    let grows = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Counting begins with the first look.
        assert_eq!(series(), Some(0.0));
        bench.double.becomes(|_| {
            let page = "vllm:num_requests_running 0\n\
                        vllm:request_success_total{finished_reason=\"stop\"} 9\n\
                        vllm:request_success_total{finished_reason=\"length\"} 1\n";
            Some((200, page))
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(series(), Some(3.0));
    };
    tokio::join!(bench.run(Duration::from_secs(6)), grows);
    assert_eq!(series(), None, "the series goes with its endpoint");
    let asked = bench.double.paths();
    assert!(
        asked[0].contains("&name[]=vllm:request_success_total"),
        "{asked:?}"
    );
}
