//! The list of allowed tools as a true allowlist.
//!
//! Claude's own `--allowedTools` only suppresses questions: tools that are not on it still run in
//! many modes. [`ToolAllowlist`] decides for one call if it may run at all, and denies in doubt.

#[cfg(test)]
mod tests;

use heeler_config::RuntimeType;
use heeler_model::run::ClaudeLaunchSpec;
use serde_json::Value as Json;
use thiserror::Error;
use url::Url;

use super::shell_parser::{BLANKS, simple_commands};

/// Reason that a tool allowlist cannot be enforced. The run is refused instead of running
/// unrestricted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum AllowedToolsError {
    /// Entry that is not a pattern, or not an enforceable one.
    #[error("allowed_tools: {entry:?} {reason}")]
    Entry {
        /// Entry as written in the config.
        entry: String,
        /// Problem of the entry, and the remedy.
        reason: &'static str,
    },
    /// Entry about an MCP server that is not a pattern.
    #[error("denied_tools: {entry:?} {reason}")]
    DeniedEntry {
        /// Entry as written in the config.
        entry: String,
        /// Problem of the entry.
        reason: &'static str,
    },
}

/// Checks that the runtime of an agent can hold its allowlist; returns the reason if not. A run would
/// be refused for the same reason.
pub fn check_allowed_tools(entries: &[String], runtime: RuntimeType) -> Result<(), String> {
    let rules: Result<_, _> = entries.iter().map(|entry| ToolAllowRule::parse(entry)).collect();
    let list = rules.map(|rules| ToolAllowlist { rules, entries: entries.to_vec() });
    let checked = match runtime {
        RuntimeType::Cli => list.and_then(|list| list.ensure_no_input_rules()),
        _ => list.map(drop),
    };
    checked.map_err(|error| error.to_string())
}

/// The only tools that may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolAllowlist {
    rules: Vec<ToolAllowRule>,
    /// Entries as written in the config, for Claude and for people.
    entries: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ToolAllowRule {
    /// Name of the tool; `*` matches anything in the names of MCP tools.
    name: String,
    input: ToolInputPattern,
}

/// Restriction of a tool's input.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ToolInputPattern {
    Any,
    /// Every command of the shell line matches this pattern.
    Command(String),
    /// The URL's host is this domain; for `*.domain`, any subdomain of it.
    Domain(String),
    /// This field matches the pattern.
    Field(&'static str, String),
}

impl ToolAllowlist {
    /// Parses the allowlist of a brief, if there is one. Tools of injected servers are added to it.
    pub(super) fn from_brief(
        brief: &ClaudeLaunchSpec,
        injected: &[String],
    ) -> Result<Option<ToolAllowlist>, AllowedToolsError> {
        let Some(listed) = &brief.allowed_tools else { return Ok(None) };
        let entries: Vec<String> =
            listed.iter().cloned().chain(server_patterns(injected)).collect();
        let rules =
            entries.iter().map(|entry| ToolAllowRule::parse(entry)).collect::<Result<_, _>>()?;
        Ok(Some(ToolAllowlist { rules, entries }))
    }

    /// Returns true if a call may run.
    pub(super) fn permits(&self, tool: &str, input: &Json) -> bool {
        let tool = current_tool_name(tool);
        let mut rules = self.rules.iter().filter(|rule| matches_pattern(&rule.name, tool));
        rules.any(|rule| rule.input.matches_input(input)) || self.permits_shell_line(tool, input)
    }

    /// Returns true if any shell command may run.
    pub(super) fn permits_any_command(&self) -> bool {
        self.rules.iter().any(|rule| rule.name == "Bash" && rule.input == ToolInputPattern::Any)
    }

    /// Returns true if every command of a shell line is on the list, each possibly by another
    /// entry.
    fn permits_shell_line(&self, tool: &str, input: &Json) -> bool {
        let patterns = self.rules.iter().filter_map(|rule| match &rule.input {
            ToolInputPattern::Command(pattern) if rule.name == tool => Some(pattern.as_str()),
            _ => None,
        });
        let patterns: Vec<&str> = patterns.collect();
        let Some(commands) = input["command"].as_str().and_then(simple_commands) else {
            return false;
        };
        let listed = |command: &String| patterns.iter().any(|p| matches_command(p, command));
        !commands.is_empty() && commands.iter().all(listed)
    }

