//! Translates an agent's config into a command line of Claude Code.
//!
//! Anything that may hold a secret is kept out of the arguments: the prompt goes through standard
//! input; system prompt, settings and MCP servers go through in-memory files. Start at
//! [`ClaudeLaunchOptions`].

#[cfg(test)]
mod tests;

use std::iter::once;

use camino::Utf8Path;
use heeler_model::run::{ClaudeLaunchSpec, RunLimits, SessionStart};
use serde_json::{Value as Json, json};

use super::call_policy::{CallPolicy, NESTED_INSTRUCTION_NAMES};
use super::tool_allowlist::{ToolAllowlist, server_patterns};
use crate::process::{LaunchArg, LaunchSpec};

/// Time that Claude's input stays open for a long-running injected tool.
const STREAM_CLOSE_TIMEOUT_MS: &str = "120000";

/// Variable that turns off every hook, including Heeler's own. Therefore it is never set.
const HOOKS_DISABLED_VARIABLE: &str = "CLAUDE_CODE_SIMPLE";

/// Rules that forbid edits of the files from which Claude reads its settings and servers.
const SETTINGS_EDIT_RULES: [&str; 2] = ["Edit(//**/.claude/**)", "Edit(//**/.mcp.json)"];

/// Rules that forbid edits of a repository's own files: its hooks and its config run commands, and
/// the file `.git` of a worktree names the repository. Git itself changes them by commands.
const GIT_EDIT_RULES: [&str; 2] = ["Edit(//**/.git)", "Edit(//**/.git/**)"];

/// Launch inputs known before Claude is started.
#[derive(Clone)]
pub(crate) struct ClaudeLaunchOptions {
    pub brief: ClaudeLaunchSpec,
    pub limits: RunLimits,
    /// Value of `--mcp-config`: configured and injected servers.
    pub mcp: Json,
    /// Names of the injected servers.
    pub injected: Vec<String>,
    /// A tool of an injected server may take long.
    pub long_running: bool,
}

impl ClaudeLaunchOptions {
    /// Returns the launch spec for Claude with the control protocol.
    pub(super) fn sdk_launch(&self, policy: &CallPolicy, session: &SessionStart) -> LaunchSpec {
        let mut args = text_args(&["-p", "--input-format", "stream-json"]);
        args.extend(self.common_args(policy, session));
        // Claude then sends its questions for permission as control requests.
        args.extend(text_args(&["--permission-prompt-tool", "stdio"]));
        args.extend(self.mcp_config(&self.mcp));
        let mut env = self.env();
        // The agent's environment must not switch off the hook that enforces the policy.
        if policy.is_restrictive() {
            env.push((HOOKS_DISABLED_VARIABLE.to_owned(), "0".to_owned()));
        }
        LaunchSpec { program: self.brief.program.clone(), args, env }
    }

    /// Returns the launch spec for one prompt. A tool allowlist must have passed
    /// [`ToolAllowlist::ensure_no_input_rules`].
    pub(super) fn cli_launch(&self, policy: &CallPolicy, session: &SessionStart) -> LaunchSpec {
        let mut args = text_args(&["-p"]);
        args.extend(self.common_args(policy, session));
        match policy.allowed() {
            None => args.extend(self.mcp_config(&self.mcp)),
            // Servers that are not on the list are removed entirely, from every config source.
            Some(allowed) => {
                args.extend(self.mcp_config(&allowed_servers(&self.mcp, allowed)));
                args.extend(text_args(&["--strict-mcp-config"]));
            }
        }
        LaunchSpec { program: self.brief.program.clone(), args, env: self.env() }
    }

