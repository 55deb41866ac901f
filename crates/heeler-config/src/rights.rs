//! Comparison of the rights of two agents: an agent must not gain rights by starting another one.
//!
//! The comparison is conservative: rules that differ in form count as different. Start at
//! [`compare_rights`].

use std::fmt;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;

use crate::agent::AgentConfig;
use crate::amount::UsdAmount;
use crate::github::GithubPermissionLevel;
use crate::hooks::{AgentHooks, HookList};
use crate::mcp::McpServer;
use crate::names::ApprovalMode;
use crate::runtime::{PermissionMode, RuntimeConfig};
use crate::sandbox::SandboxSettings;
use crate::value::{EnvVars, VarName};

/// Tools that only read; Claude runs them without asking in every permission mode.
const READ_TOOLS: [&str; 9] = [
    "Read",
    "Glob",
    "Grep",
    "LS",
    "NotebookRead",
    "TodoRead",
    "TodoWrite",
    "BashOutput",
    "ExitPlanMode",
];
/// Tools that Claude runs without asking in `acceptEdits`, besides those that only read.
const EDIT_TOOLS: [&str; 4] = ["Edit", "MultiEdit", "Write", "NotebookEdit"];

/// A right that one agent has and another lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RightDifference {
    /// It runs commands or a script, without any permission check.
    Unchecked { runtime: &'static str },
    /// Its permission mode allows more.
    Mode { has: PermissionMode, caller: PermissionMode },
    /// Its actions need no person's approval.
    Unapproved,
    /// It may use these tools. Empty means all tools.
    Tools { key: &'static str, names: Vec<String> },
    /// It may use tools that the caller must not use.
    DeniedTools { names: Vec<String> },
    /// It has these MCP servers.
    Servers { names: Vec<String> },
    /// It receives these secret variables.
    Secrets { names: Vec<String> },
    /// The config gives it these variables, or gives them another value.
    Variables { names: Vec<String> },
    /// These hooks follow its jobs.
    Hooks { names: Vec<String> },
    /// A key that widens its rights is set.
    Switch { key: &'static str },
    /// It loads settings or plugins from these places, which may allow more.
    Settings { names: Vec<String> },
    /// A limit of the caller is missing or larger.
    Limit { key: &'static str },
    /// It runs with less isolation.
    Isolation { key: &'static str },
    /// It works in a directory that the caller's sandbox does not let it write.
    Directory { path: Utf8PathBuf },
}

impl fmt::Display for RightDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| names.join(", ");
        match self {
            RightDifference::Unchecked { runtime } => {
                write!(f, "runtime {runtime} has no permission checks")
            }
            RightDifference::Mode { has, caller } => {
                write!(f, "permission_mode {has} instead of {caller}")
            }
            RightDifference::Unapproved => f.write_str("no `approvals: review`"),
            RightDifference::Tools { key, names } if names.is_empty() => {
                write!(f, "all tools (no `{key}`)")
            }
            RightDifference::Tools { key, names } => write!(f, "{key} {}", list(names)),
            RightDifference::DeniedTools { names } => {
                write!(f, "not in its denied_tools: {}", list(names))
            }
            RightDifference::Servers { names } => write!(f, "mcp_servers {}", list(names)),
            RightDifference::Secrets { names } => write!(f, "secrets {}", list(names)),
            RightDifference::Variables { names } => write!(f, "env {}", list(names)),
            RightDifference::Hooks { names } => write!(f, "hooks {}", list(names)),
            RightDifference::Switch { key } => write!(f, "`{key}: true`"),
            RightDifference::Settings { names } => write!(f, "settings from {}", list(names)),
            RightDifference::Limit { key } => write!(f, "a larger `{key}`, or none"),
            RightDifference::Isolation { key } => write!(f, "not the same `{key}`"),
            RightDifference::Directory { path } => {
                write!(f, "working_directory {path}, which the other's sandbox cannot write")
            }
        }
    }
}

/// Returns the differences as one line for people.
pub fn describe_differences(found: &[RightDifference]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Lists the rights that `target` has and `caller` lacks. An empty list means that the caller gains
/// nothing by starting the target.
///
/// `budget.job` is not compared, because the budget of a job also limits the jobs that it starts.
pub fn compare_rights(caller: &AgentConfig, target: &AgentConfig) -> Vec<RightDifference> {
    let mut found = Vec::new();
    // Nothing limits the actions of a process that Claude does not control.
    if !runs_any_command(caller) {
        compare_actions(caller, target, &mut found);
    }
    compare_belongings(caller, target, &mut found);
    compare_limits(caller, target, &mut found);
    compare_isolation(caller, target, &mut found);
    found
}

/// Compares what an agent has, whatever it may do: even an agent that runs any command lacks the
/// tokens, hooks and privileges that the config gives to another.
fn compare_belongings(
    caller: &AgentConfig,
    target: &AgentConfig,
    found: &mut Vec<RightDifference>,
) {
    let AgentBelongings { secrets, env, mcp_servers, hooks } = belongings(target);
    let mut push = |names: Vec<String>, of: fn(Vec<String>) -> RightDifference| {
        if !names.is_empty() {
            found.push(of(names));
        }
    };
    let servers =
        mcp_servers.iter().filter(|(name, it)| caller.mcp_servers.get(*name) != Some(*it));
    push(servers.map(|(name, _)| name.clone()).collect(), |names| RightDifference::Servers {
        names,
    });
    let secrets = secrets.iter().filter(|name| !caller.secrets.contains(name));
    push(secrets.map(|name| name.as_str().to_owned()).collect(), |names| {
        RightDifference::Secrets { names }
    });
    if !has_token_permissions(caller, target) {
        push(vec!["GITHUB_TOKEN".to_owned()], |names| RightDifference::Secrets { names });
    }
    let own = caller.env.get();
    let env = env.get().iter().filter(|(name, value)| own.get(*name) != Some(*value));
    push(env.map(|(name, _)| name.clone()).collect(), |names| RightDifference::Variables { names });
    push(more_hooks(&caller.hooks, hooks), |names| RightDifference::Hooks { names });
    let switches = [
        ("allow_new_privileges", caller.allow_new_privileges, target.allow_new_privileges),
        ("edit_instructions", caller.edit_instructions, target.edit_instructions),
    ];
    let gained = switches.into_iter().filter(|(_, own, has)| *has && !own);
    found.extend(gained.map(|(key, ..)| RightDifference::Switch { key }));
}

/// Returns true if the target's token for GitHub permits nothing that the caller's does not.
fn has_token_permissions(caller: &AgentConfig, target: &AgentConfig) -> bool {
    target.github_token.iter().all(|wanted| {
        let own = caller.github_token.iter().find(|own| own.name == wanted.name);
        own.is_some_and(|own| {
            own.level == wanted.level || own.level == GithubPermissionLevel::Write
        })
    })
}

/// Values that the config gives to an agent, independent of its permissions.
struct AgentBelongings<'a> {
    secrets: &'a [VarName],
    env: &'a EnvVars,
    mcp_servers: &'a IndexMap<String, McpServer>,
    hooks: &'a AgentHooks,
}

fn belongings(agent: &AgentConfig) -> AgentBelongings<'_> {
    // Every key is named, so that a new one must be judged before this compiles.
    let AgentConfig {
        secrets,
        env,
        mcp_servers,
        hooks,
        allow_new_privileges: _,
        edit_instructions: _,
        github_token: _,
        // Compared by the other functions of this module.
        runtime: _,
        claude_path: _,
        approvals: _,
        permission_mode: _,
        tools: _,
        allowed_tools: _,
        denied_tools: _,
        setting_sources: _,
        plugins: _,
        max_turns: _,
        timeout: _,
        budget: _,
        // Facts about models, which give no right.
        prices: _,
        docker: _,
        sandbox: _,
        // The rules of all ancestors apply to a job.
        spawn: _,
        // Compared for callers in a sandbox. Without one, agents can read and write all files of
        // their user anyway.
        working_directory: _,
        has_explicit_working_directory: _,
        checkout: _,
        repo: _,
        // A place, which gives no right: its host has the same config.
        host: _,
        // It only ends the agent.
        on_partition: _,
        // Instructions and habits, which give no right. An agent that starts another chooses
        // neither its schedule nor its chat.
        name: _,
        file: _,
        description: _,
        identity: _,
        system_prompt: _,
        default_prompt: _,
        model: _,
        effort: _,
        schedules: _,
        session: _,
        stall_timeout: _,
        max_concurrent: _,
        priority: _,
        retry: _,
        metadata_file: _,
        work_source: _,
        chat: _,
        notify: _,
        fleet_secrets: _,
        config_json: _,
    } = agent;
    AgentBelongings { secrets, env, mcp_servers, hooks }
}

/// Names the hooks of the target that the caller lacks.
fn more_hooks(caller: &AgentHooks, target: &AgentHooks) -> Vec<String> {
    let mut names = Vec::new();
    for list in HookList::ALL {
        for (index, hook) in target.list(*list).iter().enumerate() {
            if !caller.list(*list).contains(hook) {
                let place = (index + 1).to_string();
                names.push(format!("{list} {}", hook.name.as_deref().unwrap_or(&place)));
            }
        }
    }
    names
}

/// Returns true if the agent may already run any command without asking.
fn runs_any_command(agent: &AgentConfig) -> bool {
    if !has_permission_mode(agent) {
        return true;
    }
    let lists_bash = |list: &Option<Vec<String>>| {
        list.as_ref().is_none_or(|list| list.iter().any(|entry| is_whole_tool(entry, "Bash")))
    };
    agent.permission_mode == PermissionMode::BypassPermissions
        && agent.approvals != ApprovalMode::Review
        && lists_bash(&agent.allowed_tools)
        && lists_bash(&agent.tools)
        && !agent.denied_tools.iter().any(|entry| tool_name(entry) == "Bash")
}

/// Returns true if the agent's program follows a permission mode.
fn has_permission_mode(agent: &AgentConfig) -> bool {
    !matches!(agent.runtime, RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_))
}