    /// Explains to the agent why a call was denied.
    pub(super) fn denial_reason(&self, tool: &str) -> String {
        let list = self.entries.join(", ");
        let by_command = |rule: &ToolAllowRule| {
            matches!(rule.input, ToolInputPattern::Command(_)) && rule.name == tool
        };
        let hint = if self.rules.iter().any(by_command) {
            " Every command of a line must match; substitutions, subshells, comments and files to \
             write to are not allowed in it, nor `$`, `*`, `[` or `-v` for test, printf and the \
             like."
        } else {
            ""
        };
        format!("This agent may only use: {list}.{hint}")
    }

    /// Returns the list in Claude's format.
    pub(super) fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Returns the built-in tools that are on the list.
    pub(super) fn built_in_tools(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for rule in &self.rules {
            if !rule.is_mcp() && !names.contains(&rule.name.as_str()) {
                names.push(&rule.name);
            }
        }
        names
    }

    /// Returns true if all tools of an MCP server are on the list.
    pub(super) fn has_server(&self, server: &str) -> bool {
        let whole = server_pattern(server);
        self.rules.iter().any(|rule| rule.name == whole)
    }

    /// Refuses rules that Claude alone cannot enforce: it can hide tools and servers, but not
    /// restrict their input.
    pub(super) fn ensure_no_input_rules(&self) -> Result<(), AllowedToolsError> {
        for (rule, entry) in self.rules.iter().zip(&self.entries) {
            let server = rule.name.strip_suffix("__*").and_then(|name| name.strip_prefix("mcp__"));
            // A pattern over several servers names none that could be passed as a whole.
            let whole = server.is_some_and(|server| !server.is_empty() && !server.contains('*'));
            if rule.input != ToolInputPattern::Any || (rule.is_mcp() && !whole) {
                let reason = "cannot be enforced by runtime cli, which supports only whole tools \
                              (`Bash`) and whole servers (`mcp__github__*`): use runtime sdk, or \
                              allow the whole tool and list exceptions in denied_tools";
                return Err(AllowedToolsError::Entry { entry: entry.clone(), reason });
            }
        }
        Ok(())
    }
}

impl ToolAllowRule {
    fn parse(entry: &str) -> Result<ToolAllowRule, AllowedToolsError> {
        let refused = |reason| AllowedToolsError::Entry { entry: entry.to_owned(), reason };
        let entry = entry.trim();
        let (name, input) = match entry.split_once('(') {
            Some((name, rest)) => {
                (name, rest.strip_suffix(')').ok_or_else(|| refused("has no closing parenthesis"))?)
            }
            None => (entry, "*"),
        };
        let is_mcp = name.starts_with("mcp__");
        // A comma separates the entries in Claude's option.
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == ',') {
            return Err(refused("is not the name of a tool"));
        }
        if name.contains('*') && !is_mcp {
            return Err(refused(
                "has a `*` in the name of a built-in tool: name each tool, or leave out \
                 allowed_tools to allow them all",
            ));
        }
        let input = match (current_tool_name(name), input) {
            (_, "*" | "") => ToolInputPattern::Any,
            ("Bash", pattern) => ToolInputPattern::Command(pattern.to_owned()),
            ("WebFetch", pattern) if pattern.starts_with("domain:") => {
                // A parsed URL has its host in lower case.
                ToolInputPattern::Domain(pattern["domain:".len()..].to_ascii_lowercase())
            }
            ("Agent", pattern) => ToolInputPattern::Field("subagent_type", pattern.to_owned()),
            ("Skill", pattern) => ToolInputPattern::Field("skill", pattern.to_owned()),
            _ => {
                return Err(refused(
                    "restricts the tool's input, which is supported only for Bash, WebFetch \
                     (`domain:…`), Agent and Skill: list the tool alone, and list exceptions in \
                     denied_tools",
                ));
            }
        };
        // The name of a server alone stands for all of its tools, as in Claude's own rules.
        let whole_server = is_mcp && !name["mcp__".len()..].contains("__") && !name.contains('*');
        let name = current_tool_name(name);
        let name = if whole_server { format!("{name}__*") } else { name.to_owned() };
        Ok(ToolAllowRule { name, input })
    }

    fn is_mcp(&self) -> bool {
        self.name.starts_with("mcp__")
    }
}

impl ToolInputPattern {
    fn matches_input(&self, input: &Json) -> bool {
        match self {
            ToolInputPattern::Any => true,
            // A shell line is checked as a whole, against all entries.
            ToolInputPattern::Command(_) => false,
            ToolInputPattern::Domain(domain) => {
                let host = input["url"].as_str().and_then(|text| Url::parse(text).ok());
                let host = host.as_ref().and_then(Url::host_str);
                host.is_some_and(|host| match domain.strip_prefix("*.") {
                    // The dot keeps `evil-example.com` out of `*.example.com`.
                    Some(parent) => host.strip_suffix(parent).is_some_and(|sub| sub.ends_with('.')),
                    None => host == domain,
                })
            }
            ToolInputPattern::Field(field, pattern) => {
                input[*field].as_str().is_some_and(|value| matches_pattern(pattern, value))
            }
        }
    }
}

