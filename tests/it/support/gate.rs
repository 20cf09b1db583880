//! A gateway in a few lines: it asks the picker over ext-proc, sends the request to whom it names, and shows it the answer
//! chunk by chunk, as Envoy does with both bodies streamed. Where the wire is not what a test is about, this spares an
//! Envoy, and a hundred clients can share it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::HeaderMap as HttpHeaderMap;
use serde_json::Value;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use warmpath::extproc::proto::envoy::config::core::v3::{HeaderMap, HeaderValue};
use warmpath::extproc::proto::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, body_mutation::Mutation,
    processing_request::Request, processing_response::Response,
};

/// Longest time an engine may let its client wait for a byte: shorter than any test's patience, longer than any stall.
const ENGINE_PATIENCE: Duration = Duration::from_secs(40);

/// A gateway before one picker.
#[derive(Clone)]
pub(crate) struct Gate {
    picker: Channel,
    client: reqwest::Client,
}

/// What a client got.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The engine's status, the picker's where it refused, or 503 where the engine could not be reached.
    pub(crate) status: u16,
    /// The answer, as far as it came.
    pub(crate) body: Bytes,
    /// It came to its end.
    pub(crate) whole: bool,
}

impl Passed {
    fn refused(status: u16) -> Self {
        Self {
            status,
            body: Bytes::new(),
            whole: true,
        }
    }
}

impl Gate {
    /// Connects when it is first asked, and anew when the picker was replaced.
    pub(crate) fn before(picker: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{picker}")).expect("an address");
        Self {
            picker: endpoint.connect_lazy(),
            client: reqwest::Client::builder()
                .read_timeout(ENGINE_PATIENCE)
                // A kept connection to an engine that died meanwhile would fail the next request.
                .pool_max_idle_per_host(0)
                .build()
                .expect("a client"),
        }
    }

    /// One exchange from its head to its end. Dropping the future is a client that leaves. `None`: the picker could
    /// not be asked, or broke off.
    pub(crate) async fn pass(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Option<Passed> {
        let body = Bytes::from(body.to_string());
        let mut stream = Stream::open(self.picker.clone()).await?;
        let own = [
            (":method", "POST"),
            (":path", path),
            ("content-type", "application/json"),
        ];
        let head = fields(own.iter().chain(headers));
        stream.send(Request::RequestHeaders(head)).await;
        stream
            .send(Request::RequestBody(piece(body.clone(), true)))
            .await;
        let added = match stream.picked().await? {
            Ok(added) => added,
            Err(status) => return Some(Passed::refused(status)),
        };
        let to = added.get("x-gateway-destination-endpoint")?;
        let mut request = self.client.post(format!("http://{to}{path}")).body(body);
        request = request.header("content-type", "application/json");
        for (name, value) in &added {
            request = request.header(name, value);
        }
        // The stream is given up with the request: to the picker that is an exchange that was reset.
        let Ok(answer) = request.send().await else {
            return Some(Passed::refused(503));
        };
        Some(stream.show(answer).await)
    }
}

/// One ext-proc stream.
struct Stream {
    sender: mpsc::Sender<ProcessingRequest>,
    answers: Streaming<ProcessingResponse>,
}

impl Stream {
    async fn open(picker: Channel) -> Option<Self> {
        let (sender, receiver) = mpsc::channel(64);
        let messages = futures_util::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        let mut client = ExternalProcessorClient::new(picker);
        let answers = client.process(messages).await.ok()?.into_inner();
        Some(Self { sender, answers })
    }

    async fn send(&self, request: Request) {
        send(&self.sender, request).await;
    }

    /// The headers that the picker adds, once it has given the whole body back; or the status it answers with.
    async fn picked(&mut self) -> Option<Result<BTreeMap<String, String>, u16>> {
        let mut added = BTreeMap::new();
        loop {
            let answer = self.answers.message().await.ok()??;
            match answer.response? {
                Response::ImmediateResponse(refused) => {
                    let status = refused.status.map_or(500, |status| status.code);
                    return Some(Err(u16::try_from(status).unwrap_or(500)));
                }
                Response::RequestHeaders(headers) => {
                    let mutation = headers.response?.header_mutation?;
                    for option in mutation.set_headers {
                        let header = option.header?;
                        let value = String::from_utf8_lossy(&header.raw_value).into_owned();
                        added.insert(header.key, value);
                    }
                }
                Response::RequestBody(body) => {
                    let mutation = body.response?.body_mutation?.mutation?;
                    if matches!(mutation, Mutation::StreamedResponse(chunk) if chunk.end_of_stream)
                    {
                        return Some(Ok(added));
                    }
                }
                _ => {}
            }
        }
    }

    /// Shows an engine's answer to the picker while it comes, and takes what the picker gives back of it.
    async fn show(self, answer: reqwest::Response) -> Passed {
        // Dropped in the reverse order.
        let (sender, mut answers) = (self.sender, self.answers);
        let status = answer.status().as_u16();
        let (body, whole) = tokio::select! {
            shown = pass_on(&sender, answer) => shown,
            // The picker broke off.
            () = drain(&mut answers) => (Bytes::new(), false),
        };
        if whole {
            // In good order only what is whole; anything else is reset, by dropping the answers first.
            drop(sender);
            drain(&mut answers).await;
        }
        Passed {
            status,
            body,
            whole,
        }
    }
}

/// Takes what the picker gives back of a body, until it closes the stream.
async fn drain(answers: &mut Streaming<ProcessingResponse>) {
    while let Ok(Some(_)) = answers.message().await {}
}

async fn send(sender: &mpsc::Sender<ProcessingRequest>, request: Request) {
    let message = ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    };
    // A picker that has refused reads no more.
    sender.send(message).await.ok();
}

/// The engine's answer, shown to the picker; whether it came to its end.
async fn pass_on(
    sender: &mpsc::Sender<ProcessingRequest>,
    mut answer: reqwest::Response,
) -> (Bytes, bool) {
    let status = answer.status().as_str().to_owned();
    let kind = content_type(answer.headers());
    let pairs = [
        (":status", status.as_str()),
        ("content-type", kind.as_str()),
    ];
    send(sender, Request::ResponseHeaders(fields(pairs.iter()))).await;
    let mut body = BytesMut::new();
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => {
                body.extend_from_slice(&chunk);
                send(sender, Request::ResponseBody(piece(chunk, false))).await;
            }
            Ok(None) => {
                send(sender, Request::ResponseBody(piece(Bytes::new(), true))).await;
                return (body.freeze(), true);
            }
            Err(_cut) => return (body.freeze(), false),
        }
    }
}

fn content_type(headers: &HttpHeaderMap) -> String {
    let kind = headers.get("content-type");
    let kind = kind.and_then(|kind| kind.to_str().ok());
    kind.unwrap_or("application/json").to_owned()
}

fn fields<'a>(pairs: impl Iterator<Item = &'a (&'a str, &'a str)>) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: pairs.map(header).collect(),
        }),
        end_of_stream: false,
    }
}

fn piece(body: Bytes, end_of_stream: bool) -> HttpBody {
    HttpBody {
        body,
        end_of_stream,
    }
}
