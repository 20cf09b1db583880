//! Requests as a client makes them: whole, as a stream of events, or down to the bytes.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.expect("the whole answer arrives");
        Self {
            status,
            headers,
            body,
        }
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// GETs `path`.
pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    get_with(to, path, &[]).await
}

/// GETs `path` with these headers.
pub(crate) async fn get_with(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = reqwest::Client::new().get(format!("http://{to}{path}"));
    let request = with_headers(request, headers);
    Answer::read(request.send().await.expect("an answer")).await
}

fn with_headers(
    request: reqwest::RequestBuilder,
    headers: &[(&str, &str)],
) -> reqwest::RequestBuilder {
    headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    })
}

/// POSTs a body with these headers.
pub(crate) async fn post(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<reqwest::Body>,
) -> Answer {
    let request = reqwest::Client::new().post(format!("http://{to}{path}"));
    let request = with_headers(request, headers);
    Answer::read(request.body(body).send().await.expect("an answer")).await
}

/// POSTs JSON.
pub(crate) async fn post_json(to: SocketAddr, path: &str, body: &Value) -> Answer {
    post(
        to,
        path,
        &[("content-type", "application/json")],
        body.to_string(),
    )
    .await
}

/// POSTs JSON and reads the answer event by event. Dropping it is a client that goes away.
pub(crate) async fn stream_json(to: SocketAddr, path: &str, body: &Value) -> Events {
    stream_json_with(to, path, &[], body).await
}

/// The same with further headers.
pub(crate) async fn stream_json_with(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Events {
    let request = reqwest::Client::new().post(format!("http://{to}{path}"));
    let request = with_headers(request, headers).json(body);
    Events {
        response: request.send().await.expect("an answer"),
        unread: BytesMut::new(),
    }
}

/// An answer of server-sent events.
pub(crate) struct Events {
    response: reqwest::Response,
    unread: BytesMut,
}

impl Events {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The data of the next event, however its bytes were split on the way; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\n\n") {
                let event = self.unread.split_to(end + 2);
                let text = std::str::from_utf8(&event).expect("an event is text");
                let data: Vec<_> = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("data: "))
                    .collect();
                return Some(data.join("\n"));
            }
            let Some(chunk) = self
                .response
                .chunk()
                .await
                .expect("the answer is not cut off")
            else {
                assert!(
                    self.unread.is_empty(),
                    "the answer ends within an event: {:?}",
                    self.unread
                );
                return None;
            };
            self.unread.extend_from_slice(&chunk);
        }
    }
}

/// A connection on which a test writes HTTP/1.1 itself: chunks, trailers, half a request.
/// Dropping it is a client that goes away.
pub(crate) struct Raw(TcpStream);

impl Raw {
    /// Connects and sends the head of a POST with a chunked body.
    pub(crate) async fn post_chunked(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut raw = Self(TcpStream::connect(to).await.expect("a connection"));
        let mut head = format!("POST {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n");
        for (name, value) in headers.iter().chain(&[("transfer-encoding", "chunked")]) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        raw.send(format!("{head}\r\n").as_bytes()).await;
        raw
    }

    /// Sends one chunk of the body.
    pub(crate) async fn chunk(&mut self, data: &[u8]) {
        self.send(&[format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat())
            .await;
    }

    /// Ends the body, with trailers or without.
    pub(crate) async fn end(&mut self, trailers: &[(&str, &str)]) {
        let lines: String = trailers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        self.send(format!("0\r\n{lines}\r\n").as_bytes()).await;
    }

    /// The next head that comes back, of an interim answer for one.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("a head arrives"));
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// The whole answer as it came, status line first.
    pub(crate) async fn answer(mut self) -> String {
        let mut bytes = Vec::new();
        self.0
            .read_to_end(&mut bytes)
            .await
            .expect("the answer arrives");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0
            .write_all(bytes)
            .await
            .expect("the connection takes it");
    }
}
