//! What does the API server say of a token, and of what its user may do? Each question has a deadline and waits for its
//! turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Resource;
use kube::api::PostParams;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use super::turns::Turns;
use crate::metrics::access::{AccessMetrics, Outcome, Review};

/// For one review. Two of them end before the time that Prometheus gives a scrape (10 s), so it sees the reason.
const DEADLINE: Duration = Duration::from_secs(4);

/// How long a yes holds: a token or right that is taken back still works for at most this time.
const YES_HOLDS: Duration = Duration::from_secs(60);

/// How long a no holds: whoever is given a token or right waits for at most this time.
const NO_HOLDS: Duration = Duration::from_secs(10);

/// How long a failure holds: everybody who waits for it hears it, and the next scrape asks again.
const FAILURE_HOLDS: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server did not answer in time.
    #[error("the API server did not answer a {what} within {} s", DEADLINE.as_secs())]
    Late {
        /// The kind of review.
        what: &'static str,
    },
    /// The picker itself may not ask.
    #[error("the API server does not let the picker create a {what}: {message}")]
    Refused {
        /// The kind of review.
        what: &'static str,
        /// The API server's own words.
        message: String,
    },
    /// The API server could not be reached, or answered with an error.
    #[error("the API server did not answer a {what}: {source}")]
    Failed {
        /// The kind of review.
        what: &'static str,
        /// What went wrong.
        source: Arc<kube::Error>,
    },
    /// Too many others are to be reviewed first.
    #[error("too many bearer tokens wait to be reviewed")]
    Busy,
    /// The answer is not one.
    #[error("the API server's answer to a {what} cannot be read")]
    Unreadable {
        /// The kind of review.
        what: &'static str,
    },
}

/// Asks.
pub(super) struct Reviews {
    client: kube::Client,
    metrics: Arc<AccessMetrics>,
    /// For tokens that a page was shown for lately.
    trusted: Turns,
    /// For all others.
    unknown: Turns,
    /// The last review failed, and that was logged.
    failing: AtomicBool,
}

/// An answer, and how long it holds.
type Kept<T> = (Result<T, ReviewError>, Duration);

impl Reviews {
    pub(super) fn new(client: kube::Client, metrics: Arc<AccessMetrics>) -> Self {
        Self {
            client,
            metrics,
            trusted: Turns::new(),
            unknown: Turns::new(),
            failing: AtomicBool::new(false),
        }
    }

    /// The user that a token is for; `None` when the API server does not accept it. `trusted`: a page was shown for it
    /// lately.
    pub(super) async fn user_of(&self, token: &str, trusted: bool) -> Kept<Option<Arc<UserInfo>>> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let answer = self.create(&review, trusted).await.and_then(|answer| {
            let status = answer.status.unwrap_or_default();
            match (status.authenticated, status.user) {
                (Some(true), Some(user)) => Ok(Some(Arc::new(user))),
                (Some(true), None) => Err(unreadable::<TokenReview>()),
                _ => Ok(None),
            }
        });
        self.kept(Review::Token, answer, Option::is_some)
    }

    /// Whether `user` may do `verb` at `path`.
    pub(super) async fn may(
        &self,
        user: &UserInfo,
        verb: &str,
        path: &str,
        trusted: bool,
    ) -> Kept<bool> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: user.extra.clone(),
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some(verb.to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.create(&review, trusted).await;
        let allowed = answer.map(|answer| answer.status.is_some_and(|status| status.allowed));
        self.kept(Review::Access, allowed, |allowed| *allowed)
    }

    /// Posts a review and reads what came back.
    async fn create<R>(&self, review: &R, trusted: bool) -> Result<R, ReviewError>
    where
        R: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let what = kind::<R>();
        let failed = |source| ReviewError::Failed {
            what,
            source: Arc::new(source),
        };
        let body =
            serde_json::to_vec(review).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        let request = kube::core::Request::new(R::url_path(&(), None))
            .create(&PostParams::default(), body)
            .map_err(|error| failed(kube::Error::BuildRequest(error)))?;
        let turns = if trusted {
            &self.trusted
        } else {
            &self.unknown
        };
        let asking = async {
            let _turn = turns.take().await.ok_or(ReviewError::Busy)?;
            Ok(self.client.request_text(request).await)
        };
        let Ok(asked) = tokio::time::timeout(DEADLINE, asking).await else {
            return Err(ReviewError::Late { what });
        };
        match asked? {
            // Read here and not by the client: it logs what it cannot read, and a TokenReview repeats the token.
            Ok(answer) => serde_json::from_str(&answer).map_err(|_| unreadable::<R>()),
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
                Err(ReviewError::Refused {
                    what,
                    message: status.message,
                })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Counts an answer, logs when reviews begin to fail or succeed again, and says how long it holds.
    fn kept<T>(
        &self,
        review: Review,
        answer: Result<T, ReviewError>,
        is_yes: impl FnOnce(&T) -> bool,
    ) -> Kept<T> {
        let (outcome, holds) = match &answer {
            Ok(answer) if is_yes(answer) => (Outcome::Granted, YES_HOLDS),
            Ok(_) => (Outcome::Denied, NO_HOLDS),
            Err(_) => (Outcome::Failed, FAILURE_HOLDS),
        };
        self.metrics.reviewed(review, outcome);
        if matches!(answer, Err(ReviewError::Busy)) {
            // That says nothing of the API server.
            return (answer, holds);
        }
        let failed_before = self.failing.swap(answer.is_err(), Ordering::Relaxed);
        match &answer {
            Err(error) if !failed_before => {
                warn!(%error, "pages are refused: who may read them cannot be found out");
            }
            Ok(_) if failed_before => info!("who may read the pages can be found out again"),
            _ => {}
        }
        (answer, holds)
    }
}

fn kind<R: Resource<DynamicType = ()>>() -> &'static str {
    match R::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "review",
    }
}

fn unreadable<R: Resource<DynamicType = ()>>() -> ReviewError {
    ReviewError::Unreadable { what: kind::<R>() }
}
