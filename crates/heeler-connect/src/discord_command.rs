//! Commands of a Discord bot: their registration, and their use as events.
//!
//! Start at [`DiscordCommands`].

use heeler_config::SkillConfig;
use serde_json::{Map, Value as Json, json};

use crate::bot_command::{BOT_COMMANDS, BotCommand};
use crate::chat_error::ChatApiError;
use crate::chat_event::{ChatContent, ChatEvent, ChatPlatform, ChatSender};
use crate::discord::DiscordBot;
use crate::discord_frame::{DiscordDirectory, is_address_part};
use crate::person_name::person_name;

/// Most choices of an option.
const CHOICES_MAX: usize = 25;

/// Longest description, and longest name of a choice, in characters.
const DESCRIPTION_CHARS_MAX: usize = 100;

/// Type of a command that is written with a slash.
const CHAT_INPUT: u8 = 1;

/// Type of an option that is a text.
const TEXT_OPTION: u8 = 3;

/// Commands that a bot offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscordCommands {
    /// Server in which they are offered; `None` for all.
    pub server: Option<String>,
    /// Names of the agents, if there are several.
    pub agents: Vec<String>,
    /// Skills: name and description.
    pub skills: Vec<(String, String)>,
}

impl DiscordCommands {
    /// Adds a skill, unless it is known.
    pub fn add_skill(&mut self, skill: &SkillConfig) {
        let (name, description) = (&skill.name, skill.description.clone().unwrap_or_default());
        if !self.skills.iter().any(|(known, _)| known == name) {
            self.skills.push((name.clone(), description));
        }
    }

    /// Returns the commands in the form of Discord.
    fn registration(&self) -> Json {
        let mut commands: Vec<Json> = BOT_COMMANDS
            .iter()
            .map(|(name, description)| {
                let id = BotCommand::takes_id(name)
                    .then(|| text_option("id", "ID of the question", true));
                self.command(name, description, id.into_iter().collect())
            })
            .collect();
        if !self.skills.is_empty() {
            let mut skill = text_option("name", "name of the skill", true);
            skill["choices"] = self.skills.iter().take(CHOICES_MAX).map(skill_choice).collect();
            let input = text_option("input", "what the skill works on", false);
            commands.push(self.command("skill", "do work with a skill", vec![skill, input]));
        }
        Json::Array(commands)
    }

    fn command(&self, name: &str, description: &str, mut options: Vec<Json>) -> Json {
        if self.agents.len() > 1 {
            let mut agent = text_option("agent", "name of the agent", false);
            let choice = |name: &String| json!({"name": shortened(name), "value": name});
            agent["choices"] = self.agents.iter().take(CHOICES_MAX).map(choice).collect();
            options.push(agent);
        }
        let description = shortened(description);
        json!({
            "type": CHAT_INPUT, "name": name, "description": description, "options": options,
        })
    }
}

fn text_option(name: &str, description: &str, is_required: bool) -> Json {
    json!({
        "type": TEXT_OPTION, "name": name, "description": description, "required": is_required,
    })
}

fn skill_choice((name, description): &(String, String)) -> Json {
    let shown = match description.is_empty() {
        true => name.clone(),
        false => format!("{name}: {description}"),
    };
    json!({"name": shortened(&shown), "value": name})
}

fn shortened(text: &str) -> String {
    text.chars().take(DESCRIPTION_CHARS_MAX).collect()
}

/// Returns the parts of registered commands that the fleet sets, in one form.
fn comparable(commands: &Json) -> Json {
    let field = |from: &Json, name: &str| match &from[name] {
        Json::Array(list) if list.is_empty() => Json::Null,
        value => value.clone(),
    };
    let choice =
        |choice: &Json| json!({"name": field(choice, "name"), "value": field(choice, "value")});
    let option = |option: &Json| {
        let choices: Vec<Json> =
            option["choices"].as_array().into_iter().flatten().map(choice).collect();
        json!({
            "type": field(option, "type"), "name": field(option, "name"),
            "description": field(option, "description"), "choices": choices,
            "required": option["required"] == true,
        })
    };
    let mut sorted = Map::new();
    for command in commands.as_array().into_iter().flatten() {
        let options: Vec<Json> =
            command["options"].as_array().into_iter().flatten().map(option).collect();
        let name = command["name"].as_str().unwrap_or_default().to_owned();
        let description = field(command, "description");
        sorted.insert(name, json!({"description": description, "options": options}));
    }
    Json::Object(sorted)
}

