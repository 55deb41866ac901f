//! Files that `heeler init` writes, and insertion of an agent into an existing fleet file with
//! comments.
//!
//! Pure text transformations. A test loads every template and requires that it has no fault or
//! warning.

use serde_json::{Value as Json, json};
use thiserror::Error;

use crate::LocalName;
use crate::egress::EgressPreset;
use crate::yaml_edit::{YamlEditError, YamlPathStep, read_yaml_values, set_yaml_value};

/// Path of the first agent's file, relative to the fleet file.
pub const FIRST_AGENT_PATH: &str = "agents/greeter.yaml";

/// Sandbox of the agents of a new fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateSandbox<'t> {
    On,
    /// The person wants none.
    Off,
    /// This machine cannot make one, for this reason.
    Unavailable(&'t str),
}

impl TemplateSandbox<'_> {
    /// Returns the lines of `defaults` with the key `sandbox` and a comment that explains it.
    fn lines(self) -> String {
        let comment = |text: &str| -> String {
            let lines = text.lines().map(|line| line.replace(char::is_control, " "));
            lines.map(|line| format!("  # {line}\n")).collect()
        };
        match self {
            TemplateSandbox::On => {
                comment("Agents write only their working directory and reach only listed hosts.")
                    + "  sandbox: true\n"
            }
            TemplateSandbox::Off => {
                comment("Agents may do what you may do. `true` confines them to a sandbox.")
                    + "  sandbox: off\n"
            }
            TemplateSandbox::Unavailable(reason) => {
                comment("Agents may do what you may do, because there can be no sandbox here yet:")
                    + &comment(reason)
                    + &comment("Write `true` as soon as `heeler doctor sandbox` succeeds.")
                    + "  sandbox: off\n"
            }
        }
    }
}

/// Returns a new fleet file that references the first agent. `schema` is the location of the JSON
/// Schema for editors: a URL, or a path relative to the file.
pub fn fleet_file(name: &LocalName, schema: &str, sandbox: TemplateSandbox<'_>) -> String {
    let sandbox = sandbox.lines();
    format!(
        r#"# yaml-language-server: $schema={schema}

fleet:
  name: {name}

# Settings of every agent that does not set them itself.
defaults:
  timeout: 30m
{sandbox}
agents:
  - path: {FIRST_AGENT_PATH}
"#
    )
}

/// Returns the first agent's file. The agent is scripted, so that it works without a model, key or
/// network.
pub fn first_agent_file(schema: &str) -> String {
    format!(
        r#"# yaml-language-server: $schema={schema}

name: greeter
description: Shows that the fleet works. It follows a script and needs no model.
runtime: scripted
script:
  - say: Hello! I am a scripted agent of this fleet.
  - say: Change my script in {FIRST_AGENT_PATH}, or add an agent with `heeler init agent NAME`.

schedules:
  hello:
    interval: 10m
    prompt: Say hello.
"#
    )
}

/// Returns a template of an additional agent for Claude Code. The file belongs in a directory
/// beside the fleet file, and the agent runs in the fleet file's directory.
pub fn agent_file(name: &LocalName, schema: &str) -> String {
    agent_file_with(name, schema, &AgentTemplateOptions::default())
}

/// Values of a new agent's file that differ from the template.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentTemplateOptions<'t> {
    pub description: Option<&'t str>,
    pub permission_mode: Option<&'t str>,
    pub runtime: Option<&'t str>,
    /// Name of a known agent, or a path.
    pub program: Option<&'t str>,
    /// Name of an environment variable that the agent receives.
    pub secret: Option<&'t str>,
    pub sandbox: Option<AgentTemplateSandbox<'t>>,
}

/// Sandbox of an agent whose program writes directories of the home directory.
#[derive(Debug, Clone, Copy)]
pub struct AgentTemplateSandbox<'t> {
    /// Name of the program, for people.
    pub title: &'t str,
    /// Directories below the home directory that the program writes.
    pub state_folders: &'t [&'t str],
    /// Hosts that the program needs, if they are a group.
    pub preset: Option<EgressPreset>,
}

