//! Metrics of the pages' protection: what the API server was asked.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Handles, resolved once: reviews by kind, then by outcome.
pub struct AccessMetrics {
    reviews: [[IntCounter; 3]; 2],
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub enum Review {
    /// Whose token is this?
    Token,
    /// May they read this page?
    Access,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// The token is good; they may.
    Granted,
    /// It is not; they may not.
    Denied,
    /// No answer.
    Failed,
}

impl AccessMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let reviews = IntCounterVec::new(
            Opts::new(
                "warmpath_access_reviews_total",
                "Reviews asked of the API server before pages were shown, by kind and outcome",
            ),
            &["review", "outcome"],
        )?;
        registry.register(Box::new(reviews.clone()))?;
        let handles = ["token", "access"].map(|review| {
            let handle = |outcome| reviews.with_label_values(&[review, outcome]);
            ["granted", "denied", "failed"].map(handle)
        });
        Ok(Self { reviews: handles })
    }

    /// A review was asked for.
    pub fn reviewed(&self, review: Review, outcome: Outcome) {
        let [token, access] = &self.reviews;
        let [granted, denied, failed] = match review {
            Review::Token => token,
            Review::Access => access,
        };
        match outcome {
            Outcome::Granted => granted.inc(),
            Outcome::Denied => denied.inc(),
            Outcome::Failed => failed.inc(),
        }
    }
}
