//! What engines answer, in every dialect seen, and how often they are asked.

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

const ENGINE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

fn told(body: &str) -> BTreeMap<u32, Result<Source, String>> {
    match read_sources(body.as_bytes(), ENGINE) {
        Some(Events::Told(ranks)) => ranks,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wildcards_are_the_engines_own_address_and_other_hosts_stay() {
    for host in ["*", "0.0.0.0", "[::]"] {
        let body = format!(
            r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://{host}:5700","replay_endpoint":"tcp://{host}:5800","topic":"t"}}}}"#
        );
        let source = Source {
            rank: 0,
            live: "tcp://10.0.0.7:5700".to_owned(),
            replay: Some("tcp://10.0.0.7:5800".to_owned()),
            known: true,
        };
        assert_eq!(told(&body), BTreeMap::from([(0, Ok(source))]));
    }
    let other = told(r#"{"0":{"endpoint":"tcp://10.9.9.9:5557","replay_endpoint":null}}"#);
    let source = other[&0].as_ref().unwrap();
    assert_eq!(
        (source.live.as_str(), &source.replay),
        ("tcp://10.9.9.9:5557", &None)
    );
}

#[test]
fn an_ipv6_engine_is_reached_with_brackets() {
    let reached = reachable("tcp://*:5557", "fd00::1".parse().unwrap());
    assert_eq!(reached.unwrap(), "tcp://[fd00::1]:5557");
}

#[test]
fn ranks_are_numbers_in_any_order() {
    let ranks = told(r#"{"1":{"endpoint":"tcp://*:5701"},"0":{"endpoint":"tcp://*:5700"}}"#);
    assert_eq!(ranks.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(ranks[&1].as_ref().unwrap().live, "tcp://10.0.0.7:5701");
}

#[test]
fn no_sources_or_only_disabled_ones_mean_that_events_are_off() {
    for body in [
        "{}",
        r#"{"0":{"enable_kv_cache_events":false}}"#,
        r#"{"0":{"publisher":"null"}}"#,
    ] {
        assert_eq!(
            read_sources(body.as_bytes(), ENGINE),
            Some(Events::Off),
            "{body}"
        );
    }
}

#[test]
fn ranks_that_no_deployment_has_are_no_answer() {
    let sources = |rank: u32| read_sources(format!(r#"{{"{rank}":{{}}}}"#).as_bytes(), ENGINE);
    assert!(matches!(sources(LAST_RANK), Some(Events::Told(_))));
    assert_eq!(sources(LAST_RANK + 1), None);
}

#[test]
fn a_socket_out_of_reach_says_why() {
    let why = told(r#"{"0":{"endpoint":"ipc:///tmp/x"}}"#)[&0]
        .clone()
        .unwrap_err();
    assert_eq!(
        why,
        "the engine publishes its KV events at ipc:///tmp/x, which cannot be reached from here"
    );
    assert!(told(r#"{"0":{"endpoint":"tcp://*:0"}}"#)[&0].is_err());
}

#[test]
fn versions_are_read_as_far_as_they_are_numbers() {
    let version = |text: &str| read_version(format!(r#"{{"version":"{text}"}}"#).as_bytes());
    assert_eq!(version("0.31.0"), Some(Some((0, 31))));
    assert_eq!(version("v0.20.1+cpu"), Some(Some((0, 20))));
    assert_eq!(version("0.9rc1"), Some(Some((0, 9))));
    assert_eq!(version("dev"), Some(None));
    assert_eq!(read_version(b"<html>"), None);
}

#[test]
fn recorded_answers_of_a_real_engine_are_read() {
    let Some(shared) = std::env::var_os("WARMPATH_SHARED") else {
        println!("WARMPATH_SHARED is not set: the recorded answers are left out");
        return;
    };
    let path = std::path::Path::new(&shared).join("data/captures/vllm-0.31-metrics.txt");
    let recording = std::fs::read_to_string(path).unwrap();
    let body = |heading: &str| {
        let part = recording
            .split("##### ")
            .find(|part| part.starts_with(heading))
            .unwrap();
        part.lines()
            .find(|line| line.starts_with('{'))
            .unwrap()
            .as_bytes()
            .to_vec()
    };
    let models = read_models(&body("GET /v1/models")).unwrap();
    assert_eq!(models[0].id, "qwen3");
    assert_eq!(models[0].root.as_deref(), Some("/models/m-qwen3"));
    assert_eq!(models[0].max_model_len, Some(12_000));
    assert_eq!(read_version(&body("GET /version")), Some(Some((0, 31))));
    let Some(Events::Told(ranks)) = read_sources(&body("GET /kv_event_sources"), ENGINE) else {
        panic!("no sources");
    };
    assert_eq!(ranks[&0].as_ref().unwrap().live, "tcp://10.0.0.7:5700");
}

type Answers = fn(&str) -> Option<(u16, &'static str)>;

/// Answers every question with the status and body in force, and counts rounds.
#[derive(Clone)]
struct Double {
    answer: Arc<Mutex<Answers>>,
    rounds: Arc<Mutex<Vec<Duration>>>,
    began: Instant,
}

impl Double {
    fn new(answer: Answers) -> Self {
        Self {
            answer: Arc::new(Mutex::new(answer)),
            rounds: Arc::default(),
            began: Instant::now(),
        }
    }
}

impl Ask for Double {
    async fn get(
        &self,
        path: &str,
        deadline: Duration,
    ) -> Result<Answer, crate::feeds::client::AskError> {
        if path == "/v1/models" {
            self.rounds.lock().push(self.began.elapsed());
        }
        let answer = (*self.answer.lock())(path);
        answer
            .map(|(status, body)| Answer {
                status,
                body: body.into(),
            })
            .ok_or_else(|| crate::feeds::client::AskError::Late {
                address: (ENGINE, 1).into(),
                path: path.to_owned(),
                deadline,
            })
    }
}

fn probe(double: &Double) -> (ProbeLoop<Double>, watch::Receiver<Profile>, Arc<Notify>) {
    let (profile, told) = watch::channel(Profile::default());
    let came_back = Arc::new(Notify::new());
    let probe = ProbeLoop {
        name: EndpointName::new("default", "e"),
        address: (ENGINE, 8000).into(),
        engine: double.clone(),
        came_back: Arc::clone(&came_back),
        profile,
    };
    (probe, told, came_back)
}

async fn run_for(time: Duration, probe: ProbeLoop<Double>) {
    assert!(tokio::time::timeout(time, probe.run()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_old_engine_without_the_question_has_untold_events_and_is_asked_every_minute() {
    let double = Double::new(|path| match path {
        "/v1/models" => Some((200, r#"{"data":[{"id":"m","root":"org/m"}]}"#)),
        "/version" => Some((200, r#"{"version":"0.20.1"}"#)),
        _ => Some((404, "")),
    });
    let (probe, told, _) = probe(&double);
    run_for(Duration::from_secs(185), probe).await;
    let profile = told.borrow().clone();
    assert_eq!(profile.models[0].root.as_deref(), Some("org/m"));
    assert_eq!(
        (profile.version, profile.events),
        (Some((0, 20)), Some(Events::Untold))
    );
    assert!((3..=4).contains(&double.rounds.lock().len()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_engine_is_asked_again_with_growing_pauses_and_tells_nothing() {
    let double = Double::new(|_| None);
    let (probe, told, _) = probe(&double);
    run_for(Duration::from_secs(60), probe).await;
    assert_eq!(*told.borrow(), Profile::default());
    let rounds = double.rounds.lock().len();
    assert!((14..=20).contains(&rounds), "{rounds}");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_came_back_is_asked_at_once() {
    let double = Double::new(|path| match path {
        "/kv_event_sources" => Some((200, "{}")),
        "/version" => Some((200, r#"{"version":"0.31.0"}"#)),
        _ => Some((401, "")),
    });
    let (probe, told, came_back) = probe(&double);
    let returns = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        *double.answer.lock() = |path| match path {
            "/kv_event_sources" => Some((200, r#"{"0":{"endpoint":"tcp://*:5557"}}"#)),
            _ => Some((401, "")),
        };
        came_back.notify_one();
    };
    tokio::join!(run_for(Duration::from_secs(11), probe), returns);
    let rounds: Vec<_> = double.rounds.lock().iter().map(Duration::as_secs).collect();
    assert_eq!(rounds, [0, 10]);
    assert!(matches!(told.borrow().events, Some(Events::Told(_))));
    assert_eq!(
        told.borrow().version,
        Some((0, 31)),
        "what is not told again stays"
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_comes_back_again_and_again_is_asked_once_a_second() {
    let double = Double::new(|_| Some((404, "")));
    let (probe, _told, came_back) = probe(&double);
    let returns = async {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            came_back.notify_one();
        }
    };
    tokio::select! {
        () = run_for(Duration::from_millis(3_500), probe) => {}
        () = returns => {}
    }
    let rounds: Vec<_> = double.rounds.lock().iter().map(Duration::as_secs).collect();
    assert_eq!(rounds, [0, 1, 2, 3]);
}

proptest! {
    #[test]
    fn any_answer_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in "[{}\\[\\]\":,a-z0-9]{0,60}") {
        for body in [&bytes[..], json.as_bytes()] {
            read_models(body);
            read_version(body);
            read_sources(body, ENGINE);
        }
    }

    #[test]
    fn any_told_address_is_survived(told in "(tcp://)?[*0-9.:\\[\\]a-z]{0,20}") {
        if let Ok(reached) = reachable(&told, ENGINE) {
            prop_assert!(reached.starts_with("tcp://"));
        }
    }
}