fn compare_actions(caller: &AgentConfig, target: &AgentConfig, found: &mut Vec<RightDifference>) {
    match &target.runtime {
        RuntimeConfig::Command(_) => {
            return found.push(RightDifference::Unchecked { runtime: "command" });
        }
        RuntimeConfig::Scripted(_) => {
            return found.push(RightDifference::Unchecked { runtime: "scripted" });
        }
        RuntimeConfig::Acp(_) => {
            return found.push(RightDifference::Unchecked { runtime: "acp" });
        }
        RuntimeConfig::Codex(_) => {
            return found.push(RightDifference::Unchecked { runtime: "codex" });
        }
        RuntimeConfig::Qwen(_) => {
            return found.push(RightDifference::Unchecked { runtime: "qwen" });
        }
        RuntimeConfig::Sdk | RuntimeConfig::Cli => {}
    }
    let (has, of_caller) = (target.permission_mode, caller.permission_mode);
    if mode_rank(has) > mode_rank(of_caller) {
        found.push(RightDifference::Mode { has, caller: of_caller });
    }
    if caller.approvals == ApprovalMode::Review && target.approvals != ApprovalMode::Review {
        found.push(RightDifference::Unapproved);
    }
    compare_tools(caller, target, found);
    if target.claude_path != caller.claude_path {
        found.push(RightDifference::Isolation { key: "claude_path" });
    }
    compare_settings(caller, target, found);
}

