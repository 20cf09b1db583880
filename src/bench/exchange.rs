//! What happens in one exchange? It is played as Envoy plays it, and every answer is checked.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use prost_types::value::Kind;

use super::connection::Connections;
use super::messages::{self, Phase};
use super::stream::Stream;
use crate::extproc::metadata::{DESTINATION, LB_NAMESPACE};
use crate::extproc::proto::envoy::service::ext_proc::v3::{
    BodyResponse, ProcessingResponse, body_mutation::Mutation, processing_response::Response,
};

/// The answer that the engine is made to give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// Largest piece of a request body.
    pub(super) piece_bytes: usize,
    /// Server-sent events of the answer; 0: one JSON document.
    pub(super) response_chunks: usize,
    /// Time between two of them.
    pub(super) chunk_interval: Duration,
}

impl Script {
    /// The same with a short answer.
    pub(super) fn without_events(self) -> Self {
        Self {
            response_chunks: 0,
            ..self
        }
    }

    /// How long the answer takes by itself.
    pub(super) fn answer_time(self) -> Duration {
        let chunks = u32::try_from(self.response_chunks).unwrap_or(u32::MAX);
        self.chunk_interval.saturating_mul(chunks)
    }
}

/// What one exchange took.
#[derive(Debug)]
pub(super) struct Played {
    /// From the first message sent to the destination received.
    pub(super) pick: Duration,
    /// From each event sent to its echo.
    pub(super) chunks: Vec<Duration>,
    /// Where it was sent.
    pub(super) destination: String,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The connection or the stream broke.
    #[error("HTTP/2: {0}")]
    Http(#[from] h2::Error),
    /// Not a gRPC answer at all.
    #[error("HTTP status {0}")]
    HttpStatus(u16),
    /// gRPC refused.
    #[error("gRPC status {0}")]
    GrpcStatus(String),
    /// What came is no message of the protocol, or came out of order.
    #[error("protocol violated")]
    Protocol,
    /// The stream ended in the middle.
    #[error("ended early")]
    EndedEarly,
    /// The picker answered in the engine's stead.
    #[error("refused with {0}")]
    Refused(i32),
    /// No destination, or not the same in header and metadata.
    #[error("no destination")]
    NoDestination,
    /// Bytes of a body changed, were lost or added.
    #[error("body not echoed")]
    Echo,
    /// It took too long.
    #[error("timed out")]
    TimedOut,
}

/// Plays one exchange with a request `body`.
pub(super) async fn play(
    connections: &Connections,
    script: Script,
    request_id: &str,
    body: &Bytes,
) -> Result<Played, Failure> {
    let mut frames = BytesMut::with_capacity(body.len() + 1024);
    messages::request_headers(request_id, body.len(), &mut frames);
    messages::whole_body(Phase::Request, body, script.piece_bytes, &mut frames);
    let started = Instant::now();
    let mut stream = Stream::open(connections, frames.freeze()).await?;
    let answer = stream.answer().await?;
    let pick = started.elapsed();
    let destination = destination(answer)?;
    receive_body(&mut stream, Phase::Request, body, true).await?;

    let mut frames = BytesMut::new();
    let chunks = if script.response_chunks == 0 {
        messages::response_headers("application/json", &mut frames);
        let json = Bytes::from_static(JSON.as_bytes());
        messages::whole_body(Phase::Response, &json, script.piece_bytes, &mut frames);
        stream.send(frames.freeze())?;
        response_headers(&mut stream).await?;
        receive_body(&mut stream, Phase::Response, &json, true).await?;
        Vec::new()
    } else {
        messages::response_headers("text/event-stream", &mut frames);
        stream.send(frames.freeze())?;
        response_headers(&mut stream).await?;
        events(&mut stream, script).await?
    };
    stream.finish().await?;
    Ok(Played {
        pick,
        chunks,
        destination,
    })
}

const JSON: &str = r#"{"id":"chatcmpl-8f2c1d0e9b7a4c3f","object":"chat.completion","created":1764000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"An answer."},"finish_reason":"stop"}],"usage":{"prompt_tokens":8000,"total_tokens":8003,"completion_tokens":3}}"#;
const EVENT: &str = "data: {\"id\":\"chatcmpl-8f2c1d0e9b7a4c3f\",\"object\":\"chat.completion.chunk\",\"created\":1764000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tokens\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const LAST_EVENTS: &str = "data: {\"id\":\"chatcmpl-8f2c1d0e9b7a4c3f\",\"object\":\"chat.completion.chunk\",\"created\":1764000000,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":8000,\"total_tokens\":8300,\"completion_tokens\":300}}\n\ndata: [DONE]\n\n";

/// Sends the events at their pace, each echoed before the next is due, then the end.
async fn events(stream: &mut Stream, script: Script) -> Result<Vec<Duration>, Failure> {
    let mut took = Vec::with_capacity(script.response_chunks);
    let mut due = tokio::time::Instant::now();
    for left in (0..script.response_chunks).rev() {
        let event = if left == 0 { LAST_EVENTS } else { EVENT };
        let event = Bytes::from_static(event.as_bytes());
        let mut frames = BytesMut::new();
        messages::push_body(Phase::Response, event.clone(), false, &mut frames);
        let sent = Instant::now();
        stream.send(frames.freeze())?;
        receive_body(stream, Phase::Response, &event, false).await?;
        took.push(sent.elapsed());
        due += script.chunk_interval;
        tokio::time::sleep_until(due).await;
    }
    let mut frames = BytesMut::new();
    messages::push_body(Phase::Response, Bytes::new(), true, &mut frames);
    stream.send(frames.freeze())?;
    receive_body(stream, Phase::Response, &Bytes::new(), true).await?;
    Ok(took)
}

/// The destination of a headers answer, named alike in the header and in the metadata.
fn destination(answer: ProcessingResponse) -> Result<String, Failure> {
    let headers = match answer.response {
        Some(Response::RequestHeaders(headers)) => headers,
        Some(Response::ImmediateResponse(refusal)) => {
            return Err(Failure::Refused(
                refusal.status.map_or(0, |status| status.code),
            ));
        }
        _ => return Err(Failure::Protocol),
    };
    let told = answer.dynamic_metadata.and_then(|metadata| {
        match &metadata.fields.get(LB_NAMESPACE)?.kind {
            Some(Kind::StructValue(lb)) => match &lb.fields.get(DESTINATION)?.kind {
                Some(Kind::StringValue(destination)) => Some(destination.clone()),
                _ => None,
            },
            _ => None,
        }
    });
    let mutation = headers.response.and_then(|common| common.header_mutation);
    let set = mutation.and_then(|mutation| {
        let mut headers = mutation.set_headers.into_iter();
        headers.find_map(|option| option.header.filter(|header| header.key == DESTINATION))
    });
    match (set, told) {
        // Other pickers write the text form of the value.
        (Some(header), Some(told))
            if header.raw_value == told.as_bytes() || header.value == told =>
        {
            Ok(told)
        }
        _ => Err(Failure::NoDestination),
    }
}

async fn response_headers(stream: &mut Stream) -> Result<(), Failure> {
    match stream.answer().await?.response {
        Some(Response::ResponseHeaders(_)) => Ok(()),
        _ => Err(Failure::Protocol),
    }
}

/// Receives exactly `expected`, in pieces of any size; with `ends`, and then the end of the body.
async fn receive_body(
    stream: &mut Stream,
    phase: Phase,
    expected: &Bytes,
    ends: bool,
) -> Result<(), Failure> {
    let mut rest = &expected[..];
    while ends || !rest.is_empty() {
        let (body, end_of_stream) = chunk(stream.answer().await?, phase)?;
        rest = rest.strip_prefix(&body[..]).ok_or(Failure::Echo)?;
        if end_of_stream {
            return if ends && rest.is_empty() {
                Ok(())
            } else {
                Err(Failure::Echo)
            };
        }
    }
    Ok(())
}

fn chunk(answer: ProcessingResponse, phase: Phase) -> Result<(Bytes, bool), Failure> {
    let body: BodyResponse = match (phase, answer.response) {
        (Phase::Request, Some(Response::RequestBody(body)))
        | (Phase::Response, Some(Response::ResponseBody(body))) => body,
        _ => return Err(Failure::Protocol),
    };
    let mutation = body.response.and_then(|common| common.body_mutation);
    match mutation.and_then(|mutation| mutation.mutation) {
        Some(Mutation::StreamedResponse(chunk)) => Ok((chunk.body, chunk.end_of_stream)),
        _ => Err(Failure::Echo),
    }
}
