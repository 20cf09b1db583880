//! The main job on one machine in one command.

/// Flags of `warmpath demo`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the demo.
///
/// # Errors
/// Always: the demo is not part of this build.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("the demo is not part of this build")
}