/// Orders permission modes by what runs without a person.
fn mode_rank(mode: PermissionMode) -> u8 {
    match mode {
        // No run has the mode `delegate`.
        PermissionMode::Plan | PermissionMode::Delegate => 0,
        PermissionMode::DontAsk => 1,
        PermissionMode::Default => 2,
        PermissionMode::AcceptEdits => 3,
        // Claude's own judgement also allows commands.
        PermissionMode::Auto => 4,
        PermissionMode::BypassPermissions => 5,
    }
}

fn compare_tools(caller: &AgentConfig, target: &AgentConfig, found: &mut Vec<RightDifference>) {
    let has_no_more = |entry: &String| match &caller.allowed_tools {
        Some(listed) => listed.iter().any(|own| covers(own, entry)),
        // A listed tool runs without asking, so the caller must be able to do the same.
        None => runs_unasked(caller.permission_mode, entry),
    };
    match (&caller.allowed_tools, &target.allowed_tools) {
        (Some(_), None) => {
            found.push(RightDifference::Tools { key: "allowed_tools", names: Vec::new() });
        }
        (_, Some(listed)) => push_more_tools("allowed_tools", listed, has_no_more, found),
        (None, None) => {}
    }
    if let Some(own) = &caller.tools {
        // Either list of the target limits its built-in tools.
        let lists = [("tools", &target.tools), ("allowed_tools", &target.allowed_tools)];
        let limit = lists.into_iter().find_map(|(key, list)| Some((key, list.as_ref()?)));
        let is_known = |entry: &String| {
            let is_own = own.iter().any(|tool| current_name(tool) == tool_name(entry));
            entry.starts_with("mcp__") || is_own
        };
        match limit {
            None => found.push(RightDifference::Tools { key: "tools", names: Vec::new() }),
            Some((key, list)) => push_more_tools(key, list, is_known, found),
        }
    }
    let names: Vec<String> =
        caller.denied_tools.iter().filter(|entry| !is_denied(target, entry)).cloned().collect();
    if !names.is_empty() {
        found.push(RightDifference::DeniedTools { names });
    }
}

