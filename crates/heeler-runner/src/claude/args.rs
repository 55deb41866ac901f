//! What an agent's config means as a command line of Claude Code.
//!
//! Nothing that may hold a secret is an argument: the prompt goes through standard input, system
//! prompt, settings and MCP servers through files in memory. Start at [`Setup`].

#[cfg(test)]
mod tests;

use std::iter::once;

use camino::Utf8Path;
use heeler_model::run::{ClaudeBrief, Limits, SessionStart};
use serde_json::{Value as Json, json};

use super::allowed::{Allowed, patterns};
use crate::process::{Arg, Launch};

/// How long an SDK keeps Claude's input open for a tool of ours that takes its time.
const STREAM_CLOSE_TIMEOUT_MS: &str = "120000";

/// Set, this variable turns off every hook, ours too, wherever it is set: so it is never set.
const NO_HOOKS: &str = "CLAUDE_CODE_SIMPLE";

/// What Claude reads its settings and servers from, as rules that forbid to write it.
const SETTINGS_FILES: [&str; 2] = ["Edit(//**/.claude/**)", "Edit(//**/.mcp.json)"];

/// Everything that is known before Claude is started.
#[derive(Clone)]
pub(crate) struct Setup {
    /// What it is given.
    pub brief: ClaudeBrief,
    /// When it is ended.
    pub limits: Limits,
    /// What `--mcp-config` takes: configured and injected servers.
    pub mcp: Json,
    /// The names of the injected servers.
    pub injected: Vec<String>,
    /// Whether a tool of an injected server may take long.
    pub long_running: bool,
    /// Whether we are root, as whom Claude does without permissions only in what it takes for a
    /// sandbox.
    pub root: bool,
}

impl Setup {
    /// Returns how to start Claude with the control protocol.
    pub(super) fn sdk(&self, allowed: Option<&Allowed>, session: &SessionStart) -> Launch {
        let mut args = texts(&["-p", "--input-format", "stream-json"]);
        args.extend(self.common(allowed, session));
        args.extend(texts(&["--permission-prompt-tool", "stdio"]));
        args.extend(self.mcp_config(&self.mcp));
        let mut env = self.env();
        if allowed.is_some() {
            env.push((NO_HOOKS.to_owned(), "0".to_owned()));
        }
        Launch { program: self.brief.program.clone(), args, env }
    }

    /// Returns how to start Claude for one prompt. A list of allowed tools is one that
    /// [`Allowed::by_name_only`] took.
    pub(super) fn cli(&self, allowed: Option<&Allowed>, session: &SessionStart) -> Launch {
        let mut args = texts(&["-p"]);
        args.extend(self.common(allowed, session));
        match allowed {
            None => args.extend(self.mcp_config(&self.mcp)),
            // Servers that are not on the list are not there at all, wherever they come from.
            Some(allowed) => {
                args.extend(self.mcp_config(&listed_servers(&self.mcp, allowed)));
                args.extend(texts(&["--strict-mcp-config"]));
            }
        }
        Launch { program: self.brief.program.clone(), args, env: self.env() }
    }

    fn common(&self, allowed: Option<&Allowed>, session: &SessionStart) -> Vec<Arg> {
        let brief = &self.brief;
        let mut args = texts(&["--output-format", "stream-json", "--verbose"]);
        args.extend(texts(&["--include-partial-messages"]));
        args.extend(session_args(session));
        args.extend(of("permission_mode", "--permission-mode", &brief.permission_mode));
        let sources = brief.setting_sources.join(",");
        args.extend(of("setting_sources", "--setting-sources", &sources));
        args.extend(self.tool_args(allowed));
        if let Some(allowed) = allowed {
            args.extend([text("--settings"), file(&self.settings(allowed))]);
        }
        if let Some(prompt) = &brief.system_prompt {
            args.extend([text("--system-prompt-file"), Arg::File(prompt.clone().into_bytes())]);
        }
        if let Some(model) = &brief.model {
            args.extend(of("model", "--model", model));
        }
        for plugin in &brief.plugins {
            args.extend(of("plugins", "--plugin-dir", plugin.as_str()));
        }
        args.extend(limit_args(&self.limits));
        args
    }

