//! What is the simulated engine told? Its command line, checked into settings.

mod events;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser as _;

use super::event_ports::PortError;
use super::fault::{self, RankFault};
use super::model;
use super::publish::EventSettings;
use crate::routing::block::BlockSize;
use events::EventArgs;

/// A simulated vLLM engine: OpenAI HTTP API, metrics, KV events.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "engine", args_override_self = true, after_long_help = faults())]
pub struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// Port of the HTTP API; 0 for a free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// What it calls itself in the response header x-warmpath-engine (default: its address).
    #[arg(long)]
    name: Option<String>,
    /// Name of the model that requests use.
    #[arg(long, default_value = "warmpath-sim")]
    model: String,
    /// Folder with the model's tokenizer.json and chat template (default: a simple built-in tokenizer).
    #[arg(long)]
    model_dir: Option<PathBuf>,
    /// Names of LoRA adapters that are served as models of their own.
    #[arg(long)]
    lora: Vec<String>,
    /// vLLM version to behave like, as /version tells it.
    #[arg(long, default_value = "0.33.0")]
    version: Version,
    /// Tokens a block.
    #[arg(long, default_value = "16", value_parser = block_size)]
    block_size: BlockSize,
    /// Blocks of the KV pool.
    #[arg(long, default_value_t = 10_000)]
    kv_blocks: usize,
    /// Blocks of a tier beneath the pool, in host memory: what the pool evicts is kept there and loaded again.
    #[arg(long, default_value_t = 0)]
    cpu_blocks: usize,
    /// Microseconds of loading a token from that tier.
    #[arg(long, default_value_t = 5.0)]
    cpu_load_us_per_token: f64,
    /// Events of that tier tell tokens and parent, not the hash alone (vLLM's self_describing_kv_events).
    #[arg(long)]
    cpu_describes: bool,
    /// Requests running at once.
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,
    /// Token budget of a step.
    #[arg(long, default_value_t = 8192)]
    max_num_batched_tokens: usize,
    /// Context length in tokens.
    #[arg(long, default_value_t = 32_768)]
    max_model_len: usize,
    /// Answers in the making or waited for, of all ranks together; more requests are refused with 503.
    #[arg(long)]
    max_num_queued_reqs: Option<usize>,
    /// Microseconds of prefill a token.
    #[arg(long, default_value_t = 71.3)]
    prefill_us_per_token: f64,
    /// Milliseconds that decoding adds to a step.
    #[arg(long, default_value_t = 12.0)]
    decode_ms_per_step: f64,
    /// Nanoseconds that each token in the contexts of the decoding requests adds to a step.
    #[arg(long, default_value_t = 0.0)]
    decode_ns_per_context_token: f64,
    /// Milliseconds that any step takes.
    #[arg(long, default_value_t = 1.0)]
    base_ms_per_step: f64,
    /// Length of an answer that nothing else ends, in tokens.
    #[arg(long, default_value_t = 256)]
    answer_tokens: usize,
    /// Data-parallel ranks behind this server: engine cores with a KV pool each. The request header
    /// x-data-parallel-rank pins one; other requests go to the least busy.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
    data_parallel_size: u32,
    /// This server is the one rank of that number, behind a balancer of its own.
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(..MAX_RANKS))]
    data_parallel_rank: Option<u32>,
    /// Processes that serve HTTP (default: one a rank). Like vLLM's, several cannot filter their metrics page, and
    /// its gauges are missing until a rank's first step.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    api_server_count: Option<u32>,
    #[command(flatten)]
    events: EventArgs,
    /// Answers depend on this and on the prompt.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What goes wrong from the start, by a name of the list below; with @RANK at its end, at that rank instead of
    /// the first.
    #[arg(long)]
    fault: Vec<RankFault>,
}

fn faults() -> String {
    format!(
        "Faults, for --fault and as the body of POST /sim/fault (\"none\" ends them):\n{}",
        fault::help()
    )
}

/// More engine cores than one server has anywhere; each has a task and two sockets here.
const MAX_RANKS: i64 = 1024;

/// A vLLM release, as far as behaviour depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// As `/version` tells it.
    pub text: String,
    /// Major and minor number.
    pub number: (u32, u32),
}

/// Text that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version like 0.33.0")]
pub struct VersionError(String);

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let mut parts = text.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self {
                text: text.to_owned(),
                number: (major, minor),
            }),
            _ => Err(VersionError(text.to_owned())),
        }
    }
}

/// An engine to start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where HTTP is served; port 0 for a free one.
    pub listen: SocketAddr,
    /// The response header's value; `None` for the address.
    pub name: Option<String>,
    /// The model's name in requests.
    pub model: String,
    /// Folder of the tokenizer; `None` for the built-in one.
    pub model_dir: Option<PathBuf>,
    /// Adapters.
    pub adapters: Vec<String>,
    /// The release it behaves like.
    pub version: Version,
    /// The engine core. Its vocabulary is taken from the tokenizer at the start.
    pub core: model::Settings,
    /// Answers in the making or waited for that it takes at once, if there is a limit.
    pub max_num_queued_reqs: Option<usize>,
    /// Its data-parallel ranks. Each has an engine core like the others.
    pub ranks: RankSettings,
    /// KV events, if it has any. The addresses are those of rank 0; the others are at the next ports.
    pub events: Option<EventSettings>,
    /// What goes wrong from the start.
    pub faults: Vec<RankFault>,
}

