//! To come.
use crate::{cli::Global, failure::Outcome};
#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
pub(crate) fn run(_: &Global, _: &ImportArgs) -> Outcome {
    Ok(())
}
