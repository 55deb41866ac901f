//! What an agent may do, in a person's words.

use heeler_model::ApprovalMode;
use heeler_model::config::{AgentConfig, PermissionMode, RuntimeConfig};

/// Says what an agent may do without asking, what never, who is asked about the rest, and where that is
/// written; each line is a word and what it stands for.
pub(super) fn rules(agent: &AgentConfig, attended: bool) -> Vec<String> {
    let mut lines = match agent.runtime {
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
        "written  in {file} and the fleet's defaults; `heeler config edit {name}`, then `heeler reload`, \
         changes it from the next turn on"
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
        lines.push(format!("only     {}; these without asking (allowed_tools)", join_tools(tools)));
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
        PermissionMode::Default => "what Claude's own settings allow",
        PermissionMode::AcceptEdits => "edit files",
        PermissionMode::BypassPermissions => "everything",
        PermissionMode::Plan => "read and plan",
        PermissionMode::DontAsk => "what is allowed; the rest is denied",
        PermissionMode::Auto => "what Claude itself judges to be harmless",
    }
}

fn approvals(how: ApprovalMode, attended: bool) -> String {
    let who = match (how, attended) {
        (ApprovalMode::Autonomous, true) => "whoever is in this conversation",
        (ApprovalMode::Autonomous, false) => "nobody, here: what is not allowed is denied",
        (ApprovalMode::Interactive, true) => "you, here or by `heeler approvals`",
        (ApprovalMode::Interactive, false) => "you, by `heeler approvals`",
        (ApprovalMode::Review, true) => "you, about each action, here or by `heeler approvals`",
        (ApprovalMode::Review, false) => "you, about each action, by `heeler approvals`",
    };
    format!("asked    {who} (approvals: {how})")
}