/// The data-parallel ranks of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSettings {
    /// The number of the first.
    pub first: u32,
    /// How many, at least 1.
    pub count: u32,
    /// Processes that serve HTTP, at least 1.
    pub api_servers: u32,
}

impl RankSettings {
    /// Their numbers.
    pub(super) fn numbers(self) -> std::ops::Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// What the command line says does not go together, or means nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArgsError {
    /// A server of several ranks numbers them from 0.
    #[error(
        "--data-parallel-rank {rank} is for a server of one rank, and --data-parallel-size is {size}"
    )]
    RankOfMany {
        /// What the rank's option said.
        rank: u32,
        /// What the other said.
        size: u32,
    },
    /// A fault of a rank that is not there.
    #[error("--fault {fault}: this server has no such rank")]
    FaultRank {
        /// What the option said.
        fault: RankFault,
    },
    /// Groups in a dialect that has no word for them.
    #[error("--kv-groups {0} needs a dialect of vLLM 0.20 or later")]
    Groups(u32),
    /// Ports for events.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// Negative, infinite or not a number.
    #[error("--{name} cannot be {value}")]
    Duration {
        /// The option.
        name: &'static str,
        /// What it said.
        value: f64,
    },
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    text.parse()
        .ok()
        .and_then(BlockSize::new)
        .ok_or_else(|| format!("{text} is not a positive number of tokens"))
}

fn rank_settings(
    size: u32,
    rank: Option<u32>,
    api_servers: Option<u32>,
) -> Result<RankSettings, ArgsError> {
    if let (Some(rank), 2..) = (rank, size) {
        return Err(ArgsError::RankOfMany { rank, size });
    }
    Ok(RankSettings {
        first: rank.unwrap_or(0),
        count: size,
        api_servers: api_servers.unwrap_or(size),
    })
}

impl Args {
    fn core(&self) -> Result<model::Settings, ArgsError> {
        let duration = |name, value: f64, unit: f64| {
            Duration::try_from_secs_f64(value * unit)
                .map_err(|_| ArgsError::Duration { name, value })
        };
        // Below a nanosecond counts too, so it stays a float; only its range is checked here.
        duration(
            "decode-ns-per-context-token",
            self.decode_ns_per_context_token,
            1e-9,
        )?;
        Ok(model::Settings {
            block_size: self.block_size,
            blocks: self.kv_blocks,
            lower_blocks: self.cpu_blocks,
            lower_describes: self.cpu_describes,
            load_per_token: duration("cpu-load-us-per-token", self.cpu_load_us_per_token, 1e-6)?,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            step_base: duration("base-ms-per-step", self.base_ms_per_step, 1e-3)?,
            prefill_per_token: duration("prefill-us-per-token", self.prefill_us_per_token, 1e-6)?,
            decode_per_step: duration("decode-ms-per-step", self.decode_ms_per_step, 1e-3)?,
            decode_ns_per_context_token: self.decode_ns_per_context_token,
            answer_tokens: self.answer_tokens,
            vocabulary: [].into(),
            seed: self.seed,
        })
    }

    /// Checks and converts.
    ///
    /// # Errors
    /// When a figure is out of its range.
    pub fn settings(self) -> Result<Settings, ArgsError> {
        let ranks = rank_settings(
            self.data_parallel_size,
            self.data_parallel_rank,
            self.api_server_count,
        )?;
        for &fault in &self.fault {
            if !fault
                .rank
                .is_none_or(|rank| ranks.numbers().contains(&rank))
            {
                return Err(ArgsError::FaultRank { fault });
            }
        }
        let core = self.core()?;
        let events = self.events.settings(ranks)?;
        Ok(Settings {
            listen: SocketAddr::new(self.address, self.port),
            name: self.name,
            model: self.model,
            model_dir: self.model_dir,
            adapters: self.lora,
            version: self.version,
            core,
            max_num_queued_reqs: self.max_num_queued_reqs,
            ranks,
            events,
            faults: self.fault,
        })
    }
}

impl Settings {
    /// The defaults with `options` on top, on free ports of the local host: for engines inside a test or the demo.
    ///
    /// # Errors
    /// When the options are not the command line's.
    pub fn local(options: &[&str]) -> anyhow::Result<Self> {
        let local = [
            "engine",
            "--port",
            "0",
            "--kv-events",
            "tcp://127.0.0.1:0",
            "--kv-replay",
            "tcp://127.0.0.1:0",
        ];
        let args = Args::try_parse_from(local.iter().chain(options))?;
        Ok(args.settings()?)
    }
}