impl AgentTemplateSandbox<'_> {
    fn lines(self) -> String {
        let AgentTemplateSandbox { title, state_folders, preset } = self;
        let folders: Vec<String> = state_folders.iter().map(|it| format!("~/{it}")).collect();
        let network = preset.map(|preset| format!("  network: {{presets: [{preset}]}}\n"));
        format!(
            "\n# {title} has its login, settings and sessions in the directory below, and can change them.\n\
             sandbox:\n  write: [{}]\n{}",
            folders.join(", "),
            network.unwrap_or_default()
        )
    }
}

/// Returns a template of an additional agent, with these values.
pub fn agent_file_with(
    name: &LocalName,
    schema: &str,
    options: &AgentTemplateOptions<'_>,
) -> String {
    // A JSON string is a YAML string too, whatever it contains.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let description =
        options.description.map_or_else(|| "The purpose of this agent.".to_owned(), quoted);
    let keys = [
        ("runtime", options.runtime),
        ("program", options.program),
        ("permission_mode", options.permission_mode),
    ];
    let given = keys.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}\n", value?)));
    let mut given: String = given.collect();
    given.extend(options.secret.map(|name| format!("secrets: [{name}]\n")));
    given.extend(options.sandbox.map(AgentTemplateSandbox::lines));
    // Only Claude reports its cost.
    let budget = match options.runtime {
        None | Some("sdk" | "cli") => "\n# budget:\n#   job: 2.00\n",
        Some(_) => "",
    };
    format!(
        r#"# yaml-language-server: $schema={schema}

name: {name}
description: {description}
{given}
# Directory in which the agent runs, relative to this file.
working_directory: ..

system_prompt: |
  You are a careful engineer. Say what you did and what is left.

default_prompt: Look around and say what should be done next.

# Schedules that start the agent.
# schedules:
#   nightly:
#     cron: "0 3 * * *"
#     prompt: Check the code and fix one thing.
{budget}"#
    )
}

/// The form of the fleet file does not allow a safe change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot add the agent automatically: {reason}; add `- path: {path}` to `agents` by hand")]
pub struct AddAgentError {
    /// Path of the agent file.
    pub path: String,
    pub reason: &'static str,
}

/// The form of the fleet file does not allow a safe removal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot remove the agent automatically: remove `- path: {path}` from `agents` by hand")]
pub struct RemoveAgentError {
    /// Path of the agent file.
    pub path: String,
}

/// Adds the path of an agent file to the text of a fleet file and keeps everything else unchanged,
/// including comments.
pub fn add_agent(text: &str, path: &str) -> Result<String, AddAgentError> {
    let refuse = |reason| AddAgentError { path: path.to_owned(), reason };
    let values = read_yaml_values(text).ok_or_else(|| refuse("the file has faults"))?;
    let count = values["agents"].as_array().map_or(0, Vec::len);
    let place = [agents_key(), YamlPathStep::Index(count)];
    set_yaml_value(text, &place, &json!({ "path": path })).map_err(|error| {
        refuse(match error {
            YamlEditError::NoContainer => "its `agents` are not a list of this form",
            _ => "its layout is not supported",
        })
    })
}

/// Removes the path of an agent file from the text of a fleet file and keeps everything else
/// unchanged.
pub fn remove_agent(text: &str, path: &str) -> Result<String, RemoveAgentError> {
    let refuse = || RemoveAgentError { path: path.to_owned() };
    let values = read_yaml_values(text).ok_or_else(refuse)?;
    let agents = values["agents"].as_array().ok_or_else(refuse)?;
    let number = agents.iter().position(|agent| agent["path"] == path).ok_or_else(refuse)?;
    let removed = match agents.len() {
        // A fleet without agents says so.
        1 => set_yaml_value(text, &[agents_key()], &json!([])),
        _ => set_yaml_value(text, &[agents_key(), YamlPathStep::Index(number)], &Json::Null),
    };
    removed.map_err(|_| refuse())
}

fn agents_key() -> YamlPathStep {
    YamlPathStep::Key("agents".to_owned())
}