    fn common_args(&self, policy: &CallPolicy, session: &SessionStart) -> Vec<LaunchArg> {
        let brief = &self.brief;
        let mut args = text_args(&["--output-format", "stream-json", "--verbose"]);
        args.extend(text_args(&["--include-partial-messages"]));
        args.extend(session_args(session));
        args.extend(config_arg("permission_mode", "--permission-mode", &brief.permission_mode));
        let sources = brief.setting_sources.join(",");
        // The option is passed even if it is empty, which means no source at all.
        args.extend(config_arg("setting_sources", "--setting-sources", &sources));
        args.extend(self.tool_args(policy.allowed()));
        if policy.is_restrictive() || !brief.granted.is_empty() {
            args.extend([text_arg("--settings"), file_arg(&self.settings(policy))]);
        }
        if let Some(prompt) = &brief.system_prompt {
            args.extend([
                text_arg("--system-prompt-file"),
                LaunchArg::File(prompt.clone().into_bytes()),
            ]);
        }
        if let Some(model) = &brief.model {
            args.extend(config_arg("model", "--model", model));
        }
        if let Some(effort) = brief.effort {
            args.extend(config_arg("effort", "--effort", effort.as_str()));
        }
        for folder in &brief.readable {
            args.extend(config_arg("skills", "--add-dir", folder.as_str()));
        }
        for plugin in &brief.plugins {
            args.extend(config_arg("plugins", "--plugin-dir", plugin.as_str()));
        }
        args.extend(limit_args(&self.limits));
        args
    }

    /// Returns the options for available, pre-approved and forbidden tools.
    fn tool_args(&self, allowed: Option<&ToolAllowlist>) -> Vec<LaunchArg> {
        let brief = &self.brief;
        let mut args = Vec::new();
        let listed = allowed.map(ToolAllowlist::built_in_tools);
        let there = match (&brief.tools, listed) {
            (None, None) => None,
            (Some(tools), None) => Some(tools.join(",")),
            (None, Some(listed)) => Some(listed.join(",")),
            (Some(tools), Some(listed)) => {
                // A config may use the old name of a tool.
                let both = |name: &&str| {
                    tools.iter().any(|tool| super::tool_allowlist::is_same_tool(tool, name))
                };
                Some(listed.into_iter().filter(both).collect::<Vec<_>>().join(","))
            }
        };
        if let Some(there) = there {
            args.extend(config_arg("tools", "--tools", &there));
        }
        // Injected tools are part of Heeler, so they need no permission.
        let unasked = match allowed {
            Some(allowed) => allowed.entries().join(","),
            None => server_patterns(&self.injected).collect::<Vec<_>>().join(","),
        };
        if !unasked.is_empty() {
            args.extend(config_arg("allowed_tools", "--allowedTools", &unasked));
        }
        if !brief.denied_tools.is_empty() {
            args.extend(config_arg(
                "denied_tools",
                "--disallowedTools",
                &brief.denied_tools.join(","),
            ));
        }
        args
    }

    /// Returns settings that take precedence over those of the user and the project, which could
    /// widen the policy.
    fn settings(&self, policy: &CallPolicy) -> Json {
        // Settings of the user can set variables too; those given here take precedence.
        let mut settings = json!({ "env": { HOOKS_DISABLED_VARIABLE: "0" } });
        let mut deny = self.protection_rules();
        let restricts_commands =
            self.brief.review || policy.allowed().is_some_and(|it| !it.permits_any_command());
        // An agent that may run any command gets around the rules below.
        if restricts_commands {
            // Commands embedded in a skill run without any hook.
            settings["disableSkillShellExecution"] = true.into();
        }
        // Settings take effect while Claude runs, and hooks in them run commands. In other
        // permission modes Claude asks before it writes them.
        if restricts_commands && self.brief.permission_mode == "bypassPermissions" {
            deny.extend(SETTINGS_EDIT_RULES.map(str::to_owned));
        }
        if !deny.is_empty() {
            settings["permissions"] = json!({ "deny": deny });
        }
        // In a list of settings each rule is an entry. In an option it could contain another rule.
        if !self.brief.granted.is_empty() {
            settings["permissions"]["allow"] = json!(self.brief.granted);
        }
        settings
    }