impl DiscordBot {
    /// Registers the commands, unless they are registered; returns true if they were not.
    pub fn register_commands(&self, commands: &DiscordCommands) -> Result<bool, ChatApiError> {
        let attempt = "register its commands";
        let application = self.application_id()?;
        let path = match &commands.server {
            Some(server) => format!("/applications/{application}/guilds/{server}/commands"),
            None => format!("/applications/{application}/commands"),
        };
        let (known, wanted) = (self.read(&path, attempt)?, commands.registration());
        // Discord limits registrations to 200 a day.
        if comparable(&known) == comparable(&wanted) {
            return Ok(false);
        }
        self.replace(&path, attempt, &wanted)?;
        Ok(true)
    }
}

impl DiscordDirectory {
    /// Returns the event of a command.
    pub fn command_event(&self, used: &Json) -> Option<ChatEvent> {
        // Type 2 is a command.
        if used["type"] != 2 || used["data"]["type"].as_u64().is_some_and(|it| it != 1) {
            return None;
        }
        let person = if used["user"].is_object() { &used["user"] } else { &used["member"]["user"] };
        let (id, sender) = (used["id"].as_str()?, person["id"].as_str()?);
        let token = used["token"].as_str()?;
        // Both become parts of an address.
        if !is_address_part(id) || !is_address_part(token) {
            return None;
        }
        let name = person["global_name"].as_str().or(person["username"].as_str());
        Some(ChatEvent {
            platform: ChatPlatform::Discord,
            account: self.account().to_owned(),
            event_id: format!("command:{id}"),
            place: self.place(used, sender)?,
            sender: ChatSender {
                id: sender.to_owned(),
                name: person_name(name.unwrap_or_default(), sender),
                is_bot: person["bot"] == true,
                is_outsider: false,
            },
            content: ChatContent::Command {
                text: command_text(&used["data"])?,
                callback: format!("{id}/{token}"),
            },
            earlier: Vec::new(),
        })
    }
}

/// Returns a command as a person would write it in a message.
fn command_text(data: &Json) -> Option<String> {
    let name = data["name"].as_str()?;
    let option = |wanted: &str| {
        let mut options = data["options"].as_array().into_iter().flatten();
        options.find(|option| option["name"] == wanted)?["value"].as_str().map(str::trim)
    };
    let text = match name {
        "skill" => format!("/{} {}", option("name")?, option("input").unwrap_or_default()),
        name => format!("/{name} {}", option("id").unwrap_or_default()),
    };
    let text = text.trim().to_owned();
    Some(match option("agent") {
        Some(agent) => format!("{agent}: {text}"),
        None => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> DiscordCommands {
        DiscordCommands {
            server: None,
            agents: vec!["coder".into(), "writer".into()],
            skills: vec![("review".into(), "Reviews a change".into())],
        }
    }

    #[test]
    fn registered_commands_are_recognized_with_the_fields_that_discord_adds() {
        let mut registered = commands().registration();
        assert_eq!(registered.as_array().unwrap().len(), BOT_COMMANDS.len() + 1);
        for command in registered.as_array_mut().unwrap() {
            (command["id"], command["version"]) = (json!("5"), json!("6"));
            for option in command["options"].as_array_mut().unwrap() {
                // Discord leaves out what is false.
                if option["required"] == false {
                    option.as_object_mut().unwrap().remove("required");
                }
            }
        }
        registered.as_array_mut().unwrap().reverse();
        assert_eq!(comparable(&registered), comparable(&commands().registration()));
        let other = DiscordCommands { skills: Vec::new(), ..commands() };
        assert_ne!(comparable(&registered), comparable(&other.registration()));
    }

    #[test]
    fn a_command_has_the_text_of_a_message() {
        let text = |data: Json| command_text(&data);
        assert_eq!(text(json!({"name": "status"})).as_deref(), Some("/status"));
        let approve = json!({"name": "approve", "options": [{"name": "id", "value": "ask-1"}]});
        assert_eq!(text(approve).as_deref(), Some("/approve ask-1"));
        let skill = json!({"name": "skill", "options": [
            {"name": "name", "value": "review"}, {"name": "input", "value": "src"},
            {"name": "agent", "value": "coder"}]});
        assert_eq!(text(skill).as_deref(), Some("coder: /review src"));
        assert_eq!(text(json!({"name": "skill"})), None);
    }

    #[test]
    fn a_command_of_a_person_has_a_place_and_a_sender() {
        let used = |token: &str| {
            json!({"id": "5", "type": 2, "token": token, "channel_id": "10", "guild_id": "1",
                   "member": {"user": {"id": "7", "username": "ann"}},
                   "data": {"id": "9", "type": 1, "name": "stop"}})
        };
        let directory = DiscordDirectory::new("900");
        let event = directory.command_event(&used("token-5")).unwrap();
        assert_eq!(event.place.channel(event.platform), "discord/10");
        assert_eq!((event.event_id.as_str(), event.sender.id.as_str()), ("command:5", "7"));
        assert_eq!(event.content.callback(), Some("5/token-5"));
        assert_eq!(directory.command_event(&used("a/../b")), None, "it would change the address");
    }
}
