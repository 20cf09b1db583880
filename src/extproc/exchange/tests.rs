//! Plays exchanges and writes down in short what goes out.

mod any_order;
mod cases;

use super::played::*;
use super::*;
use crate::extproc::metadata::DESTINATION;
use crate::extproc::proto::envoy::config::core::v3::{HeaderMap, HeaderValue};
use crate::extproc::proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, ProtocolConfiguration, processing_response::Response,
};

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
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

fn request_headers(end: bool) -> ProcessingRequest {
    let pairs = [(":method", "POST"), (":path", "/v1/completions")];
    message(Request::RequestHeaders(headers(&pairs, end)))
}

fn request_body(body: &'static str, end_of_stream: bool) -> ProcessingRequest {
    message(Request::RequestBody(HttpBody {
        body: Bytes::from_static(body.as_bytes()),
        end_of_stream,
    }))
}

fn request_trailers() -> ProcessingRequest {
    message(Request::RequestTrailers(HttpTrailers::default()))
}

fn response_headers(status: &str, end: bool) -> ProcessingRequest {
    let pairs = [(":status", status), ("content-type", "text/event-stream")];
    message(Request::ResponseHeaders(headers(&pairs, end)))
}

fn response_body(body: &'static str, end_of_stream: bool) -> ProcessingRequest {
    message(Request::ResponseBody(HttpBody {
        body: Bytes::from_static(body.as_bytes()),
        end_of_stream,
    }))
}

fn response_trailers() -> ProcessingRequest {
    message(Request::ResponseTrailers(HttpTrailers::default()))
}

fn chunk(body: &'static str, end: bool) -> Out {
    Out::Chunk(Direction::Request, Bytes::from_static(body.as_bytes()), end)
}

fn back(body: &'static str, end: bool) -> Out {
    Out::Chunk(
        Direction::Response,
        Bytes::from_static(body.as_bytes()),
        end,
    )
}

fn whole(body: &'static str) -> Out {
    Out::Pick(Seen::Whole(Bytes::from_static(body.as_bytes())))
}

const SENT: Out = Out::Headers(Direction::Request, true);
const HELD_BACK: Out = Out::Headers(Direction::Request, false);
const UNSEEN: Out = Out::Pick(Seen::Unseen);
