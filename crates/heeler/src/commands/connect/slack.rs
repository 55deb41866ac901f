//! Set-up of Slack: the manifest, both tokens, scopes, membership, a test message and the lines for the config.
//!
//! Start at [`run`].

use std::collections::BTreeMap;

use heeler_config::{AgentConfig, SlackConfig, SlackTransport};
use heeler_connect::{
    ChatPlace, ChatPlatform, ChatPolicy, OutgoingPost, PostMark, SlackBot, SlackTokens,
    is_slack_bot_token, slack_account,
};

use super::connect_args::ConnectChannelArgs;
use super::connected_agent::{check_failed, choose_agent};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;

/// Address of Slack, unless the agent's config has another.
const API_URL: &str = "https://slack.com/api";

/// Variables of the tokens, unless the agent's config names others.
const BOT_VARIABLE: &str = "SLACK_BOT_TOKEN";
const APP_VARIABLE: &str = "SLACK_APP_TOKEN";

/// Settings with which an app is created.
const MANIFEST: &str = "\
display_information: {name: Heeler}
features:
  bot_user: {display_name: Heeler, always_online: true}
  slash_commands: [{command: /heeler, description: Status and commands of the agents, usage_hint: help, should_escape: false}]
  app_home: {messages_tab_enabled: true, messages_tab_read_only_enabled: false}
oauth_config:
  scopes:
    bot: [app_mentions:read, chat:write, commands, files:read, files:write, im:history, channels:history, groups:history, users:read]
settings:
  event_subscriptions:
    bot_events: [app_mention, message.im, message.channels, message.groups]
  interactivity: {is_enabled: true}
  socket_mode_enabled: true";

/// Address that Slack calls, for an app that delivers events by HTTP.
const CALL_URL: &str = "https://HOST/hooks/slack";

/// Returns the settings with which an app is created.
fn manifest(is_called: bool) -> String {
    if !is_called {
        return MANIFEST.to_owned();
    }
    MANIFEST
        .replace("{command: /heeler, ", &format!("{{command: /heeler, url: '{CALL_URL}', "))
        .replace("bot_events:", &format!("request_url: {CALL_URL}\n    bot_events:"))
        .replace("{is_enabled: true}", &format!("{{is_enabled: true, request_url: '{CALL_URL}'}}"))
        .replace("socket_mode_enabled: true", "socket_mode_enabled: false")
}

/// Runs `connect slack`.
pub(super) fn run(context: &CommandContext, args: &ConnectChannelArgs) -> CommandResult {
    let loaded = fleet_config::load_without_workflows(context)?;
    let agent = choose_agent(&loaded, args.agent.as_deref(), "slack")?;
    let settings = agent.chat.as_ref().and_then(|chat| chat.slack.as_ref());
    let env = fleet_config::environment(context, context.config_file()?)?;
    let Some(tokens) = find_tokens(settings, &env)? else {
        let message = "there are no tokens of a Slack app";
        return Err(CommandFailure::message(FailureCode::Usage, message));
    };
    // The tokens are sent only to the address in the config, to which a person has agreed.
    let api_url = settings.map_or(API_URL, |slack| slack.api_url.as_str());
    let bot = SlackBot::new(api_url, tokens);
    let user = bot.own_user().map_err(check_failed)?;
    let (name, team) = (output::one_line(&user.name), output::one_line(&user.team));
    match is_called(settings) {
        true => output::print_line(format!(
            "The token is valid: the app is @{name} in {team}. It calls the daemon at /hooks/slack."
        ))?,
        false => {
            bot.open_socket().map_err(check_failed)?;
            output::print_line(format!("Both tokens are valid: the app is @{name} in {team}."))?;
        }
    }
    let takes_files =
        ChatPolicy::of_agent(agent, ChatPlatform::Slack).is_some_and(|policy| policy.takes_files());
    check_scopes(&bot, takes_files)?;
    let listed: Vec<&str> =
        settings.iter().flat_map(|it| &it.channels).map(|it| it.id.as_str()).collect();
    let given = args.channel.as_deref();
    let mut channels = listed.clone();
    channels.extend(given.filter(|given| !listed.contains(given)));
    check_channels(&bot, &channels)?;
    let Some(channel) = given.or(listed.first().copied()) else {
        let message = "no channel is known for the test message";
        let hint =
            "heeler connect slack --channel ID; the ID is at the end of \"View channel details\"";
        return Err(CommandFailure::message(FailureCode::Usage, message).hint(hint));
    };
    send_test(&bot, channel)?;
    match listed.contains(&channel) {
        true => Ok(output::print_line(format!(
            "The config of {} lists the channel. All is set up.",
            agent.name
        ))?),
        false => print_lines(agent, channel),
    }
}

/// Returns true if the app delivers events by HTTP.
fn is_called(settings: Option<&SlackConfig>) -> bool {
    settings.is_some_and(|slack| slack.events == SlackTransport::Http)
}

