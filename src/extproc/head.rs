//! What do a message's headers say, as far as we look at them?

use std::borrow::Cow;
use std::time::Duration;

use super::metadata::{DESTINATION, TEST_SELECTION};
use super::pick::RequestHead;
use super::proto::envoy::config::core::v3::{HeaderMap, HeaderValue};

/// A request's headers as the exchange needs them.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// What the pick gets.
    pub(super) head: RequestHead,
    /// A CONNECT or an upgrade: there is no body to wait for, what follows is a conversation.
    pub(super) tunnel: bool,
    /// The client wrote a destination of its own.
    pub(super) client_destination: bool,
    /// What the conformance suite writes: whom the pick is restricted to.
    pub(super) test_selection: Option<String>,
}

/// How a response's body can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Server-sent events.
    Events,
    /// One JSON document.
    Json,
    /// Compressed, or something else.
    Opaque,
}

/// A response's headers as the exchange needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    /// `:status`; 0 when it is missing or no number.
    pub(super) status: u16,
    /// How its body can be read.
    pub(super) content: Content,
    /// It says that the endpoint takes no requests for now.
    pub(super) refusal: Option<Refusal>,
}

/// An endpoint's refusal of any request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// `retry-after` in seconds; a date is not read, and nor is what is no number.
    pub(super) retry_after: Option<Duration>,
}

/// Reads request headers. Of duplicates the first counts, except for encodings, which add up.
pub(super) fn request(headers: Option<HeaderMap>) -> Request {
    let mut request = Request::default();
    let head = &mut request.head;
    for header in headers.unwrap_or_default().headers {
        let value = text(&header);
        match name(&header).as_ref() {
            ":method" if head.method.is_empty() => head.method = value.into_owned(),
            ":path" if head.path.is_empty() => head.path = value.into_owned(),
            "content-type" if head.content_type.is_none() => {
                head.content_type = Some(media_type(&value));
            }
            "content-encoding" => add_encoding(&mut head.content_encoding, &value),
            "x-request-id" if head.request_id.is_none() => {
                head.request_id = Some(value.into_owned());
            }
            "authorization" if head.authorization.is_none() => {
                head.authorization = Some(value.into_owned());
            }
            // An h2c upgrade is an offer that gateways decline: the request is an ordinary one.
            "upgrade" => request.tunnel |= !value.trim().eq_ignore_ascii_case("h2c"),
            DESTINATION => request.client_destination = true,
            TEST_SELECTION if request.test_selection.is_none() && !value.is_empty() => {
                request.test_selection = Some(value.into_owned());
            }
            _ => {}
        }
    }
    request.tunnel |= request.head.method == "CONNECT";
    request
}

/// Reads response headers.
pub(super) fn response(headers: Option<HeaderMap>) -> Response {
    let mut status = 0;
    let mut content = None;
    let mut encoding = None;
    let mut retry_after = None;
    let mut gateways = false;
    for header in headers.unwrap_or_default().headers {
        let value = text(&header);
        match name(&header).as_ref() {
            "retry-after" => retry_after = value.trim().parse().ok().map(Duration::from_secs),
            // Envoy is at a limit of its own, which says nothing of the endpoint.
            "x-envoy-overloaded" => gateways = true,
            ":status" => status = value.trim().parse().unwrap_or_default(),
            "content-type" if content.is_none() => content = Some(media_type(&value)),
            "content-encoding" => add_encoding(&mut encoding, &value),
            _ => {}
        }
    }
    let content = match content.as_deref() {
        _ if encoding.is_some() => Content::Opaque,
        Some("text/event-stream") => Content::Events,
        Some(media) if media == "application/json" || media.ends_with("+json") => Content::Json,
        _ => Content::Opaque,
    };
    let refuses = matches!(status, 429 | 503) && !gateways;
    Response {
        status,
        content,
        refusal: refuses.then_some(Refusal { retry_after }),
    }
}

/// Envoy sends names in lower case; others might not.
fn name(header: &HeaderValue) -> Cow<'_, str> {
    if header.key.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(header.key.to_ascii_lowercase())
    } else {
        Cow::Borrowed(&header.key)
    }
}

/// Envoy fills `raw_value`, old versions `value`.
fn text(header: &HeaderValue) -> Cow<'_, str> {
    if header.raw_value.is_empty() {
        Cow::Borrowed(&header.value)
    } else {
        String::from_utf8_lossy(&header.raw_value)
    }
}

fn media_type(value: &str) -> String {
    let media = value.split_once(';').map_or(value, |(media, _)| media);
    media.trim().to_ascii_lowercase()
}

fn add_encoding(encodings: &mut Option<String>, value: &str) {
    let value = value.trim().to_ascii_lowercase();
    if value.is_empty() || value == "identity" {
        return;
    }
    match encodings {
        Some(encodings) => {
            encodings.push_str(", ");
            encodings.push_str(&value);
        }
        None => *encodings = Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Option<HeaderMap> {
        let headers = pairs
            .iter()
            .map(|(key, value)| HeaderValue {
                key: (*key).to_owned(),
                value: String::new(),
                raw_value: value.as_bytes().to_vec().into(),
            })
            .collect();
        Some(HeaderMap { headers })
    }

    #[test]
    fn request_headers_are_read_in_both_forms_and_the_first_counts() {
        let mut map = headers(&[
            (":method", "POST"),
            (":path", "/v1/completions?a=b"),
            ("Content-Type", "Application/JSON; charset=utf-8"),
            ("content-encoding", "gzip"),
            ("content-encoding", "br"),
            ("x-request-id", "one"),
            ("x-request-id", "two"),
            (DESTINATION, "6.6.6.6:6"),
        ])
        .unwrap();
        map.headers.push(HeaderValue {
            key: "authorization".to_owned(),
            value: "Bearer x".to_owned(),
            ..HeaderValue::default()
        });
        let read = request(Some(map));
        assert_eq!(
            read.head,
            RequestHead {
                method: "POST".to_owned(),
                path: "/v1/completions?a=b".to_owned(),
                content_type: Some("application/json".to_owned()),
                content_encoding: Some("gzip, br".to_owned()),
                request_id: Some("one".to_owned()),
                authorization: Some("Bearer x".to_owned()),
                subset: None,
            }
        );
        assert!(read.client_destination);
        assert!(!read.tunnel);
    }

    #[test]
    fn upgrades_and_connect_are_tunnels_but_h2c_is_not() {
        assert!(request(headers(&[("upgrade", "websocket")])).tunnel);
        assert!(request(headers(&[(":method", "CONNECT")])).tunnel);
        assert!(!request(headers(&[("upgrade", "h2c"), ("connection", "Upgrade")])).tunnel);
        assert!(!request(None).tunnel);
    }

    #[test]
    fn compressed_responses_are_opaque() {
        let content = |pairs: &[(&str, &str)]| response(headers(pairs)).content;
        assert_eq!(
            content(&[("content-type", "text/event-stream; charset=utf-8")]),
            Content::Events
        );
        assert_eq!(
            content(&[("content-type", "application/problem+json")]),
            Content::Json
        );
        assert_eq!(
            content(&[
                ("content-type", "application/json"),
                ("content-encoding", "gzip")
            ]),
            Content::Opaque
        );
        assert_eq!(
            content(&[
                ("content-type", "application/json"),
                ("content-encoding", "identity")
            ]),
            Content::Json
        );
        assert_eq!(response(headers(&[(":status", "503")])).status, 503);
        assert_eq!(response(None).status, 0);
    }
}
