//! A double of an engine that answers every POST with the body it got: what arrives can be compared byte by byte.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::support::ports;

/// The request header that names the content type of the answer.
pub(crate) const ANSWER_AS: &str = "x-echo-as";
/// The request header that says in how long pieces the answer is sent.
pub(crate) const PIECES: &str = "x-echo-pieces";
/// The response header with what of the request's head arrived, as JSON.
pub(crate) const HEAD: &str = "x-echo-head";
/// The response header with the request's trailers, as JSON.
pub(crate) const TRAILERS: &str = "x-echo-trailers";

/// A running double. It ends with the value.
pub(crate) struct Echo {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    _server: JoinSet<()>,
}

impl Echo {
    pub(super) async fn start(number: usize) -> Self {
        let (listener, address) = ports::listener().await;
        let mut server = JoinSet::new();
        // It tells nothing of itself: no metrics, no models, no events.
        let routes = Router::new().fallback(echo);
        server.spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self {
            name: format!("echo-{number}"),
            address,
            _server: server,
        }
    }
}

async fn echo(request: Request) -> Response {
    if request.method() != Method::POST {
        return StatusCode::NOT_FOUND.into_response();
    }
    let (head, body) = request.into_parts();
    let Ok((bytes, trailers)) = read(body).await else {
        // The client left; nobody reads this.
        return StatusCode::BAD_REQUEST.into_response();
    };
    let said = |name: &str| Some(head.headers.get(name)?.to_str().ok()?.to_owned());
    let kind = said(ANSWER_AS).unwrap_or_else(|| "application/octet-stream".to_owned());
    let piece = said(PIECES).and_then(|length| length.parse().ok());
    let answer = match piece {
        Some(length) => in_pieces(&bytes, length),
        None => Body::from(bytes),
    };
    let headers = [
        ("content-type", kind),
        (HEAD, json(&head.headers)),
        (TRAILERS, json(&trailers)),
    ];
    (headers, answer).into_response()
}

/// A body and its trailers, as they came.
async fn read(mut body: Body) -> Result<(Bytes, HeaderMap), axum::Error> {
    let (mut bytes, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    Ok((bytes.into(), trailers))
}

fn in_pieces(bytes: &Bytes, length: usize) -> Body {
    let pieces: Vec<_> = bytes
        .chunks(length)
        .map(|piece| Ok::<_, Infallible>(bytes.slice_ref(piece)))
        .collect();
    Body::from_stream(futures_util::stream::iter(pieces))
}

fn json(headers: &HeaderMap) -> String {
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
    let fields: BTreeMap<&str, String> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), text(value)))
        .collect();
    serde_json::to_string(&fields).expect("texts are JSON")
}