/// Returns the tokens; prints the steps if one is missing.
fn find_tokens(
    settings: Option<&SlackConfig>,
    env: &BTreeMap<String, String>,
) -> CommandResult<Option<SlackTokens>> {
    let bot_variable = settings.map_or(BOT_VARIABLE, |slack| slack.bot_token_env.as_str());
    let is_called = is_called(settings);
    // An app that calls the daemon has a signing secret in place of an app token.
    let app_variable = settings.map_or(APP_VARIABLE, |slack| match slack.events {
        SlackTransport::Socket => slack.app_token_env.as_str(),
        SlackTransport::Http => slack.signing_secret_env.as_str(),
    });
    let token = |variable: &str| {
        env.get(variable).map(|token| token.trim()).filter(|token| !token.is_empty())
    };
    let (Some(bot_token), Some(app_token)) = (token(bot_variable), token(app_variable)) else {
        print_steps(is_called, bot_variable, app_variable)?;
        return Ok(None);
    };
    let wrong = |variable: &str, example: &str| {
        let message = format!("{variable} has not the form of {example}");
        Err(CommandFailure::message(FailureCode::Failed, message))
    };
    if !is_slack_bot_token(bot_token) {
        return wrong(bot_variable, "a bot token, such as xoxb-1-2-abc");
    }
    if !is_called && slack_account(app_token).is_none() {
        return wrong(app_variable, "an app token, such as xapp-1-A012ABC-3-abc");
    }
    Ok(Some(SlackTokens {
        bot_token: bot_token.to_owned(),
        bot_variable: bot_variable.to_owned(),
        app_token: app_token.to_owned(),
        app_variable: app_variable.to_owned(),
    }))
}

/// Prints the steps that lead to the tokens.
fn print_steps(is_called: bool, bot_variable: &str, app_variable: &str) -> CommandResult {
    let manifest = manifest(is_called);
    let (second, form) = match is_called {
        true => (
            "HOST leads to the port of the dashboard (`web.port`). Under \"Basic Information\", copy the \
             \"Signing Secret\", and put the \"App ID\" into the config as `app_id`.",
            "…",
        ),
        false => (
            "Under \"Basic Information\", create an app-level token with the scope connections:write.",
            "xapp-…",
        ),
    };
    Ok(output::print_line(format!(
        "1. Open https://api.slack.com/apps, choose \"Create New App\", \"From a manifest\", and paste this:\n\n\
         {manifest}\n\n\
         2. {second}\n\
         3. Under \"Install App\", install the app into your workspace.\n\
         4. Put both into the file `.env` beside the config:\n   \
         {bot_variable}=xoxb-…\n   {app_variable}={form}\n\
         5. In Slack, invite the app to a channel: /invite @Heeler\n\
         6. Run `heeler connect slack --channel ID` with the ID of that channel."
    ))?)
}

fn check_scopes(bot: &SlackBot, takes_files: bool) -> CommandResult {
    let Some(missing) = bot.missing_scopes(takes_files).map_err(check_failed)? else {
        return Ok(output::print_line("Slack does not list the scopes; they are not checked.")?);
    };
    if missing.is_empty() {
        return Ok(output::print_line("The app has all scopes.")?);
    }
    let message = format!("the app lacks the scopes {}", missing.join(", "));
    let hint = "add them under \"OAuth & Permissions\" at https://api.slack.com/apps, and reinstall the app";
    Err(CommandFailure::message(FailureCode::Failed, message).hint(hint))
}

/// Checks that the app is a member of each channel.
fn check_channels(bot: &SlackBot, channels: &[&str]) -> CommandResult {
    for channel in channels {
        bot.check_channel(channel).map_err(|error| {
            let message = format!("channel {channel}: {error}");
            CommandFailure::message(FailureCode::Failed, message)
        })?;
        output::print_line(format!("The app reads the channel {channel}."))?;
    }
    Ok(())
}

fn send_test(bot: &SlackBot, channel: &str) -> CommandResult {
    let place = ChatPlace::of_chat(ChatPlatform::Slack, channel);
    let text = format!("Heeler is connected. This channel has the ID {channel}.");
    let post = OutgoingPost { text, buttons: Vec::new(), reply_to: None };
    let mark = PostMark { id: "test of heeler connect", maybe_made_since: None };
    bot.send_once(&place, &post, mark).map_err(check_failed)?;
    Ok(output::print_line(format!("A test message was sent to the channel {channel}."))?)
}

/// Prints the lines for the config that are missing.
fn print_lines(agent: &AgentConfig, channel: &str) -> CommandResult {
    output::print_line(format!(
        "\nAdd these lines to the agent {} in {}:\n\n    chat:\n      slack:\n        \
         channels: [{{id: {channel}, mode: mention}}]\n        \
         approvers: [U…]                   # members who may answer questions, by ID\n\n\
         To receive notices there, add these lines to the fleet file:\n\n    notify:\n      channels:\n        \
         slack: {{slack: {{channel: {channel}}}}}\n",
        agent.name, agent.file
    ))?;
    Ok(output::print_line("Next: heeler config validate && heeler reload && heeler doctor chat")?)
}
