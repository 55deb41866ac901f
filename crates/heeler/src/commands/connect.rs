//! `heeler connect`: sets up a chat platform or GitHub step by step. Start at [`run`].
//!
//! Each command can be repeated: it checks what is there, and tells the next step. It writes no file.

mod connect_args;
mod connected_agent;
mod discord;
mod github;
mod slack;
mod telegram;

use clap::{Args, Subcommand};

use self::connect_args::{ConnectChannelArgs, ConnectTelegramArgs};
use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;

/// Help footer of `connect telegram`.
const TELEGRAM: &str = "Examples:
  heeler connect telegram
  heeler connect telegram --agent coder --chat 123456

Run it again after each step. It checks the token, waits for your first message to the bot, sends a test message and
prints the lines for the config. Exit codes: 0 it works, 1 a check failed, 2 a step is left.";

/// Help footer of `connect slack`.
const SLACK: &str = "Examples:
  heeler connect slack
  heeler connect slack --agent coder --channel C012DEV

Run it again after each step. It prints the manifest of the app, checks both tokens, the scopes and the membership in
the channels, sends a test message and prints the lines for the config. Exit codes: 0 it works, 1 a check failed, 2 a
step is left.";

/// Help footer of `connect discord`.
const DISCORD: &str = "Examples:
  heeler connect discord
  heeler connect discord --agent coder --channel 345678901234567890

Run it again after each step. It checks the token and the intent, prints the address that adds the bot to a server,
checks the access to the channels, sends a test message and prints the lines for the config. Exit codes: 0 it works,
1 a check failed, 2 a step is left.";

/// Help footer of `connect github`.
const GITHUB: &str = "Examples:
  heeler connect github

Run it again after each step. It checks the credentials in the config, their account and the limit of calls. Exit codes:
0 it works, 1 a check failed, 2 a step is left.";

#[derive(Subcommand)]
pub(crate) enum ConnectCommand {
    /// Let people talk to an agent on Telegram
    #[command(after_help = TELEGRAM)]
    Telegram(ConnectTelegramArgs),
    /// Let people talk to an agent on Slack
    #[command(after_help = SLACK)]
    Slack(ConnectChannelArgs),
    /// Let people talk to an agent on Discord
    #[command(after_help = DISCORD)]
    Discord(ConnectChannelArgs),
    /// Let the fleet act on GitHub
    #[command(after_help = GITHUB)]
    Github(ConnectGithubArgs),
}

/// Arguments of `connect github`.
#[derive(Args)]
pub(crate) struct ConnectGithubArgs {}

/// Runs `connect` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &ConnectCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    match command {
        ConnectCommand::Telegram(args) => telegram::run(&context, args),
        ConnectCommand::Slack(args) => slack::run(&context, args),
        ConnectCommand::Discord(args) => discord::run(&context, args),
        ConnectCommand::Github(ConnectGithubArgs {}) => github::run(&context),
    }
}