    /// Returns the deny rules for protected files. Claude applies them in every mode, to every tool
    /// that reads or writes files, and also to links.
    fn protection_rules(&self) -> Vec<String> {
        let brief = &self.brief;
        let mut rules: Vec<String> =
            brief.protected.iter().flat_map(|it| deny_rules("Edit", it)).collect();
        for folder in &brief.instructed {
            let below = NESTED_INSTRUCTION_NAMES.map(|name| rule_path(folder) + "/**/" + name);
            rules.extend(
                below.iter().flat_map(|it| [format!("Edit({it})"), format!("Edit({it}/**)")]),
            );
        }
        rules.extend(brief.unreadable.iter().flat_map(|it| deny_rules("Read", it)));
        if !rules.is_empty() {
            rules.extend(GIT_EDIT_RULES.map(str::to_owned));
        }
        rules
    }

    fn mcp_config(&self, mcp: &Json) -> Vec<LaunchArg> {
        let any = mcp["mcpServers"].as_object().is_some_and(|servers| !servers.is_empty());
        if any { vec![text_arg("--mcp-config"), file_arg(mcp)] } else { Vec::new() }
    }

    fn env(&self) -> Vec<(String, String)> {
        // Without these events the end of a run can only be guessed by counting results.
        let mut env = vec![("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "1")];
        // This follows herdctl's documentation; Claude 2.1.325 does not read the variable.
        if self.long_running {
            env.push(("CLAUDE_CODE_STREAM_CLOSE_TIMEOUT", STREAM_CLOSE_TIMEOUT_MS));
        }
        env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// Returns rules that forbid `Edit` or `Read` of a file, or of anything in a directory. Characters
/// with a special meaning in rules are replaced by wildcards.
fn deny_rules(action: &str, path: &Utf8Path) -> [String; 2] {
    let path = rule_path(path);
    [format!("{action}({path})"), format!("{action}({path}/**)")]
}

fn rule_path(path: &Utf8Path) -> String {
    // A wildcard denies more than necessary, never less.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "/._-".contains(c) { c } else { '*' };
    // An absolute path in a rule begins with two slashes, of which the path has one.
    ['/'].into_iter().chain(path.as_str().chars().map(plain)).collect()
}

/// Returns the options that select the conversation.
pub(crate) fn session_args(session: &SessionStart) -> Vec<LaunchArg> {
    match session {
        SessionStart::Fresh { id } => text_args(&["--session-id", id.as_str()]),
        // The carried-over content is in the new session's file by then.
        SessionStart::Resume { id } | SessionStart::Continue { id, .. } => {
            text_args(&["--resume", id.as_str()])
        }
        SessionStart::Fork { source, id, at } => {
            let mut args = text_args(&["--resume", source.as_str(), "--fork-session"]);
            args.extend(text_args(&["--session-id", id.as_str()]));
            if let Some(at) = at {
                args.extend(text_args(&["--resume-session-at", &at.to_string()]));
            }
            args
        }
    }
}

/// Returns the options for Claude's own limits.
pub(crate) fn limit_args(limits: &RunLimits) -> Vec<LaunchArg> {
    let mut args = Vec::new();
    if let Some(turns) = limits.max_turns {
        args.extend(text_args(&["--max-turns", &turns.to_string()]));
    }
    if let Some(budget) = limits.budget_usd {
        args.extend(text_args(&["--max-budget-usd", &budget.to_string()]));
    }
    args
}

fn allowed_servers(mcp: &Json, allowed: &ToolAllowlist) -> Json {
    let servers = mcp["mcpServers"].as_object().into_iter().flatten();
    let listed = servers.filter(|(name, _)| allowed.has_server(name));
    let listed = listed.map(|(name, server)| (name.clone(), server.clone())).collect();
    Json::Object(once(("mcpServers".to_owned(), Json::Object(listed))).collect())
}

fn text_arg(text: &str) -> LaunchArg {
    LaunchArg::Text(text.to_owned())
}

/// Returns an option and its value, which comes from this config key.
fn config_arg(key: &'static str, option: &str, value: &str) -> [LaunchArg; 2] {
    [text_arg(option), LaunchArg::ConfigText(key, value.to_owned())]
}

pub(crate) fn text_args(words: &[&str]) -> Vec<LaunchArg> {
    words.iter().copied().map(text_arg).collect()
}

fn file_arg(content: &Json) -> LaunchArg {
    LaunchArg::File(content.to_string().into_bytes())
}
