//! Model files by hub id: downloaded once into a cache directory, off the request path.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hf_hub::api::tokio::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::files::{Found, OPTIONAL, ReadError, TOKENIZER};
use crate::routing::model::ModelFiles;

/// Longest wait for one file. A tokenizer has up to 35 MB; the library itself waits for ever.
const FILE_TIMEOUT: Duration = Duration::from_secs(300);

/// How the hub is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct HubAccess {
    /// Base URL; `None` is the public hub.
    pub endpoint: Option<String>,
    /// Bearer token for gated and private models.
    pub token: Option<String>,
    /// Where files are kept, in the hub's own cache layout.
    pub cache_directory: PathBuf,
    /// Only the cache is used, nothing is asked.
    pub offline: bool,
}

impl fmt::Debug for HubAccess {
    /// All but the token, which is nobody's business in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubAccess")
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .field("cache_directory", &self.cache_directory)
            .field("offline", &self.offline)
            .finish()
    }
}

impl HubAccess {
    /// What the customary variables say (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE`);
    /// a configured cache directory goes before `HF_HOME`.
    pub fn from_env(cache_directory: Option<PathBuf>) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cache_directory = cache_directory
            .or_else(|| variable("HF_HOME").map(|home| PathBuf::from(home).join("hub")))
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface/hub")))
            .unwrap_or_else(|| std::env::temp_dir().join("huggingface/hub"));
        let token = variable("HF_TOKEN").or_else(|| Cache::new(cache_directory.clone()).token());
        let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| {
            matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on")
        });
        Self {
            endpoint: variable("HF_ENDPOINT"),
            token,
            cache_directory,
            offline,
        }
    }
}

/// Why a model's files could not be had from the hub.
#[derive(Debug, thiserror::Error)]
pub(super) enum HubError {
    /// The client could not be built: a setting is not usable.
    #[error("the hub client cannot be set up")]
    Client(#[source] ApiError),
    /// The hub refuses.
    #[error("the hub answers {status} for {name}: is HF_TOKEN set, and may it read this model?")]
    Forbidden { name: &'static str, status: u16 },
    /// The download failed.
    #[error("cannot download {name}")]
    Download {
        name: &'static str,
        #[source]
        source: ApiError,
    },
    /// It took too long.
    #[error("downloading {name} took more than {} s", FILE_TIMEOUT.as_secs())]
    Timeout { name: &'static str },
    /// What was downloaded cannot be read.
    #[error("a downloaded file cannot be used")]
    Read(#[from] ReadError),
}

/// The files of `id` (`org/name` or `org/name@revision`); `None` when that model has no
/// `tokenizer.json`.
///
/// # Errors
/// When the hub cannot be reached or refuses; worth trying again later.
pub(super) async fn fetch(access: &HubAccess, id: &str) -> Result<Option<ModelFiles>, HubError> {
    let (name, revision) = id.split_once('@').unwrap_or((id, "main"));
    let repo = Repo::with_revision(name.to_owned(), RepoType::Model, revision.to_owned());
    let cache = Cache::new(access.cache_directory.clone()).repo(repo.clone());
    let api = client(access).map_err(HubError::Client)?.repo(repo);
    let mut found = Found::default();
    for name in std::iter::once(TOKENIZER).chain(OPTIONAL) {
        let path = if access.offline {
            cache.get(name)
        } else {
            download(&api, name).await?
        };
        match path {
            Some(path) => {
                let content = tokio::fs::read(path)
                    .await
                    .map_err(|source| ReadError::Io { name, source })?;
                found.add(name, content)?;
            }
            None if name == TOKENIZER => return Ok(None),
            None => {}
        }
    }
    Ok(Some(found.into_files()))
}

fn client(access: &HubAccess) -> Result<Api, ApiError> {
    let cache = Cache::new(access.cache_directory.clone());
    let mut builder = ApiBuilder::from_cache(cache)
        .with_progress(false)
        .with_token(access.token.clone())
        .with_user_agent("warmpath", env!("CARGO_PKG_VERSION"));
    if let Some(endpoint) = &access.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    builder.build()
}

/// One file, from the cache or the hub; `None` when the model does not have it.
async fn download(repo: &ApiRepo, name: &'static str) -> Result<Option<PathBuf>, HubError> {
    let outcome = tokio::time::timeout(FILE_TIMEOUT, repo.get(name))
        .await
        .map_err(|_elapsed| HubError::Timeout { name })?;
    match outcome {
        Ok(path) => Ok(Some(path)),
        Err(error) => match status(&error) {
            Some(404) => Ok(None),
            Some(status @ (401 | 403)) => Err(HubError::Forbidden { name, status }),
            _ => Err(HubError::Download {
                name,
                source: error,
            }),
        },
    }
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => error.status().map(|status| status.as_u16()),
        _ => None,
    }
}
