//! What does an engine start with? Every rank's model, sockets and driver, and what HTTP needs to know of them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::HeaderValue;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::args::Settings;
use super::driver::{COMMANDS, Driver};
use super::event_ports::PortError;
use super::fault::Faults;
use super::http::App;
use super::model::{Model, SettingsError};
use super::observed::Observed;
use super::publish::{BindError, Replay, bind};
use super::ranks::{InFlight, Rank, Ranks};
use super::tokenizer::{Tokenizer, TokenizerError};

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine core.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The model's files.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The HTTP address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The event addresses.
    #[error(transparent)]
    Events(#[from] BindError),
    /// The event ports of all ranks.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// A name that a response header cannot carry.
    #[error("{0:?} cannot stand in a response header")]
    Name(String),
    /// No thread or runtime to be had.
    #[error("cannot start a thread for the engine")]
    Thread(#[from] std::io::Error),
    /// The thread ended before it listened.
    #[error("the engine's thread ended while it started")]
    Died,
}

/// An engine that listens and is not served yet.
pub(super) struct Ready {
    pub(super) app: Arc<App>,
    pub(super) listener: TcpListener,
    pub(super) cores: Vec<Core>,
}

/// What runs for one rank.
pub(super) struct Core {
    pub(super) driver: Driver,
    pub(super) replay: Option<Replay>,
}

/// Reads the model's files and binds all sockets. The settings in what comes out have the real ports.
///
/// # Errors
/// When the settings make no engine, or an address is taken.
pub(super) async fn prepare(mut settings: Settings) -> Result<Ready, StartError> {
    let tokenizer = Tokenizer::load(settings.model_dir.as_deref())?;
    settings.core.vocabulary = tokenizer.vocabulary();
    let address = settings.listen;
    let listen = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    settings.listen = listener.local_addr().map_err(listen)?;
    let name = settings.name.clone();
    let name = name.unwrap_or_else(|| settings.listen.to_string());
    let name = HeaderValue::from_str(&name).map_err(|_| StartError::Name(name))?;
    let numbers = settings.ranks.numbers();
    if let Some(events) = settings.events.take() {
        events.check_ports(settings.ranks)?;
        settings.events = Some(events.settled(settings.ranks)?);
    }
    let (first, core) = rank(&mut settings, numbers.start).await?;
    let (mut others, mut cores) = (Vec::new(), vec![core]);
    for number in numbers.skip(1) {
        let (rank, core) = rank(&mut settings, number).await?;
        others.push(rank);
        cores.push(core);
    }
    let app = App {
        settings,
        name,
        tokenizer,
        ranks: Ranks::new(first, others),
        stale_page: Mutex::new(None),
    };
    Ok(Ready {
        app: Arc::new(app),
        listener,
        cores,
    })
}

/// One rank: how it is reached, and what runs for it.
async fn rank(settings: &mut Settings, number: u32) -> Result<(Rank, Core), StartError> {
    let model = Model::new(settings.core.clone())?;
    let is_first = number == settings.ranks.first;
    let faults = Arc::new(Faults::of_rank(number, is_first, &settings.faults));
    let (mut publisher, mut replay, mut event_addresses) = (None, None, None);
    if let Some(events) = &mut settings.events {
        let adapters = settings.adapters.clone();
        let own = events.of_rank(number)?;
        let bound = bind(own, number, adapters, Arc::clone(&faults)).await?;
        if number == 0 {
            // Known only now where the system chose a port for a single rank.
            events.live.clone_from(&bound.live_address);
            events.replay.clone_from(&bound.replay_address);
        }
        event_addresses = Some((bound.live_address, bound.replay_address));
        publisher = Some(bound.publisher);
        replay = bound.replay;
    }
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let observed = Arc::new(Mutex::new(Observed::default()));
    let driver = Driver::new(
        model,
        settings.core.max_model_len,
        receiver,
        publisher,
        Arc::clone(&observed),
        Arc::clone(&faults),
    );
    let rank = Rank {
        number,
        commands,
        observed,
        faults,
        event_addresses,
        in_flight: InFlight::default(),
    };
    Ok((rank, Core { driver, replay }))
}
