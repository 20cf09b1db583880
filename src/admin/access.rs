//! Who may read the pages? Whoever the API server says may: it knows the bearer token (TokenReview) and lets its user
//! do what the request does (SubjectAccessReview of the path, as in `nonResourceURLs` of a ClusterRole).
//!
//! Nothing is shown on a doubt: if the API server cannot be asked, the answer is an error. Its answers are kept for a
//! short time, so a Prometheus that scrapes every 15 s costs two reviews a minute.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::authentication::v1::UserInfo;

use crate::metrics::access::AccessMetrics;

mod memo;
mod reviews;
mod trusted;
mod turns;

use memo::Memo;
use reviews::{ReviewError, Reviews};
use trusted::Trusted;

/// Tokens, and pages asked for with one, that are remembered. A cluster has a handful of scrapers; the rest is room for
/// people and for tokens that are made up. An entry takes about 200 bytes beside the user's groups.
const REMEMBERED: usize = 256;

/// Bytes of the longest token that is asked about. Those of service accounts have about 1,200; one of a company with many
/// groups may have some thousands.
const LONGEST_TOKEN: usize = 16 * 1024;

/// A token as it is remembered. The token itself is not kept: a core dump or a bug must not show it.
type TokenDigest = [u8; 32];

/// Asks the API server and remembers for a while what it said.
pub struct Access {
    reviews: Reviews,
    trusted: Trusted,
    users: Memo<TokenDigest, Result<Option<Arc<UserInfo>>, ReviewError>>,
    grants: Memo<(TokenDigest, &'static str, String), Result<bool, ReviewError>>,
}

/// Why a page is not shown.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no `Authorization: Bearer` header with a token.
    #[error("a bearer token of the cluster is needed (authorization: Bearer ...)")]
    NoToken,
    /// The API server does not know the token.
    #[error("the API server does not accept this bearer token")]
    UnknownToken,
    /// The token is good, its user has no such right.
    #[error("{user} may not {verb} {path}: a ClusterRole with nonResourceURLs grants it")]
    Forbidden {
        /// As the API server names it.
        user: String,
        /// What was tried.
        verb: &'static str,
        /// Where.
        path: String,
    },
    /// No page does anything at this method.
    #[error("no page answers this method")]
    NoSuchVerb,
    /// The API server gave no answer.
    #[error("cannot find out who may read this page: {0}")]
    Unreviewed(#[from] ReviewError),
}

impl Access {
    /// `client` must be allowed to create TokenReviews and SubjectAccessReviews.
    pub fn new(client: kube::Client, metrics: Arc<AccessMetrics>) -> Self {
        Self {
            reviews: Reviews::new(client, metrics),
            trusted: Trusted::default(),
            users: Memo::new(REMEMBERED),
            grants: Memo::new(REMEMBERED),
        }
    }

    /// Whether a request may be answered.
    ///
    /// # Errors
    /// When it may not, or when that cannot be found out.
    pub async fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let verb = verb(method).ok_or(Refusal::NoSuchVerb)?;
        let token = bearer_token(headers).ok_or(Refusal::NoToken)?;
        if token.len() > LONGEST_TOKEN {
            return Err(Refusal::UnknownToken);
        }
        let mut key = TokenDigest::default();
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());

        let trusted = self.trusted.has(&key);
        let ask = || self.reviews.user_of(token, trusted);
        let user = self.users.get(key, ask).await?;
        let user = user.ok_or(Refusal::UnknownToken)?;
        let question = (key, verb, path.to_owned());
        let ask = || self.reviews.may(&user, verb, path, trusted);
        if self.grants.get(question, ask).await? {
            self.trusted.add(key);
            return Ok(());
        }
        Err(Refusal::Forbidden {
            user: user.username.clone().unwrap_or_default(),
            verb,
            path: path.to_owned(),
        })
    }
}

/// Lets a request pass to its page, or answers for it.
pub(super) async fn guard(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    // As the page is called here, whichever endpoint it is asked about: so the paths that are asked about and
    // remembered are few, and a right to `/debug/*` covers them all.
    let page = request.extensions().get::<MatchedPath>();
    let path = page.map_or_else(|| request.uri().path(), MatchedPath::as_str);
    match access
        .check(request.method(), path, request.headers())
        .await
    {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The verb of a method in the API server's words: those that a page has.
fn verb(method: &Method) -> Option<&'static str> {
    match *method {
        Method::GET => Some("get"),
        Method::HEAD => Some("head"),
        Method::PUT => Some("put"),
        _ => None,
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let text = format!("{self}\n");
        match self {
            Self::NoToken | Self::UnknownToken => {
                let scheme = [(header::WWW_AUTHENTICATE, "Bearer")];
                (StatusCode::UNAUTHORIZED, scheme, text).into_response()
            }
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, text).into_response(),
            Self::NoSuchVerb => (StatusCode::METHOD_NOT_ALLOWED, text).into_response(),
            // Asking again does not help before somebody gives the picker its rights.
            Self::Unreviewed(ReviewError::Refused { .. }) => {
                (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
            }
            Self::Unreviewed(_) => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
        }
    }
}

#[cfg(test)]
mod tests;
