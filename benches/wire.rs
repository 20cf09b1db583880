//! What does the wire cost? A server in a process of its own, so that its CPU time is told apart from the load's.
//!
//! `cargo bench --profile quick --bench wire` prints for each load: exchanges a second, and the server's CPU time for
//! one exchange. The pick behind it chooses at once, so all that is measured is gRPC, the exchange, and reading along.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a measuring program: it stops at the first failure and prints"
)]

use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use warmpath::extproc::exchange::{BodyMode, TestHeaders};
use warmpath::extproc::pick::{Flight, Pick, Rejection, RequestBody, RequestHead, Usage};
use warmpath::extproc::proto::envoy::config::core::v3::{HeaderMap, HeaderValue};
use warmpath::extproc::proto::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, body_mutation::Mutation, processing_request::Request,
    processing_response::Response,
};
use warmpath::extproc::server::{self, Security, Settings};
use warmpath::metrics::wire::WireMetrics;

const SERVER: &str = "WARMPATH_BENCH_SERVER";

struct Instantly;
struct Nothing;

impl Pick for Instantly {
    type Flight = Nothing;
    async fn pick(&self, _: RequestHead, _: RequestBody) -> Result<Nothing, Rejection> {
        Ok(Nothing)
    }
}

impl Flight for Nothing {
    fn destination(&self) -> &str {
        "10.0.0.1:8000"
    }
    fn response_started(&mut self, _: u16) {}
    fn served_by(&mut self, _: SocketAddr) {}
    fn first_data(&mut self) {}
    fn usage(&mut self, _: Usage) {}
    fn completed(&mut self) {}
    fn no_response_phase(self) {}
}

