//! A simulated vLLM: one pure model, driven here by a real clock and sockets.

/// Flags of `warmpath engine`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the engine.
///
/// # Errors
/// Always: the engine is not part of this build.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("the simulated engine is not part of this build")
}