/// Returns true if a command matches a pattern: `git status`, `git *` and `git:*` (which also match
/// `git` alone), `* --version`.
fn matches_command(pattern: &str, command: &str) -> bool {
    let prefix = pattern.strip_suffix(":*").or_else(|| pattern.strip_suffix(" *"));
    match prefix {
        Some(prefix) if !prefix.contains('*') => {
            let rest = command.strip_prefix(prefix);
            // The blank keeps `gitk` out of `git *`.
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(BLANKS))
        }
        _ => matches_pattern(pattern, command),
    }
}

/// Returns true if a text matches a pattern in which `*` matches anything.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().expect("a split has at least one part");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The first match leaves the most text for the parts that follow.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The agent's lists of tools, as far as they concern MCP servers. The runner applies them where
/// requests pass through it, because any process of the agent can send one.
pub(crate) struct McpToolLists {
    allowed: Option<ToolAllowlist>,
    /// Patterns of denied names.
    denied: Vec<String>,
}

impl McpToolLists {
    pub(crate) fn from_brief(brief: &ClaudeLaunchSpec) -> Result<McpToolLists, AllowedToolsError> {
        let entries = brief.denied_tools.iter().flat_map(|text| split_entries(text));
        let denied = entries.filter_map(|entry| parse_denied(entry).transpose());
        Ok(McpToolLists {
            allowed: ToolAllowlist::from_brief(brief, &[])?,
            denied: denied.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the reason for which a request to a server is refused.
    pub(crate) fn denial(&self, server: &str, method: &str, params: &Json) -> Option<String> {
        let tool = match method {
            "tools/list" => return None,
            "tools/call" => plain_name(params["name"].as_str().unwrap_or_default()),
            // Lists that have all of a server include its resources and prompts.
            _ => "*".to_owned(),
        };
        let whole = format!("mcp__{}", plain_name(server));
        let name = format!("{whole}__{tool}");
        // The name of a server that contains `__` looks like the name of a tool.
        let is_denied =
            |pattern: &String| matches_pattern(pattern, &name) || matches_pattern(pattern, &whole);
        if self.denied.iter().any(is_denied) {
            return Some(format!("{name} is in this agent's denied_tools"));
        }
        let allowed = self.allowed.as_ref()?;
        let permits = match method {
            "tools/call" => allowed.permits(&name, &params["arguments"]),
            _ => allowed.has_server(server),
        };
        (!permits).then(|| allowed.denial_reason(&name))
    }
}

/// Returns the entries of a text of `denied_tools`, which Claude separates by commas and blanks outside
/// of parentheses.
fn split_entries(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let entries = text.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (c == ',' || c.is_whitespace())
    });
    entries.filter(|entry| !entry.is_empty())
}

/// Returns the pattern of names that an entry of `denied_tools` denies, if it concerns MCP servers.
fn parse_denied(entry: &str) -> Result<Option<String>, AllowedToolsError> {
    if !entry.starts_with("mcp__") {
        return Ok(None);
    }
    let refused = |reason| AllowedToolsError::DeniedEntry { entry: entry.to_owned(), reason };
    if entry.contains('(') && !entry.ends_with(')') {
        return Err(refused("has no closing parenthesis"));
    }
    // Inputs of these tools have no patterns, so the whole tool is denied.
    let name = entry.split('(').next().unwrap_or_default();
    match ToolAllowRule::parse(name) {
        Ok(rule) => Ok(Some(rule.name)),
        Err(_) => Err(refused("is not the name of a tool")),
    }
}

/// Returns true if two names denote the same tool.
pub(super) fn is_same_tool(one: &str, other: &str) -> bool {
    current_tool_name(one) == current_tool_name(other)
}

/// Returns the current name of a tool that was renamed.
fn current_tool_name(tool: &str) -> &str {
    // Older versions of Claude, and configs for them, use the old name.
    if tool == "Task" { "Agent" } else { tool }
}

/// Returns the entries that allow all tools of these servers.
pub(super) fn server_patterns(servers: &[String]) -> impl Iterator<Item = String> {
    servers.iter().map(|server| server_pattern(server))
}

fn server_pattern(server: &str) -> String {
    format!("mcp__{}__*", plain_name(server))
}

/// Returns the name of a server or tool as a part of Claude's names.
fn plain_name(name: &str) -> String {
    // Claude replaces the same characters when it builds the names of tools.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}
