//! `heeler connect`: sets up a chat platform or GitHub step by step. Start at [`run`].
//!
//! Each command can be repeated: it checks what is there, and tells the next step. It writes no file.

mod github;
mod telegram;

use clap::{Args, Subcommand};

use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;

/// Help footer of `connect telegram`.
const TELEGRAM: &str = "Examples:
  heeler connect telegram
  heeler connect telegram --agent coder --chat 123456

Run it again after each step. It checks the token, waits for your first message to the bot, sends a test message and
prints the lines for the config. Exit codes: 0 it works, 1 a check failed, 2 a step is left.";

/// Help footer of `connect github`.
const GITHUB: &str = "Examples:
  heeler connect github

Run it again after each step. It checks the credentials in the config and the access to each repository. Exit codes:
0 it works, 1 a check failed, 2 a step is left.";

#[derive(Subcommand)]
pub(crate) enum ConnectCommand {
    /// Let people talk to an agent on Telegram
    #[command(after_help = TELEGRAM)]
    Telegram(ConnectTelegramArgs),
    /// Let the fleet act on GitHub
    #[command(after_help = GITHUB)]
    Github(ConnectGithubArgs),
}

/// Arguments of `connect telegram`.
#[derive(Args)]
pub(crate) struct ConnectTelegramArgs {
    /// Agent that answers [default: the only agent]
    #[arg(short, long)]
    agent: Option<String>,
    /// Variable that holds the bot token [default: that of the agent, or TELEGRAM_BOT_TOKEN]
    #[arg(long, value_name = "NAME")]
    token_env: Option<heeler_config::VarName>,
    /// ID of your chat with the bot [default: the sender of the next message]
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    chat: Option<String>,
    /// Time to wait for a message to the bot
    #[arg(long, value_name = "PERIOD", default_value = "2m")]
    wait: heeler_config::ConfigDuration,
}

/// Arguments of `connect github`.
#[derive(Args)]
pub(crate) struct ConnectGithubArgs {}

/// Runs `connect` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &ConnectCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    match command {
        ConnectCommand::Telegram(args) => telegram::run(&context, args),
        ConnectCommand::Github(ConnectGithubArgs {}) => github::run(&context),
    }
}
