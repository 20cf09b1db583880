//! Whether a request's content can be looked at, by its head and by what is known of its body.

use bytes::Bytes;

use crate::extproc::pick::{RequestBody, RequestHead};
use crate::metrics::picks::LoadOnly;
use crate::routing::request::Api;

/// The API and the whole body of a request that can be routed by content.
///
/// # Errors
/// Why it can only be routed on load.
pub(super) fn routable(head: &RequestHead, body: RequestBody) -> Result<(Api, Bytes), LoadOnly> {
    if !head.method.eq_ignore_ascii_case("POST") {
        return Err(LoadOnly::Method);
    }
    let api = Api::of_path(&head.path).ok_or(LoadOnly::Path)?;
    match head.content_encoding.as_deref() {
        None | Some("" | "identity") => {}
        Some(_) => return Err(LoadOnly::Encoding),
    }
    // Engines read JSON without being told so; a client that says something else means it.
    match head.content_type.as_deref() {
        None | Some("" | "application/json") => {}
        Some(kind) if kind.starts_with("application/") && kind.ends_with("+json") => {}
        Some(_) => return Err(LoadOnly::ContentType),
    }
    match body {
        RequestBody::Whole(body) => Ok((api, body)),
        RequestBody::Partial(_) => Err(LoadOnly::BodyPartial),
        RequestBody::Unseen => Err(LoadOnly::BodyUnseen),
    }
}