fn push_more_tools(
    key: &'static str,
    listed: &[String],
    is_known: impl Fn(&String) -> bool,
    found: &mut Vec<RightDifference>,
) {
    let names: Vec<String> = listed.iter().filter(|entry| !is_known(entry)).cloned().collect();
    if !names.is_empty() {
        found.push(RightDifference::Tools { key, names });
    }
}

/// Returns true if the agent cannot use what an entry of `denied_tools` names.
fn is_denied(agent: &AgentConfig, entry: &str) -> bool {
    let name = tool_name(entry);
    let lacks = |list: &Option<Vec<String>>| {
        let has = |own: &String| tool_name(own) == name || own.contains('*') || name.contains('*');
        list.as_ref().is_some_and(|list| !list.iter().any(has))
    };
    let is_built_in = !name.starts_with("mcp__");
    agent.denied_tools.iter().any(|own| covers(own, entry))
        || lacks(&agent.allowed_tools)
        || (is_built_in && lacks(&agent.tools))
}

/// Returns true if every call that `entry` allows is also allowed by `own`.
fn covers(own: &str, entry: &str) -> bool {
    if own.trim() == entry.trim() {
        return true;
    }
    let name = tool_name(entry);
    if !is_whole_tool(own, tool_name(own)) {
        return false;
    }
    match tool_name(own) {
        own if own == name => true,
        // A server alone, or with `__*`, stands for all of its tools.
        own if own.starts_with("mcp__") => {
            let server = own.strip_suffix("__*").unwrap_or(own);
            let is_server = !server.contains('*') && !server["mcp__".len()..].contains("__");
            let rest = name.strip_prefix(server);
            is_server && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("__"))
        }
        _ => false,
    }
}

fn runs_unasked(mode: PermissionMode, entry: &str) -> bool {
    let name = tool_name(entry);
    match mode {
        PermissionMode::BypassPermissions => true,
        PermissionMode::AcceptEdits | PermissionMode::Auto => {
            READ_TOOLS.contains(&name) || EDIT_TOOLS.contains(&name)
        }
        _ => READ_TOOLS.contains(&name),
    }
}

/// Returns the tool that an entry such as `Bash(git *)` concerns.
fn tool_name(entry: &str) -> &str {
    let entry = entry.trim();
    current_name(entry.split_once('(').map_or(entry, |(name, _)| name))
}

/// Returns the current name of a tool that was renamed.
fn current_name(tool: &str) -> &str {
    if tool == "Task" { "Agent" } else { tool }
}

