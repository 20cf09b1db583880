//! What engines answer, in every dialect seen, and how often they are asked.

use std::net::{IpAddr, Ipv4Addr};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

const ENGINE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));

#[test]
fn versions_are_read_as_far_as_they_are_numbers() {
    let version = |text: &str| read_version(format!(r#"{{"version":"{text}"}}"#).as_bytes());
    assert_eq!(version("0.31.0"), Some(Some((0, 31))));
    assert_eq!(version("v0.20.1+cpu"), Some(Some((0, 20))));
    assert_eq!(version("0.9rc1"), Some(Some((0, 9))));
    assert_eq!(version("0.11.1rc2.dev45+gabc"), Some(Some((0, 11))));
    assert_eq!(version("dev"), Some(None));
    // A build from a clone without tags, of whatever age.
    assert_eq!(version("0.1.dev1+g0a1b2c3"), Some(None));
    assert_eq!(version("0.1.0"), Some(Some((0, 1))));
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
    assert!(tokio::time::timeout(time, probe.run(|| ())).await.is_err());
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
async fn where_vllms_question_is_unknown_sglang_is_asked() {
    let double = Double::new(|path| match path {
        "/server_info" => Some((
            200,
            r#"{"kv_events":{"endpoint_host":"0.0.0.0","endpoint_port_base":5557,"dp_size":1}}"#,
        )),
        "/kv_event_sources" => Some((404, "")),
        _ => Some((200, r#"{"data":[]}"#)),
    });
    let (probe, told, _) = probe(&double);
    run_for(Duration::from_secs(1), probe).await;
    let Some(Events::Told(ranks)) = told.borrow().events.clone() else {
        panic!("nothing told");
    };
    assert_eq!(ranks[&0].as_ref().unwrap().live, "tcp://10.0.0.7:5557");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_all_but_where_its_events_are_has_untold_events_after_a_while() {
    let double = Double::new(|path| match path {
        "/kv_event_sources" => Some((404, "")),
        "/server_info" => Some((500, "")),
        _ => Some((200, r#"{"data":[]}"#)),
    });
    let (probe, told, _) = probe(&double);
    let sooner = told.clone();
    let early = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(sooner.borrow().events, None, "it may be starting");
    };
    tokio::join!(run_for(Duration::from_secs(60), probe), early);
    assert_eq!(told.borrow().events, Some(Events::Untold));
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
        }
    }
}
