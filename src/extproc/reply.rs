//! What do our answers look like on the wire? Plain constructors: only what changes is set, and header values go as
//! `raw_value` alone, because Envoy rejects a mutation that sets both forms.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost_types::{Struct, Value, value::Kind};
use serde_json::json;

use super::metadata::{DESTINATION, LB_NAMESPACE};
use super::pick::Destination;
use super::proto::envoy::config::core::v3::{
    HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction,
};
use super::proto::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, TrailersResponse, body_mutation::Mutation,
    processing_response::Response,
};
use super::proto::envoy::r#type::v3::{HttpStatus, StatusCode};
use crate::metrics::wire::{Direction, Reason};

/// The header that says why we refused; its values are those of [`Reason::as_str`].
pub const REJECTED: &str = "x-warmpath-rejected";

/// The header by which vLLM lets a request choose the data-parallel rank that computes it. A client's own is
/// overwritten where we choose, and left alone where we do not.
pub const DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";

/// Envoy recommends answers of at most 64 KiB; this leaves room for the message around the chunk.
pub const MAX_CHUNK_BYTES: usize = 62_000;

/// Goes on with the headers unchanged.
pub(super) fn headers(direction: Direction) -> ProcessingResponse {
    headers_with(direction, CommonResponse::default())
}

/// Goes on with the response headers and one more, in place of any by that name.
pub(super) fn response_headers_with(name: &str, value: &str) -> ProcessingResponse {
    let mutation = HeaderMutation {
        set_headers: vec![header(name, value)],
        remove_headers: Vec::new(),
    };
    headers_with(
        Direction::Response,
        CommonResponse {
            header_mutation: Some(mutation),
            ..CommonResponse::default()
        },
    )
}

/// Goes on with the request headers, before the pick is made: a destination the client wrote is taken out. The route is
/// chosen again only if that changes something; Envoy counts it as a mistake otherwise.
pub(super) fn headers_before_pick(client_destination: bool) -> ProcessingResponse {
    let remove = client_destination.then(|| HeaderMutation {
        remove_headers: vec![DESTINATION.to_owned()],
        ..HeaderMutation::default()
    });
    headers_with(
        Direction::Request,
        CommonResponse {
            header_mutation: remove,
            clear_route_cache: client_destination,
            ..CommonResponse::default()
        },
    )
}

/// Goes on with the request headers to `destination`.
pub(super) fn headers_to(destination: Destination<'_>) -> ProcessingResponse {
    let mut answer = headers_with(Direction::Request, towards(destination));
    add_metadata(&mut answer, destination);
    answer
}

/// Goes on with a buffered request body unchanged, and with the request to `destination`.
pub(super) fn body_to(destination: Destination<'_>) -> ProcessingResponse {
    let mut answer = body_with(Direction::Request, towards(destination));
    add_metadata(&mut answer, destination);
    answer
}

/// Adds the destination to an answer that can carry it as metadata only.
pub(super) fn add_metadata(answer: &mut ProcessingResponse, destination: Destination<'_>) {
    answer.dynamic_metadata = Some(metadata_of(destination.addresses));
}

/// Goes on with a body or chunk that Envoy keeps.
pub(super) fn body(direction: Direction) -> ProcessingResponse {
    body_with(direction, CommonResponse::default())
}

/// Hands a chunk back that Envoy did not keep.
pub(super) fn chunk(direction: Direction, body: Bytes, end_of_stream: bool) -> ProcessingResponse {
    let streamed = StreamedBodyResponse {
        body,
        end_of_stream,
    };
    body_with(
        direction,
        CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(Mutation::StreamedResponse(streamed)),
            }),
            ..CommonResponse::default()
        },
    )
}

/// Goes on with the trailers unchanged.
pub(super) fn trailers(direction: Direction) -> ProcessingResponse {
    let trailers = TrailersResponse::default();
    wrap(match direction {
        Direction::Request => Response::RequestTrailers(trailers),
        Direction::Response => Response::ResponseTrailers(trailers),
    })
}

/// Answers the client instead of an engine, in the shape of OpenAI's errors.
pub(super) fn refusal(reason: Reason, message: &str) -> ProcessingResponse {
    let (status, kind, code) = match reason {
        Reason::Malformed => (
            StatusCode::BadRequest,
            "invalid_request_error",
            "malformed_request",
        ),
        Reason::TooLarge => (
            StatusCode::PayloadTooLarge,
            "invalid_request_error",
            "request_too_large",
        ),
        Reason::BodyTimeout => (
            StatusCode::RequestTimeout,
            "invalid_request_error",
            "request_timeout",
        ),
        Reason::Overloaded => (
            StatusCode::TooManyRequests,
            "rate_limit_error",
            "picker_overloaded",
        ),
        Reason::Unavailable => (
            StatusCode::ServiceUnavailable,
            "server_error",
            "no_endpoint_ready",
        ),
        Reason::PickTimeout => (
            StatusCode::ServiceUnavailable,
            "server_error",
            "pick_timeout",
        ),
    };
    let body = json!({ "error": { "message": message, "type": kind, "code": code } });
    wrap(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus {
            code: status.into(),
        }),
        headers: Some(HeaderMutation {
            set_headers: vec![
                header("content-type", "application/json"),
                header(REJECTED, reason.as_str()),
            ],
            remove_headers: Vec::new(),
        }),
        body: Bytes::from(body.to_string()),
        details: format!("warmpath_{}", reason.as_str()),
    }))
}

fn towards(destination: Destination<'_>) -> CommonResponse {
    let mut set_headers = vec![header(DESTINATION, destination.addresses)];
    if let Some(rank) = destination.rank {
        set_headers.push(header(DATA_PARALLEL_RANK, &rank.to_string()));
    }
    CommonResponse {
        header_mutation: Some(HeaderMutation {
            set_headers,
            remove_headers: Vec::new(),
        }),
        clear_route_cache: true,
        ..CommonResponse::default()
    }
}

fn header(name: &str, value: &str) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: name.to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        }),
        // Old Envoys overwrite when `append` is absent, new ones when told so here.
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

fn metadata_of(destination: &str) -> Struct {
    let entry = |key: &str, kind| Struct {
        fields: BTreeMap::from([(key.to_owned(), Value { kind: Some(kind) })]),
    };
    let inner = entry(DESTINATION, Kind::StringValue(destination.to_owned()));
    entry(LB_NAMESPACE, Kind::StructValue(inner))
}

fn headers_with(direction: Direction, response: CommonResponse) -> ProcessingResponse {
    let headers = HeadersResponse {
        response: Some(response),
    };
    wrap(match direction {
        Direction::Request => Response::RequestHeaders(headers),
        Direction::Response => Response::ResponseHeaders(headers),
    })
}

fn body_with(direction: Direction, response: CommonResponse) -> ProcessingResponse {
    let body = BodyResponse {
        response: Some(response),
    };
    wrap(match direction {
        Direction::Request => Response::RequestBody(body),
        Direction::Response => Response::ResponseBody(body),
    })
}

fn wrap(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        ..ProcessingResponse::default()
    }
}