fn is_whole_tool(entry: &str, tool: &str) -> bool {
    let entry = entry.trim();
    let input = entry.split_once('(').map(|(_, input)| input);
    tool_name(entry) == tool && matches!(input, None | Some("*)" | ")"))
}

fn compare_settings(caller: &AgentConfig, target: &AgentConfig, found: &mut Vec<RightDifference>) {
    let own = caller.setting_sources.as_deref().unwrap_or_default();
    // The default is the project alone, which belongs to the working directory.
    let sources = target.setting_sources.iter().flatten().filter(|source| !own.contains(source));
    let plugins = target.plugins.iter().filter(|plugin| !caller.plugins.contains(plugin));
    let names = sources.map(ToString::to_string);
    let names: Vec<String> =
        names.chain(plugins.map(|plugin| format!("plugin {}", plugin.path))).collect();
    if !names.is_empty() {
        found.push(RightDifference::Settings { names });
    }
}

fn compare_limits(caller: &AgentConfig, target: &AgentConfig, found: &mut Vec<RightDifference>) {
    let amount = |agent: &AgentConfig, of: fn(&crate::Budget) -> Option<UsdAmount>| {
        agent.budget.as_ref().and_then(of).map(|amount| amount.micros())
    };
    let (day, total) = (|it: &crate::Budget| it.day, |it: &crate::Budget| it.total);
    let turns = |agent: &AgentConfig| agent.max_turns.map(|turns| u64::from(turns.get()));
    let seconds = |agent: &AgentConfig| agent.timeout.map(|time| time.get().as_secs());
    let limits = [
        ("budget.day", amount(caller, day), amount(target, day)),
        ("budget.total", amount(caller, total), amount(target, total)),
        ("max_turns", turns(caller), turns(target)),
        ("timeout", seconds(caller), seconds(target)),
    ];
    for (key, own, other) in limits {
        if own.is_some_and(|own| other.is_none_or(|other| other > own)) {
            found.push(RightDifference::Limit { key });
        }
    }
}

/// Compares the isolation keys. Only equal settings count as equal isolation, except that the target
/// may reach fewer hosts.
fn compare_isolation(caller: &AgentConfig, target: &AgentConfig, found: &mut Vec<RightDifference>) {
    // Rules for files say nothing about other directories or a sandbox, so only the same count.
    if caller.file_limits().is_some()
        && (caller.file_limits() != target.file_limits()
            || caller.working_directory != target.working_directory)
    {
        found.push(RightDifference::Isolation { key: "sandbox" });
    }
    let Some(own) = caller.isolation_settings() else { return };
    // A container may have mounts and a network that a sandbox has not.
    if caller.container() != target.container() {
        found.push(RightDifference::Isolation { key: "docker" });
        return;
    }
    let is_isolated = target.isolation_settings().is_some_and(|of_target| {
        let is_narrower = of_target.network.rules().is_within(&own.network.rules());
        is_narrower && SandboxSettings { network: own.network.clone(), ..of_target } == own
    });
    if !is_isolated {
        found.push(RightDifference::Isolation { key: "sandbox" });
    }
    // Equal keys give another directory to an agent that works there.
    if !may_write(caller, &own, &target.working_directory) {
        found.push(RightDifference::Directory { path: target.working_directory.clone() });
    }
}

/// Returns true if an agent in this sandbox may write a directory: of all paths that its config names,
/// the deepest one above the directory counts.
fn may_write(agent: &AgentConfig, own: &SandboxSettings, directory: &Utf8Path) -> bool {
    let depth = |path: &Utf8PathBuf| {
        let path: Utf8PathBuf = path.components().collect();
        directory.starts_with(&path).then(|| path.components().count())
    };
    let deepest = |paths: &[Utf8PathBuf]| paths.iter().filter_map(depth).max();
    let writable = deepest(&own.write).max(depth(&agent.working_directory));
    let closed = deepest(&own.read_only).max(deepest(&own.deny_read));
    // Components are compared as texts, and `..` leads elsewhere.
    let is_plain = !directory.components().any(|part| part == Utf8Component::ParentDir);
    is_plain && writable > closed || directory == agent.working_directory
}
