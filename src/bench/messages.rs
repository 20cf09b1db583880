//! What does a gateway send? The messages of one exchange, encoded as gRPC frames.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::extproc::proto::envoy::config::core::v3::{HeaderMap, HeaderValue};
use crate::extproc::proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use crate::extproc::proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProtocolConfiguration, processing_request::Request,
};

/// Which of the two bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// To the engine.
    Request,
    /// From the engine.
    Response,
}

/// A chat's request headers as Envoy shows them, and the body modes in force.
pub(super) fn request_headers(request_id: &str, body_bytes: usize, frames: &mut BytesMut) {
    let length = body_bytes.to_string();
    let pairs = [
        (":authority", "models.example.com"),
        (":path", "/v1/chat/completions"),
        (":method", "POST"),
        (":scheme", "https"),
        ("accept", "application/json"),
        ("content-type", "application/json"),
        ("user-agent", "OpenAI/Python 2.8.1"),
        ("authorization", "Bearer none"),
        ("content-length", &length),
        ("x-forwarded-for", "10.1.2.3"),
        ("x-forwarded-proto", "https"),
        ("x-request-id", request_id),
    ];
    let full = BodySendMode::FullDuplexStreamed.into();
    let message = ProcessingRequest {
        request: Some(Request::RequestHeaders(headers(&pairs))),
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: full,
            response_body_mode: full,
            ..ProtocolConfiguration::default()
        }),
        ..ProcessingRequest::default()
    };
    push(&message, frames);
}

/// An engine's response headers.
pub(super) fn response_headers(content_type: &str, frames: &mut BytesMut) {
    let pairs = [
        (":status", "200"),
        ("date", "Sun, 29 Nov 2026 20:00:00 GMT"),
        ("server", "uvicorn"),
        ("content-type", content_type),
    ];
    let message = ProcessingRequest {
        request: Some(Request::ResponseHeaders(headers(&pairs))),
        ..ProcessingRequest::default()
    };
    push(&message, frames);
}

/// A body in pieces of at most `piece_bytes`, and its end as a message of its own, as Envoy sends it.
pub(super) fn whole_body(phase: Phase, body: &Bytes, piece_bytes: usize, frames: &mut BytesMut) {
    let mut rest = body.clone();
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(piece_bytes.max(1)));
        push_body(phase, piece, false, frames);
    }
    push_body(phase, Bytes::new(), true, frames);
}

/// One piece of a body.
pub(super) fn push_body(phase: Phase, body: Bytes, end_of_stream: bool, frames: &mut BytesMut) {
    let body = HttpBody {
        body,
        end_of_stream,
    };
    let message = ProcessingRequest {
        request: Some(match phase {
            Phase::Request => Request::RequestBody(body),
            Phase::Response => Request::ResponseBody(body),
        }),
        ..ProcessingRequest::default()
    };
    push(&message, frames);
}

fn headers(pairs: &[(&str, &str)]) -> HttpHeaders {
    let headers = pairs.iter().map(|(key, value)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    });
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: headers.collect(),
        }),
        end_of_stream: false,
    }
}

/// A gRPC frame: not compressed, its length, the message.
fn push(message: &ProcessingRequest, frames: &mut BytesMut) {
    let bytes = message.encoded_len();
    frames.reserve(5 + bytes);
    frames.put_u8(0);
    frames.put_u32(u32::try_from(bytes).unwrap_or(u32::MAX));
    let encoded = message.encode(frames);
    debug_assert!(encoded.is_ok(), "room was made for it");
}
