//! Is everything there that exact picks need? Asks live engines, sends each a small request, and says what to change.
//!
//! What the picker would do is done by the picker's own parts: where the events are ([`crate::feeds::probe`]), how they
//! are followed ([`crate::feeds::kv_events`]), what the report page says, whose tokens are right. So what passes here
//! works there.

mod about;
mod cached;
mod engine;
mod events;
mod finding;
mod fleet;
mod report;
mod target;
mod tokenizer;
mod trial;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::config::Settings;
use crate::config::units::Span;
use about::About;
use engine::Engine;
use finding::{Findings, Topic};
use report::Examined;
use target::Target;

/// Engines examined at once.
const AT_ONCE: usize = 8;

/// Flags of `warmpath check`.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("engines").required(true).multiple(true).args(["url", "endpoints_file"]))]
pub struct Args {
    /// An engine: http://HOST:PORT; may be given several times
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
    /// File that lists the engines, as for `warmpath serve`
    #[arg(long, value_name = "FILE")]
    endpoints_file: Option<PathBuf>,
    /// Settings file of the picker: ports of KV events, tokenizers
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Model for the requests sent [default: the first one that the engine names]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Key for engines that were started with --api-key
    #[arg(
        long,
        value_name = "KEY",
        env = "WARMPATH_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// Longest wait for each answer of an engine, and for the events of a request
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Span,
    /// Whether the result is printed as JSON
    #[arg(long)]
    json: bool,
}

/// What every examination needs.
struct Context {
    settings: Settings,
    model: Option<String>,
    api_key: Option<String>,
    timeout: Duration,
    http: reqwest::Client,
}

/// Examines all engines and prints what was found; false when a check failed.
///
/// # Errors
/// When a file cannot be read, a URL makes no sense, or the result cannot be printed.
pub async fn run(args: Args) -> anyhow::Result<bool> {
    let targets = target::all(&args.url, args.endpoints_file.as_deref()).await?;
    // Pods are reached directly, whatever proxy the environment names for the world outside.
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .context("cannot set up the HTTP client")?;
    let context = Context {
        settings: Settings::load(args.config.as_deref())?,
        model: args.model,
        api_key: args.api_key,
        timeout: args.timeout.0,
        http,
    };
    let mut examined: Vec<Examined> = stream::iter(targets)
        .map(|target| examine(&context, target))
        .buffered(AT_ONCE)
        .collect()
        .await;
    let fleet = fleet::compare(&examined);
    let passed = report::passed(&examined);
    for one in &mut examined {
        one.findings.in_order();
    }
    let text = if args.json {
        report::json(&examined, &fleet)
    } else {
        report::text(&examined, &fleet)
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the result")?;
    Ok(passed)
}

/// Everything about one engine. What cannot be looked at because something before it failed is said to be left out.
async fn examine(context: &Context, target: Target) -> Examined {
    let mut findings = Findings::default();
    let engine = Engine::new(context, target.address);
    let about = About::ask(&engine, &mut findings).await;
    if let Some(about) = &about {
        let followed = events::Followed::begin(context, &target, about, &mut findings).await;
        trial::run(context, &engine, about, followed, &mut findings).await;
        tokenizer::judge(context, target.address, about, &mut findings).await;
    } else {
        for topic in Topic::ALL {
            if !findings.has(topic) {
                findings.left_out(topic, "the engine does not answer");
            }
        }
    }
    Examined {
        target,
        about: about.unwrap_or_default(),
        findings,
    }
}
