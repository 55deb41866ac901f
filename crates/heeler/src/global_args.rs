//! Options that every command accepts. Start at [`GlobalArgs`].

use camino::Utf8PathBuf;
use clap::{Args, ValueHint};

/// Options of every command.
#[derive(Args, Clone)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Config file, or the folder to search upward from [default: working directory]
    #[arg(short, long, global = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) config: Option<Utf8PathBuf>,
    /// State directory [default: .heeler or .herdctl next to the config file]
    #[arg(
        short = 's', long = "state-dir", alias = "state", global = true, value_name = "DIR",
        env = "HEELER_STATE_DIR", hide_env_values = true, value_hint = ValueHint::DirPath
    )]
    pub(crate) state_dir: Option<Utf8PathBuf>,
    /// Log more to stderr; repeat for even more (or set HEELER_LOG)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print only results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}
