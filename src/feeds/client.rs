//! Asking an engine over HTTP: one small GET with a deadline and a cap on the body.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

/// The largest answer read. vLLM's whole metrics page is 52–70 KB.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Why an engine gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens there: whatever process did has ended.
    #[error("no answer from http://{address}{path}: Connection refused")]
    Refused {
        /// Who was asked.
        address: SocketAddr,
        /// For what.
        path: String,
    },
    /// No connection, a broken one, or not HTTP.
    #[error("no answer from http://{address}{path}: {}", root_cause(.http))]
    Unreachable {
        /// Who was asked.
        address: SocketAddr,
        /// For what.
        path: String,
        /// Why.
        http: reqwest::Error,
    },
    /// The deadline passed.
    #[error("no answer from http://{address}{path} within {} ms", .deadline.as_millis())]
    Late {
        /// Who was asked.
        address: SocketAddr,
        /// For what.
        path: String,
        /// How long we waited.
        deadline: Duration,
    },
    /// More bytes than any such page has.
    #[error("the answer from http://{address}{path} is over {MAX_ANSWER_BYTES} bytes")]
    TooLarge {
        /// Who was asked.
        address: SocketAddr,
        /// For what.
        path: String,
    },
}

/// `reqwest` repeats the URL in front; the innermost error says what happened.
fn root_cause(error: &reqwest::Error) -> &(dyn std::error::Error + 'static) {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

fn is_refusal(error: &reqwest::Error) -> bool {
    root_cause(error)
        .downcast_ref::<std::io::Error>()
        .is_some_and(|cause| cause.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, whole.
    pub body: Bytes,
}

/// Something that answers GETs: an engine, or a double of one whose time is virtual.
pub trait Ask: Send + Sync {
    /// `GET path`, read whole within `deadline`.
    ///
    /// # Errors
    /// When there is no whole answer of a sane size in time. A status is not an error.
    fn get(
        &self,
        path: &str,
        deadline: Duration,
    ) -> impl Future<Output = Result<Answer, AskError>> + Send;
}

/// One engine, asked over HTTP.
#[derive(Clone, Debug)]
pub struct Engine {
    client: Client,
    address: SocketAddr,
}

impl Ask for Engine {
    async fn get(&self, path: &str, deadline: Duration) -> Result<Answer, AskError> {
        self.client.get(self.address, path, deadline).await
    }
}

/// Asks engines. Cloning is cheap and shares the connections: one kept alive an endpoint.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
}

impl Client {
    /// A client that goes to engines directly, never through a proxy of the environment.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let stay = reqwest::redirect::Policy::custom(|attempt| {
            // Some servers redirect `/metrics` to `/metrics/`; nothing may lead us to another host.
            let same_place = attempt
                .previous()
                .first()
                .is_some_and(|first| first.origin() == attempt.url().origin());
            if same_place && attempt.previous().len() <= 2 {
                attempt.follow()
            } else {
                attempt.stop()
            }
        });
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(stay)
            .pool_max_idle_per_host(1)
            .tcp_nodelay(true)
            .user_agent(concat!("warmpath/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { http })
    }

    /// The engine at `address`.
    pub fn engine(&self, address: SocketAddr) -> Engine {
        Engine {
            client: self.clone(),
            address,
        }
    }

    async fn get(
        &self,
        address: SocketAddr,
        path: &str,
        deadline: Duration,
    ) -> Result<Answer, AskError> {
        match tokio::time::timeout(deadline, self.get_whole(address, path)).await {
            Ok(answered) => answered,
            Err(_elapsed) => Err(AskError::Late {
                address,
                path: path.to_owned(),
                deadline,
            }),
        }
    }

    async fn get_whole(&self, address: SocketAddr, path: &str) -> Result<Answer, AskError> {
        let unreachable = |http: reqwest::Error| match is_refusal(&http) {
            true => AskError::Refused {
                address,
                path: path.to_owned(),
            },
            false => AskError::Unreachable {
                address,
                path: path.to_owned(),
                http: http.without_url(),
            },
        };
        let url = format!("http://{address}{path}");
        let mut response = self.http.get(url).send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(AskError::TooLarge {
                    address,
                    path: path.to_owned(),
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer {
            status,
            body: body.freeze(),
        })
    }
}
