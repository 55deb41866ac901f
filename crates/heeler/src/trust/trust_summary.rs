//! Summary of the commands of a fleet, for a person who decides if the fleet is trusted. Start at
//! [`summary_lines`].

use camino::Utf8Path;
use heeler_config::{
    AgentConfig, AgentHooks, AgentName, HookAction, HookList, HookPermissions, LoadedConfig,
    McpTransport, RuntimeConfig,
};
use heeler_model::redact::SecretRedactor;
use serde_json::Value as Json;

use super::executable_content::{ExecutableContent, phase_commands};
use super::visible_text::visible;
use crate::text_file::parent_dir;

const NEW_PRIVILEGES: &str = "gain privileges (sudo), and pass for you";

const UNSAFE_CONTAINER: &str = "may be left by the agent (allow_unsafe)";

/// Width of the first column.
const LABEL_WIDTH: usize = 14;

/// Returns the lines that tell what a fleet would run. Commands are complete, with control
/// characters made visible and secrets replaced.
pub(crate) fn summary_lines(
    config: &Utf8Path,
    loaded: &LoadedConfig,
    content: &ExecutableContent,
    secrets: &SecretRedactor,
) -> Vec<String> {
    let mut summary = SummaryText { lines: Vec::new(), secrets };
    // Values of variables are shown as written, so that a secret appears by name only.
    let shown = loaded.show();
    for (agent, shown) in loaded.agents.iter().zip(shown["agents"].as_array().into_iter().flatten())
    {
        summary.add_agent(parent_dir(config), agent, shown);
    }
    for loaded in &loaded.workflows {
        let workflow = &loaded.workflow;
        let commands: Vec<&str> = workflow.phases.iter().flat_map(phase_commands).collect();
        let phases = workflow.phases.len();
        summary.add(0, "workflow", &format!("{}, {phases} phases", workflow.name));
        commands.iter().for_each(|command| summary.add(1, "command", command));
    }
    for cron in &loaded.crons {
        summary.add(0, "cron", &format!("{} starts the workflow {}", cron.name, cron.workflow));
    }
    if !content.dotenv_names.is_empty() {
        summary.add(0, ".env sets", &content.dotenv_names.join(", "));
    }
    for file in &content.local_files {
        summary.add(0, "uses", file);
    }
    summary.lines
}

struct SummaryText<'a> {
    lines: Vec<String>,
    secrets: &'a SecretRedactor,
}

