//! Set-up of Telegram: the token, the person, a test message and the lines for the config.
//!
//! Start at [`run`].

use std::time::{Duration, Instant};

use heeler_config::{AgentConfig, TelegramConfig};
use heeler_connect::{ChatEvent, ChatPlace, OutgoingPost, TelegramBot, TelegramUser, parse_update};

use super::connect_args::ConnectTelegramArgs;
use super::connected_agent::{check_failed, choose_agent};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;

/// Address of Telegram, unless the agent's config has another.
const API_URL: &str = "https://api.telegram.org";

/// Variable of the token, unless the agent's config names another.
const TOKEN_VARIABLE: &str = "TELEGRAM_BOT_TOKEN";

/// Time for which Telegram may hold one request.
const POLL_WAIT: Duration = Duration::from_secs(10);

/// Runs `connect telegram`.
pub(super) fn run(context: &CommandContext, args: &ConnectTelegramArgs) -> CommandResult {
    let loaded = fleet_config::load_without_workflows(context)?;
    let agent = choose_agent(&loaded, args.agent.as_deref(), "telegram")?;
    let settings = agent.chat.as_ref().and_then(|chat| chat.telegram.as_ref());
    let own_variable = settings.map(|telegram| telegram.bot_token_env.as_str());
    let variable = args.token_env.as_ref().map(|name| name.as_str());
    let variable = variable.or(own_variable).unwrap_or(TOKEN_VARIABLE);
    let env = fleet_config::environment(context, context.config_file()?)?;
    let token = env.get(variable).map(|token| token.trim()).filter(|token| !token.is_empty());
    let Some(token) = token else {
        output::print_line(
            "1. In Telegram, write `/newbot` to @BotFather and answer its questions.",
        )?;
        output::print_line(format!(
            "2. Put the token that it gives you into the file `.env` beside the config:\n   {variable}=123456:ABC…"
        ))?;
        output::print_line("3. Run `heeler connect telegram` again.")?;
        return Err(CommandFailure::message(FailureCode::Usage, format!("there is no {variable}")));
    };
    // The token is sent only to the address in the config, to which a person has agreed.
    let api_url = settings.map_or(API_URL, |telegram| telegram.api_url.as_str());
    let bot = TelegramBot::new(api_url, token, variable).map_err(check_failed)?;
    let user = bot.own_user().map_err(check_failed)?;
    output::print_line(format!("The token is valid: the bot is @{}.", user.username))?;
    let chat = match &args.chat {
        Some(chat) => chat.clone(),
        None => wait_for_message(&bot, &user, args.wait.get())?,
    };
    let place = ChatPlace::of_telegram(&chat);
    let text = format!("Heeler is connected. This chat has the ID {chat}.");
    let post = OutgoingPost { text, buttons: Vec::new(), reply_to: None };
    bot.send(&place, &post).map_err(check_failed)?;
    output::print_line(format!("A test message was sent to the chat {chat}."))?;
    print_lines(agent, settings, variable, &chat)
}

/// Waits for a message to the bot, and returns the ID of its chat. No message is confirmed, so the daemon
/// still receives it.
fn wait_for_message(
    bot: &TelegramBot,
    user: &TelegramUser,
    wait: Duration,
) -> CommandResult<String> {
    let name = &user.username;
    output::print_line(format!("Write any message to @{name} now: https://t.me/{name}"))?;
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let updates = bot.updates(0, POLL_WAIT.min(left)).map_err(check_failed)?;
        let events = updates.iter().filter_map(|update| parse_update(update, user));
        let people: Vec<ChatEvent> = events.filter(|event| !event.sender.is_bot).collect();
        if let Some(event) = people.last() {
            let (sender, chat) = (&event.sender, &event.place.chat);
            output::print_line(format!(
                "{} (ID {}) wrote in the chat {chat}.",
                output::one_line(&sender.name),
                sender.id
            ))?;
            return Ok(chat.clone());
        }
        if Instant::now() >= deadline {
            return Err(CommandFailure::message(FailureCode::Usage, "no message arrived").hint(
                "heeler connect telegram, and write to the bot; or give the ID with --chat",
            ));
        }
    }
}

/// Prints the lines for the config that are missing.
fn print_lines(
    agent: &AgentConfig,
    settings: Option<&TelegramConfig>,
    variable: &str,
    chat: &str,
) -> CommandResult {
    let people = settings.and_then(|telegram| telegram.dm.as_ref()?.allowlist.as_ref());
    let is_listed = people.is_some_and(|people| people.iter().any(|id| id == chat || id == "*"))
        || settings.is_some_and(|telegram| telegram.chats.iter().any(|it| it.id == chat));
    if is_listed {
        let name = &agent.name;
        return Ok(output::print_line(format!(
            "The config of {name} lists the chat. All is set up."
        ))?);
    }
    let token = match variable {
        TOKEN_VARIABLE => String::new(),
        variable => format!("        bot_token_env: {variable}\n"),
    };
    let place = match chat.starts_with('-') {
        true => format!("        chats: [{{id: '{chat}'}}]\n"),
        false => format!(
            "        dm: {{allowlist: ['{chat}']}}\n        approvers: ['{chat}']     # may answer questions\n"
        ),
    };
    output::print_line(format!(
        "\nAdd these lines to the agent {} in {}:\n\n    chat:\n      telegram:\n{token}{place}\n\
         To be told when you are needed, add these to the fleet file:\n\n    notify:\n      channels:\n        \
         telegram: {{telegram: {{chat: '{chat}'{}}}}}\n",
        agent.name,
        agent.file,
        match variable {
            TOKEN_VARIABLE => String::new(),
            variable => format!(", bot_token_env: {variable}"),
        }
    ))?;
    Ok(output::print_line("Next: heeler config validate && heeler reload && heeler doctor chat")?)
}
