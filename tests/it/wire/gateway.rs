//! A gateway as the server sees it: a gRPC client that plays one HTTP exchange a stream.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::FutureExt as _;
use prost::Message as _;
use prost_types::{ListValue, Struct, Value, value::Kind};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use warmpath::extproc::proto::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use warmpath::extproc::proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::{
    CommonResponse, HttpBody, HttpHeaders, HttpTrailers, ImmediateResponse, ProcessingRequest,
    ProcessingResponse, ProtocolConfiguration, body_mutation::Mutation,
    processing_request::Request, processing_response::Response,
};

use super::PATIENCE;

pub(super) async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// One stream.
pub(super) struct Exchange {
    sender: Option<mpsc::Sender<ProcessingRequest>>,
    answers: Streaming<ProcessingResponse>,
}

impl Exchange {
    pub(super) async fn open(channel: &Channel) -> Self {
        let (sender, receiver) = mpsc::channel(64);
        let messages = futures_util::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        let mut client = ExternalProcessorClient::new(channel.clone());
        let answers = client.process(messages).await.unwrap().into_inner();
        Self {
            sender: Some(sender),
            answers,
        }
    }

    pub(super) async fn send(&self, message: impl Into<ProcessingRequest>) {
        let sender = self.sender.as_ref().expect("the stream is open");
        // A server that has refused reads no more; the answer tells.
        sender.send(message.into()).await.ok();
    }

    /// The next answer; `None` when the server closed in good order.
    pub(super) async fn next(&mut self) -> Option<ProcessingResponse> {
        timeout(PATIENCE, self.answers.message())
            .await
            .expect("an answer in time")
            .expect("no gRPC error")
    }

    /// Nothing has arrived.
    pub(super) fn is_silent(&mut self) -> bool {
        self.answers.message().now_or_never().is_none()
    }

    pub(super) async fn answer(&mut self) -> Response {
        self.next().await.expect("an answer").response.unwrap()
    }

    pub(super) async fn request_headers(&mut self) -> (CommonResponse, Option<Struct>) {
        let answer = self.next().await.expect("an answer");
        match answer.response.unwrap() {
            Response::RequestHeaders(headers) => {
                (headers.response.unwrap(), answer.dynamic_metadata)
            }
            other => panic!("not request headers: {other:?}"),
        }
    }

    /// A body answer of either direction: its chunk, if it has one.
    pub(super) async fn chunk(&mut self) -> Option<(Bytes, bool)> {
        let (Response::RequestBody(body) | Response::ResponseBody(body)) = self.answer().await
        else {
            panic!("not a body");
        };
        match body.response.unwrap().body_mutation?.mutation.unwrap() {
            Mutation::StreamedResponse(chunk) => Some((chunk.body, chunk.end_of_stream)),
            other => panic!("a body was replaced: {other:?}"),
        }
    }

    /// All chunks up to the last.
    pub(super) async fn body(&mut self) -> Vec<Bytes> {
        let mut chunks = Vec::new();
        loop {
            let (chunk, end) = self.chunk().await.expect("a chunk");
            chunks.push(chunk);
            if end {
                return chunks;
            }
        }
    }

    pub(super) async fn refused(&mut self) -> ImmediateResponse {
        match self.answer().await {
            Response::ImmediateResponse(immediate) => immediate,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Closes our half, as Envoy does in good order, and waits for the server to close its own.
    pub(super) async fn close(mut self) {
        self.sender = None;
        assert_eq!(self.next().await, None);
    }
}

/// A message under construction.
pub(super) struct Say(ProcessingRequest);

impl From<Say> for ProcessingRequest {
    fn from(say: Say) -> Self {
        say.0
    }
}

fn say(request: Request) -> Say {
    Say(ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    })
}

fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let headers = pairs
        .iter()
        .map(|(key, value)| HeaderValue {
            key: (*key).to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        })
        .collect();
    HttpHeaders {
        headers: Some(HeaderMap { headers }),
        end_of_stream,
    }
}

fn body(body: impl Into<Bytes>, end_of_stream: bool) -> HttpBody {
    HttpBody {
        body: body.into(),
        end_of_stream,
    }
}

/// `POST /v1/chat/completions` with JSON.
pub(super) fn post() -> Say {
    request_headers(
        &[
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            ("content-type", "application/json"),
            ("x-request-id", "r-1"),
        ],
        false,
    )
}

pub(super) fn get() -> Say {
    request_headers(&[(":method", "GET"), (":path", "/v1/models")], true)
}

pub(super) fn request_headers(pairs: &[(&str, &str)], end: bool) -> Say {
    say(Request::RequestHeaders(headers(pairs, end)))
}

pub(super) fn request_body(bytes: impl Into<Bytes>, end: bool) -> Say {
    say(Request::RequestBody(body(bytes, end)))
}

pub(super) fn request_trailers() -> Say {
    say(Request::RequestTrailers(HttpTrailers::default()))
}

pub(super) fn response_headers(pairs: &[(&str, &str)], end: bool) -> Say {
    say(Request::ResponseHeaders(headers(pairs, end)))
}

pub(super) fn response_body(bytes: impl Into<Bytes>, end: bool) -> Say {
    say(Request::ResponseBody(body(bytes, end)))
}

pub(super) fn response_trailers() -> Say {
    say(Request::ResponseTrailers(HttpTrailers::default()))
}

impl Say {
    pub(super) fn modes(mut self, request: BodySendMode, response: BodySendMode) -> Self {
        self.0.protocol_config = Some(ProtocolConfiguration {
            request_body_mode: request.into(),
            response_body_mode: response.into(),
            ..ProtocolConfiguration::default()
        });
        self
    }

    pub(super) fn metadata(mut self, namespace: &str, key: &str, kind: Kind) -> Self {
        let fields = BTreeMap::from([(key.to_owned(), Value { kind: Some(kind) })]);
        let metadata = Metadata {
            filter_metadata: HashMap::from([(namespace.to_owned(), Struct { fields })]),
        };
        self.0.metadata_context = metadata.encode_to_vec().into();
        self
    }
}

pub(super) fn list(entries: &[&str]) -> Kind {
    let values = entries
        .iter()
        .map(|entry| Value {
            kind: Some(Kind::StringValue((*entry).to_owned())),
        })
        .collect();
    Kind::ListValue(ListValue { values })
}
