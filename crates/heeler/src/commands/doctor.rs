//! To come.
use crate::{cli::Global, failure::Outcome};
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
pub(crate) fn run(_: &Global, _: &DoctorArgs) -> Outcome {
    Ok(())
}