#[tokio::main]
async fn main() {
    if std::env::var_os(SERVER).is_some() {
        serve().await;
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(SERVER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let address = address.trim().to_owned();
    let pid = child.id();
    println!(
        "{:<44} {:>8} {:>14} {:>14}",
        "load", "1/s", "server CPU ms", "MiB resident"
    );
    let loads: [(&str, usize, Vec<Turn>); 4] = [
        (
            "32 KB body, short answer, loop of 16",
            16,
            exchange(32_000, 0),
        ),
        (
            "220 KB body, short answer, loop of 16",
            16,
            exchange(220_000, 0),
        ),
        ("1 KB body, 300 events, loop of 1", 1, exchange(1_000, 300)),
        (
            "1 KB body, 300 events, loop of 16",
            16,
            exchange(1_000, 300),
        ),
    ];
    for (name, loops, turns) in loads {
        run(&address, loops, &turns, Duration::from_millis(500)).await;
        let before = cpu(pid);
        let started = Instant::now();
        let done = run(&address, loops, &turns, Duration::from_secs(4)).await as f64;
        let rate = done / started.elapsed().as_secs_f64();
        let each = (cpu(pid) - before) / done * 1000.0;
        println!(
            "{name:<44} {rate:>8.0} {each:>14.3} {:>14.1}",
            resident_mib(pid)
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    let settings = Settings {
        max_body_bytes: 32 << 20,
        max_exchanges: 1000,
        max_buffered_bytes: 1 << 30,
        default_body_mode: BodyMode::FullDuplexStreamed,
        pick_timeout: Duration::from_secs(1),
        body_timeout: Duration::from_secs(60),
        test_headers: TestHeaders::Ignored,
    };
    let metrics = WireMetrics::register(&prometheus::Registry::new()).unwrap();
    let (_ready, readiness) = watch::channel(true);
    server::serve(
        listener,
        Security::Plain,
        settings,
        Arc::new(Instantly),
        readiness,
        Arc::new(metrics),
        CancellationToken::new(),
    )
    .await
    .unwrap();
}

/// Messages that go out together, and the bytes of body that come back before the next turn.
struct Turn(Vec<ProcessingRequest>, Back);

enum Back {
    Headers,
    Bytes(usize),
    End,
}

/// One exchange as Envoy plays it: body messages as they come off the socket, the end on its own, each event on its own.
fn exchange(body_bytes: usize, events: usize) -> Vec<Turn> {
    let body = vec![b'x'; body_bytes];
    let mut request = vec![headers(
        true,
        &[
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            (":authority", "models.example.com"),
            (":scheme", "http"),
            ("content-type", "application/json"),
            ("user-agent", "bench"),
            ("x-request-id", "3f0c2a7e-6f0a-4d8e-9d7e-0a2b5c6d7e8f"),
            ("x-forwarded-for", "10.1.2.3"),
        ],
    )];
    request.extend(
        body.chunks(64 * 1024)
            .map(|chunk| self::body(true, chunk.to_vec(), false)),
    );
    request.push(self::body(true, Vec::new(), true));
    let kind = if events > 0 {
        "text/event-stream"
    } else {
        "application/json"
    };
    let mut turns = vec![
        Turn(request, Back::End),
        Turn(
            vec![headers(
                false,
                &[
                    (":status", "200"),
                    ("content-type", kind),
                    ("server", "uvicorn"),
                ],
            )],
            Back::Headers,
        ),
    ];
    let event = b"data: {\"id\":\"chatcmpl-8f2c1d0e9b7a4c3f\",\"object\":\"chat.completion.chunk\",\"created\":1764000000,\"model\":\"qwen3-32b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tokens\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n".to_vec();
    for _ in 0..events {
        turns.push(Turn(
            vec![self::body(false, event.clone(), false)],
            Back::Bytes(event.len()),
        ));
    }
    let last = b"{\"choices\":[],\"usage\":{\"prompt_tokens\":8000,\"completion_tokens\":300,\"prompt_tokens_details\":{\"cached_tokens\":6000}}}".to_vec();
    let last = if events > 0 {
        [b"data: ", &last[..], b"\n\n"].concat()
    } else {
        last
    };
    turns.push(Turn(
        vec![
            self::body(false, last, false),
            self::body(false, Vec::new(), true),
        ],
        Back::End,
    ));
    turns
}

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

fn headers(request: bool, pairs: &[(&str, &str)]) -> ProcessingRequest {
    let headers = pairs.iter().map(|(key, value)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    });
    let headers = HttpHeaders {
        headers: Some(HeaderMap {
            headers: headers.collect(),
        }),
        end_of_stream: false,
    };
    message(if request {
        Request::RequestHeaders(headers)
    } else {
        Request::ResponseHeaders(headers)
    })
}

fn body(request: bool, body: Vec<u8>, end_of_stream: bool) -> ProcessingRequest {
    let body = HttpBody {
        body: body.into(),
        end_of_stream,
    };
    message(if request {
        Request::RequestBody(body)
    } else {
        Request::ResponseBody(body)
    })
}

/// Plays exchanges in closed loops and counts them.
async fn run(address: &str, loops: usize, turns: &[Turn], time: Duration) -> usize {
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .connect()
        .await
        .unwrap();
    let until = Instant::now() + time;
    let loops = (0..loops).map(|_| {
        let channel = channel.clone();
        async move {
            let mut done = 0;
            while Instant::now() < until {
                play(channel.clone(), turns).await;
                done += 1;
            }
            done
        }
    });
    join_all(loops).await.into_iter().sum()
}

async fn play(channel: Channel, turns: &[Turn]) {
    let (sender, receiver) = mpsc::channel(16);
    let messages = futures_util::stream::unfold(receiver, |mut receiver| async move {
        Some((receiver.recv().await?, receiver))
    });
    let mut client = ExternalProcessorClient::new(channel);
    let mut answers = client.process(messages).await.unwrap().into_inner();
    for Turn(messages, back) in turns {
        for message in messages {
            sender.send(message.clone()).await.unwrap();
        }
        let mut bytes = 0;
        loop {
            let answer = answers.message().await.unwrap().unwrap();
            let (Response::RequestBody(body) | Response::ResponseBody(body)) =
                answer.response.unwrap()
            else {
                if matches!(back, Back::Headers) {
                    break;
                }
                continue;
            };
            let Some(Mutation::StreamedResponse(chunk)) =
                body.response.unwrap().body_mutation.unwrap().mutation
            else {
                panic!("not a chunk");
            };
            bytes += chunk.body.len();
            if chunk.end_of_stream || matches!(back, Back::Bytes(due) if *due == bytes) {
                break;
            }
        }
    }
    drop(sender);
    assert!(answers.message().await.unwrap().is_none());
}

/// Seconds of CPU a process has used (Linux; its clock ticks are hundredths).
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1024.0
}