    /// Says which tools there are, which are not asked about, and which never run.
    fn tool_args(&self, allowed: Option<&Allowed>) -> Vec<Arg> {
        let brief = &self.brief;
        let mut args = Vec::new();
        let listed = allowed.map(Allowed::built_in);
        let there = match (&brief.tools, listed) {
            (None, None) => None,
            (Some(tools), None) => Some(tools.join(",")),
            (None, Some(listed)) => Some(listed.join(",")),
            (Some(tools), Some(listed)) => {
                let both = |name: &&str| tools.iter().any(|tool| super::allowed::same(tool, name));
                Some(listed.into_iter().filter(both).collect::<Vec<_>>().join(","))
            }
        };
        if let Some(there) = there {
            args.extend(of("tools", "--tools", &there));
        }
        // Nobody has to be asked about what we give the agent ourselves.
        let unasked = match allowed {
            Some(allowed) => allowed.entries().join(","),
            None => patterns(&self.injected).collect::<Vec<_>>().join(","),
        };
        if !unasked.is_empty() {
            args.extend(of("allowed_tools", "--allowedTools", &unasked));
        }
        if !brief.denied_tools.is_empty() {
            args.extend(of("denied_tools", "--disallowedTools", &brief.denied_tools.join(",")));
        }
        args
    }

    /// Returns settings that win over the user's and the project's, which could open the list.
    fn settings(&self, allowed: &Allowed) -> Json {
        let mut settings = json!({ "env": { NO_HOOKS: "0" } });
        if allowed.permits_any_command() {
            return settings;
        }
        // Commands that stand in a skill run without any hook being asked.
        settings["disableSkillShellExecution"] = true.into();
        let mut deny: Vec<String> = self.brief.protected.iter().flat_map(|it| rules(it)).collect();
        // Settings take effect while Claude runs, and hooks in them run commands. In other modes
        // Claude asks before it writes them.
        if self.brief.permission_mode == "bypassPermissions" {
            deny.extend(SETTINGS_FILES.map(str::to_owned));
        }
        if !deny.is_empty() {
            settings["permissions"] = json!({ "deny": deny });
        }
        settings
    }

    fn mcp_config(&self, mcp: &Json) -> Vec<Arg> {
        let any = mcp["mcpServers"].as_object().is_some_and(|servers| !servers.is_empty());
        if any { vec![text("--mcp-config"), file(mcp)] } else { Vec::new() }
    }

    fn env(&self) -> Vec<(String, String)> {
        let mut env = vec![("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "1")];
        if self.long_running {
            env.push(("CLAUDE_CODE_STREAM_CLOSE_TIMEOUT", STREAM_CLOSE_TIMEOUT_MS));
        }
        if self.root && self.brief.permission_mode == "bypassPermissions" {
            env.push(("IS_SANDBOX", "1"));
        }
        env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// Returns rules that forbid to write a file, or anything in a folder. What might mean something in a
/// rule stands for anything there.
fn rules(path: &Utf8Path) -> [String; 2] {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "/._-".contains(c) { c } else { '*' };
    let path: String = path.as_str().chars().map(plain).collect();
    [format!("Edit(/{path})"), format!("Edit(/{path}/**)")]
}

/// Says which conversation it is.
pub(crate) fn session_args(session: &SessionStart) -> Vec<Arg> {
    match session {
        SessionStart::Fresh { id } => texts(&["--session-id", id.as_str()]),
        // What it goes on from is in the file of the new one by then.
        SessionStart::Resume { id } | SessionStart::Continue { id, .. } => {
            texts(&["--resume", id.as_str()])
        }
        SessionStart::Fork { source, id, at } => {
            let mut args = texts(&["--resume", source.as_str(), "--fork-session"]);
            args.extend(texts(&["--session-id", id.as_str()]));
            if let Some(at) = at {
                args.extend(texts(&["--resume-session-at", &at.to_string()]));
            }
            args
        }
    }
}

/// Says when it ends by itself.
pub(crate) fn limit_args(limits: &Limits) -> Vec<Arg> {
    let mut args = Vec::new();
    if let Some(turns) = limits.max_turns {
        args.extend(texts(&["--max-turns", &turns.to_string()]));
    }
    if let Some(budget) = limits.budget_usd {
        args.extend(texts(&["--max-budget-usd", &budget.to_string()]));
    }
    args
}

fn listed_servers(mcp: &Json, allowed: &Allowed) -> Json {
    let servers = mcp["mcpServers"].as_object().into_iter().flatten();
    let listed = servers.filter(|(name, _)| allowed.has_server(name));
    let listed = listed.map(|(name, server)| (name.clone(), server.clone())).collect();
    Json::Object(once(("mcpServers".to_owned(), Json::Object(listed))).collect())
}

fn text(text: &str) -> Arg {
    Arg::Text(text.to_owned())
}

/// Returns an option with its value, which is from this key of the config.
fn of(key: &'static str, option: &str, value: &str) -> [Arg; 2] {
    [text(option), Arg::Of(key, value.to_owned())]
}

pub(crate) fn texts(words: &[&str]) -> Vec<Arg> {
    words.iter().copied().map(text).collect()
}

fn file(content: &Json) -> Arg {
    Arg::File(content.to_string().into_bytes())
}
