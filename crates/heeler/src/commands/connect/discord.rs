//! Set-up of Discord: the token, the intent, the invitation, a test message and the lines for the config.
//!
//! Start at [`run`].

use heeler_config::{AgentConfig, DiscordConfig};
use heeler_connect::{ChatPlace, ChatPlatform, DiscordBot, OutgoingPost, PostMark};

use super::connect_args::ConnectChannelArgs;
use super::connected_agent::{check_failed, choose_agent};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;

/// Address of Discord, unless the agent's config has another.
const API_URL: &str = "https://discord.com/api/v10";

/// Variable of the token, unless the agent's config names another.
const TOKEN_VARIABLE: &str = "DISCORD_BOT_TOKEN";

/// Runs `connect discord`.
pub(super) fn run(context: &CommandContext, args: &ConnectChannelArgs) -> CommandResult {
    let loaded = fleet_config::load_without_workflows(context)?;
    let agent = choose_agent(&loaded, args.agent.as_deref(), "discord")?;
    let settings = agent.chat.as_ref().and_then(|chat| chat.discord.as_ref());
    let variable = settings.map_or(TOKEN_VARIABLE, |discord| discord.bot_token_env.as_str());
    let env = fleet_config::environment(context, context.config_file()?)?;
    let token = env.get(variable).map(|token| token.trim()).filter(|token| !token.is_empty());
    let Some(token) = token else {
        output::print_line(format!(
            "1. Open https://discord.com/developers/applications, and create an application.\n\
             2. Under \"Bot\", turn on \"Message Content Intent\", and create a token with \"Reset Token\".\n\
             3. Put the token into the file `.env` beside the config:\n   {variable}=…\n\
             4. Run `heeler connect discord` again."
        ))?;
        return Err(CommandFailure::message(FailureCode::Usage, format!("there is no {variable}")));
    };
    // The token is sent only to the address in the config, to which a person has agreed.
    let api_url = settings.map_or(API_URL, |discord| discord.api_url.as_str());
    let bot = DiscordBot::new(api_url, token, variable).map_err(check_failed)?;
    let user = bot.own_user().map_err(check_failed)?;
    output::print_line(format!(
        "The token is valid: the bot is {}.",
        output::one_line(&user.name)
    ))?;
    if !bot.reads_content().map_err(check_failed)? {
        let message = "the bot may not read messages";
        let hint = "turn on \"Message Content Intent\" under \"Bot\" in the Developer Portal";
        return Err(CommandFailure::message(FailureCode::Failed, message).hint(hint));
    }
    output::print_line("The bot may read messages.")?;
    output::print_line(format!("To add the bot to a server, open {}", bot.invite_url()))?;
    let listed = listed_channels(settings);
    let Some(channel) = args.channel.as_deref().or(listed.first().copied()) else {
        let message = "no channel is known for the test message";
        let hint = "heeler connect discord --channel ID; turn on \"Developer Mode\" to copy IDs";
        return Err(CommandFailure::message(FailureCode::Usage, message).hint(hint));
    };
    let extra = Some(channel).filter(|channel| !listed.contains(channel));
    for channel in listed.iter().copied().chain(extra) {
        bot.check_channel(channel).map_err(|error| {
            let message = format!("channel {channel}: {error}");
            CommandFailure::message(FailureCode::Failed, message)
        })?;
        output::print_line(format!("The bot reads the channel {channel}."))?;
    }
    send_test(&bot, channel)?;
    match extra {
        None => Ok(output::print_line(format!(
            "The config of {} lists the channel. All is set up.",
            agent.name
        ))?),
        Some(channel) => print_lines(agent, channel),
    }
}

fn listed_channels(settings: Option<&DiscordConfig>) -> Vec<&str> {
    let of_guilds = settings.iter().flat_map(|it| &it.guilds).flat_map(|guild| &guild.channels);
    let flat = settings.iter().flat_map(|it| &it.channels);
    of_guilds.chain(flat).map(|channel| channel.id.as_str()).collect()
}

fn send_test(bot: &DiscordBot, channel: &str) -> CommandResult {
    let place = ChatPlace::of_chat(ChatPlatform::Discord, channel);
    let text = format!("Heeler is connected. This channel has the ID {channel}.");
    let post = OutgoingPost { text, buttons: Vec::new(), reply_to: None };
    // Discord would take two tests within some minutes for one, so each has an ID of its own.
    let id = format!("test of heeler connect {}", uuid::Uuid::new_v4());
    let mark = PostMark { id: &id, maybe_made_since: None };
    bot.send_once(&place, &post, mark).map_err(check_failed)?;
    Ok(output::print_line(format!("A test message was sent to the channel {channel}."))?)
}

/// Prints the lines for the config that are missing.
fn print_lines(agent: &AgentConfig, channel: &str) -> CommandResult {
    output::print_line(format!(
        "\nAdd these lines to the agent {} in {}:\n\n    chat:\n      discord:\n        \
         channels: [{{id: '{channel}', mode: mention}}]\n        \
         approvers: ['…']                  # users who may answer questions, by ID\n\n\
         To receive notices there, add these lines to the fleet file:\n\n    notify:\n      channels:\n        \
         discord: {{discord: {{channel: '{channel}'}}}}\n",
        agent.name, agent.file
    ))?;
    Ok(output::print_line("Next: heeler config validate && heeler reload && heeler doctor chat")?)
}
