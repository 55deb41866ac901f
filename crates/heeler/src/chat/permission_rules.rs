//! Describes an agent's permissions in plain words, for the chat screen. Start at [`rules`].

use heeler_config::{AgentConfig, PermissionMode, RuntimeConfig};
use heeler_model::ApprovalMode;

/// Describes the actions that an agent may take without asking, those it may never take, the person
/// who is asked about the rest, and the file that sets this. Each line is a label and a value.
pub(super) fn rules(agent: &AgentConfig, attended: bool) -> Vec<String> {
    let mut lines = match agent.runtime {
        // A scripted agent ignores Claude's permission settings, so they would mislead here.
        RuntimeConfig::Scripted { .. } => {
            vec![
                "allowed  every step of its script; those with `ask_permission` ask first"
                    .to_owned(),
            ]
        }
        _ => claude_rules(agent),
    };
    lines.push(approvals(agent.approvals, attended));
    let (name, file) = (&agent.name, &agent.file);
    lines.push(format!(
        "source   {file} and the fleet's defaults; to change: `heeler config edit {name}`, then \
         `heeler reload` (applies from the next turn)"
    ));
    lines
}

fn claude_rules(agent: &AgentConfig) -> Vec<String> {
    let mode = agent.permission_mode;
    let mut lines =
        vec![format!("allowed  {} (permission_mode: {mode})", allowed_without_asking(mode))];
    if let Some(tools) = &agent.tools {
        lines.push(format!("tools    {} (tools)", join_tools(tools)));
    }
    if let Some(tools) = &agent.allowed_tools {
        lines.push(format!("only     {}; used without asking (allowed_tools)", join_tools(tools)));
    }
    if !agent.denied_tools.is_empty() {
        lines.push(format!("never    {} (denied_tools)", join_tools(&agent.denied_tools)));
    }
    lines
}

fn join_tools(tools: &[String]) -> String {
    if tools.is_empty() { "none".to_owned() } else { tools.join(", ") }
}

fn allowed_without_asking(mode: PermissionMode) -> &'static str {
    match mode {
        PermissionMode::Default => "actions that Claude's own settings allow",
        PermissionMode::AcceptEdits => "edit files",
        PermissionMode::BypassPermissions => "everything",
        PermissionMode::Plan => "read and plan",
        PermissionMode::DontAsk => "actions that are allowed; all others are denied",
        PermissionMode::Auto => "actions that Claude judges to be harmless",
        PermissionMode::Delegate => "nothing: Claude no longer has this mode",
    }
}

fn approvals(how: ApprovalMode, attended: bool) -> String {
    let who = match (how, attended) {
        (ApprovalMode::Autonomous, true) => "the user of this conversation",
        (ApprovalMode::Autonomous, false) => "no one: actions that are not allowed are denied",
        (ApprovalMode::Interactive, true) => "you, here or by `heeler approvals`",
        (ApprovalMode::Interactive, false) => "you, by `heeler approvals`",
        (ApprovalMode::Review, true) => "you, about each action, here or by `heeler approvals`",
        (ApprovalMode::Review, false) => "you, about each action, by `heeler approvals`",
    };
    format!("asked    {who} (approvals: {how})")
}
