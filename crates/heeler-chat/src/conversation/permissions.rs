//! Permissions that the person gives for the rest of the conversation: the permission mode and rules.
//! They are forgotten when the conversation is closed.

use heeler_model::permission_grant::{ACCEPT_EDITS, PermissionGrant};

use super::Conversation;

/// Modes in the order of Shift+Tab. All of them ask about commands.
const MODES: [&str; 3] = ["default", ACCEPT_EDITS, "plan"];

impl Conversation {
    /// Returns the permission mode of the next turn; `None` if the agent has no modes.
    pub(super) fn permission_mode(&self) -> Option<&str> {
        let own = self.options.permission_mode.as_deref()?;
        Some(self.permissions.mode.as_deref().unwrap_or(own))
    }

    pub(super) fn cycle_mode(&mut self) {
        let Some(mode) = self.permission_mode() else {
            return self.display.show_notice("this agent has no permission modes");
        };
        let own = self.options.permission_mode.clone().unwrap_or_default();
        // The mode of the config is one of the choices, also if it is not one of those above.
        let mut modes: Vec<&str> = MODES.to_vec();
        if !modes.contains(&own.as_str()) {
            modes.push(&own);
        }
        let at = modes.iter().position(|known| *known == mode).unwrap_or(0);
        let next = modes[(at + 1) % modes.len()].to_owned();
        let when = if self.turn.running().is_some() { "from the next turn on" } else { "now" };
        let meaning = describe_mode(&next);
        self.permissions.mode = (next != own).then(|| next.clone());
        self.display.show_notice(format!("permission mode: {next} {when} ({meaning})"));
    }

    /// Remembers a permission for later turns.
    pub(super) fn remember_grant(&mut self, grant: &PermissionGrant) {
        self.permissions.add(grant);
    }

    /// Returns a line for `/permissions` about what was given in this conversation.
    pub(super) fn describe_grants(&self) -> Option<String> {
        let given = self.permissions.describe();
        (!given.is_empty()).then(|| format!("given    {given} (by you, in this conversation)"))
    }
}

fn describe_mode(mode: &str) -> &'static str {
    match mode {
        "default" => "asks before edits and commands",
        ACCEPT_EDITS => "edits files without asking",
        "plan" => "reads and plans, changes nothing",
        _ => "as the config says",
    }
}
