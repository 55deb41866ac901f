//! `heeler start`: runs the fleet. This process is the daemon.

use clap::Args;

use crate::cli::Global;
use crate::failure::{Code, Failure, Outcome};

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "";

/// Arguments of `start`.
#[derive(Args)]
pub(crate) struct StartArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(_global: &Global, _args: &StartArgs) -> Outcome {
    Err(Failure::message(Code::Failed, "not yet"))
}