impl SummaryText<'_> {
    fn add(&mut self, depth: usize, label: &str, text: &str) {
        let (text, indent) = (visible(&self.secrets.redact_text(text)), depth * 2);
        let width = LABEL_WIDTH - indent;
        self.lines.push(format!("  {:indent$}{label:width$} {text}", ""));
    }

    fn add_agent(&mut self, folder: &Utf8Path, agent: &AgentConfig, shown: &Json) {
        self.add(0, "agent", agent.name.as_str());
        self.add_program(agent);
        if !agent.working_directory.starts_with(folder) {
            let outside = format!("{} (outside the fleet's folder)", agent.working_directory);
            self.add(1, "works in", &outside);
        }
        if let Some(repo) = &agent.repo {
            self.add(1, "clones", repo.address());
        }
        if agent.allow_new_privileges {
            self.add(1, "privileges", NEW_PRIVILEGES);
        }
        if let Some(docker) = agent.container() {
            self.add(1, "container", &format!("image {}", docker.image_name()));
            for volume in &docker.volumes {
                self.add(1, "mounts", volume.as_str());
            }
            if docker.allow_unsafe {
                self.add(1, "container", UNSAFE_CONTAINER);
            }
        }
        if agent.edit_instructions {
            self.add(1, "may edit", "the instruction files of other agents");
        }
        if !agent.spawn.agents.is_empty() {
            let names: Vec<&str> = agent.spawn.agents.iter().map(AgentName::as_str).collect();
            self.add(1, "may start", &names.join(", "));
        }
        if let Some(sources) = &agent.setting_sources {
            let names: Vec<String> = sources.iter().map(ToString::to_string).collect();
            self.add(1, "settings of", &names.join(", "));
        }
        self.add_hooks(&agent.hooks, &shown["hooks"]);
        for (name, server) in &agent.mcp_servers {
            let what = match &server.transport {
                McpTransport::Stdio { command, args, is_on_host, .. } => {
                    let place = if *is_on_host { " (outside of a sandbox)" } else { "" };
                    format!("{name}: {command} {}{place}", args.join(" "))
                }
                McpTransport::Http { url, .. } | McpTransport::Sse { url, .. } => {
                    format!("{name}: {}", url.expose())
                }
            };
            self.add(1, "MCP server", &what);
            for key in ["env", "headers"] {
                self.add_values(&format!("{name} {key}"), &shown["mcp_servers"][name][key]);
            }
        }
        for plugin in &agent.plugins {
            self.add(1, "plugin", plugin.path.as_str());
        }
        self.add_values("environment", &shown["env"]);
        let secrets: Vec<&str> = agent.secrets.iter().map(|name| name.as_str()).collect();
        if !secrets.is_empty() {
            self.add(1, "secrets", &secrets.join(", "));
        }
        if !agent.schedules.is_empty() {
            let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
            self.add(1, "schedules", &names.join(", "));
        }
    }

    fn add_program(&mut self, agent: &AgentConfig) {
        match &agent.runtime {
            RuntimeConfig::Command(command) => self.add(1, "command", command),
            RuntimeConfig::Scripted(steps) => {
                self.add(1, "script", "of a built-in agent");
                let acts = |step: &&Json| step.get("say").is_none() && step.get("think").is_none();
                for step in steps.iter().filter(acts) {
                    self.add(1, "step", &step.to_string());
                }
            }
            RuntimeConfig::Acp(program)
            | RuntimeConfig::Codex(program)
            | RuntimeConfig::Qwen(program) => {
                let words = [program.path.as_path().as_str()].into_iter();
                let words = words.chain(program.args.iter().map(String::as_str));
                self.add(1, "program", &words.collect::<Vec<_>>().join(" "));
                self.add(1, "permissions", agent.permission_mode.as_str());
            }
            RuntimeConfig::Sdk | RuntimeConfig::Cli => {
                let program = agent.claude_path.as_ref().map(|program| program.as_path().as_str());
                self.add(1, "program", program.unwrap_or("claude"));
                let tools = match (&agent.allowed_tools, &agent.tools) {
                    (Some(allowed), _) => format!("tools: {}", allowed.join(", ")),
                    (None, Some(tools)) => format!("tools: {}", tools.join(", ")),
                    (None, None) => "all tools".to_owned(),
                };
                self.add(1, "permissions", &format!("{}, {tools}", agent.permission_mode));
            }
        }
    }

    /// Adds each entry of a map with its value.
    fn add_values(&mut self, label: &str, map: &Json) {
        for (name, value) in map.as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.add(1, label, &format!("{name}={value}"));
        }
    }

    fn add_hooks(&mut self, hooks: &AgentHooks, shown: &Json) {
        for list in HookList::ALL {
            for (index, hook) in hooks.list(*list).iter().enumerate() {
                let what = match &hook.action {
                    HookAction::Shell { command, .. } => command.clone(),
                    HookAction::Webhook { url, method, .. } => format!("{method} {}", url.expose()),
                    HookAction::Discord { channel_id, .. } => format!("Discord {channel_id}"),
                    HookAction::Slack { channel_id, .. } => format!("Slack {channel_id}"),
                };
                self.add(1, "hook", &format!("{list}: {what}"));
                self.add_values("hook headers", &shown[list.as_str()][index]["headers"]);
                let HookPermissions { trigger, cancel, message } = &hook.permissions;
                let starts = trigger.iter().map(|agent| format!("start {agent}"));
                let cancels = cancel.then(|| "cancel jobs".to_owned());
                let sends = message.then(|| "send messages to agents".to_owned());
                let may: Vec<String> = starts.chain(cancels).chain(sends).collect();
                if !may.is_empty() {
                    self.add(1, "hook may", &may.join(", "));
                }
                if hook.allow_new_privileges {
                    self.add(1, "hook may", NEW_PRIVILEGES);
                }
            }
        }
    }
}

/// Returns the lines that are only in the old or only in the new content, marked by `-` and `+`.
pub(crate) fn difference_lines(before: &[String], after: &[String]) -> Vec<String> {
    let removed =
        before.iter().filter(|line| !after.contains(line)).map(|line| format!("  - {line}"));
    let added =
        after.iter().filter(|line| !before.contains(line)).map(|line| format!("  + {line}"));
    let lines: Vec<String> = removed.chain(added).collect();
    match lines.is_empty() {
        false => lines,
        // Only secrets, the order or the number of equal lines can differ then.
        true => vec!["  ~ a value that is not shown, or the order of values".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_came_and_what_went() {
        let (one, two) = (["a".to_owned(), "b".to_owned()], ["a".to_owned(), "c".to_owned()]);
        assert_eq!(difference_lines(&one, &two), ["  - b", "  + c"]);
        assert_eq!(difference_lines(&one, &one).len(), 1, "something is always told");
    }
}
