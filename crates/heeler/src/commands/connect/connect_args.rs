//! Arguments of `heeler connect` that its parts share.

use clap::Args;

/// Arguments of `connect telegram`.
#[derive(Args)]
pub(crate) struct ConnectTelegramArgs {
    /// Agent that answers [default: the only agent]
    #[arg(short, long)]
    pub(super) agent: Option<String>,
    /// Variable that holds the bot token [default: that of the agent, or TELEGRAM_BOT_TOKEN]
    #[arg(long, value_name = "NAME")]
    pub(super) token_env: Option<heeler_config::VarName>,
    /// ID of your chat with the bot [default: the sender of the next message]
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub(super) chat: Option<String>,
    /// Time to wait for a message to the bot
    #[arg(long, value_name = "PERIOD", default_value = "2m")]
    pub(super) wait: heeler_config::ConfigDuration,
}

/// Arguments of `connect slack` and `connect discord`.
#[derive(Args)]
pub(crate) struct ConnectChannelArgs {
    /// Agent that answers [default: the only agent]
    #[arg(short, long)]
    pub(super) agent: Option<String>,
    /// ID of the channel for the test message [default: the first channel of the agent]
    #[arg(long, value_name = "ID")]
    pub(super) channel: Option<String>,
}
