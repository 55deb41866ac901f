//! Permissions that a person gives beyond one request: rules of Claude and a permission mode, for the
//! rest of a conversation; rules also for all later runs. Start at [`PermissionGrant`].

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// Limit on the rules of a grant, and on those that a conversation collects.
const RULES_MAX: usize = 64;

/// Limit on the rules that people gave an agent for all later runs. Further ones count until the
/// agent's process ends.
pub const KEPT_RULES_MAX: usize = 64;

/// Limit on the characters of a rule's content.
const CONTENT_CHARS_MAX: usize = 500;

/// Mode in which Claude edits files without asking.
pub const ACCEPT_EDITS: &str = "acceptEdits";

/// A permission that lasts longer than one request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionGrant {
    /// Permission mode of Claude, in place of the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Calls that need no question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<PermissionRule>,
}

/// A rule of Claude about calls of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRule {
    pub tool: String,
    /// Limit on the input, such as `npm test:*`; without it, all calls of the tool are meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl fmt::Display for PermissionRule {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Some(content) => write!(to, "{}({content})", self.tool),
            None => write!(to, "{}", self.tool),
        }
    }
}

impl PermissionGrant {
    pub fn is_empty(&self) -> bool {
        self.mode.is_none() && self.allow.is_empty()
    }

    /// Reads the suggestions of a permission request. Returns `None` unless all of them can be
    /// described to a person: rules that allow something, and the mode that accepts edits.
    pub fn from_suggestions(suggestions: &Json) -> Option<PermissionGrant> {
        let mut grant = PermissionGrant::default();
        for one in suggestions.as_array()? {
            match one["type"].as_str()? {
                "setMode" if one["mode"] == ACCEPT_EDITS => {
                    grant.mode = Some(ACCEPT_EDITS.to_owned());
                }
                "addRules" if one["behavior"] == "allow" => {
                    for rule in one["rules"].as_array()? {
                        grant.allow.push(PermissionRule::read(rule)?);
                    }
                }
                _ => return None,
            }
        }
        (!grant.is_empty() && grant.allow.len() <= RULES_MAX).then_some(grant)
    }

    /// Returns the grant as updates of Claude's permissions, until its process ends.
    pub fn to_updates(&self) -> Json {
        let rule = |rule: &PermissionRule| match &rule.content {
            Some(content) => json!({ "toolName": rule.tool, "ruleContent": content }),
            None => json!({ "toolName": rule.tool }),
        };
        let mut updates = Vec::new();
        if !self.allow.is_empty() {
            let rules: Vec<Json> = self.allow.iter().map(rule).collect();
            updates.push(json!({
                "type": "addRules", "rules": rules, "behavior": "allow", "destination": "session",
            }));
        }
        if let Some(mode) = &self.mode {
            updates.push(json!({ "type": "setMode", "mode": mode, "destination": "session" }));
        }
        Json::Array(updates)
    }

    /// Adds another grant. Rules beyond the limit are dropped, so that they are asked about again.
    pub fn add(&mut self, other: &PermissionGrant) {
        self.mode = other.mode.clone().or(self.mode.take());
        for rule in &other.allow {
            if self.allow.len() < RULES_MAX && !self.allow.contains(rule) {
                self.allow.push(rule.clone());
            }
        }
    }

    /// Returns the rules if the grant may count for all later runs. A mode may not: it is the config's.
    pub fn lasting_rules(&self) -> Option<Vec<String>> {
        let is_lasting = self.mode.is_none() && !self.allow.is_empty();
        is_lasting.then(|| self.allow.iter().map(ToString::to_string).collect())
    }

    /// Describes the grant in one line: `Bash(npm test:*), all edits of files`.
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> = self.allow.iter().map(ToString::to_string).collect();
        match self.mode.as_deref() {
            Some(ACCEPT_EDITS) => parts.push("all edits of files".to_owned()),
            Some(mode) => parts.push(format!("mode {mode}")),
            None => {}
        }
        parts.join(", ")
    }
}

impl PermissionRule {
    fn read(rule: &Json) -> Option<PermissionRule> {
        // A text that does not look like what it is must not be offered.
        let plain = |text: &str| {
            let is_plain = !text.chars().any(|c| crate::is_hidden_char(c) || c.is_control());
            (is_plain && text.chars().count() <= CONTENT_CHARS_MAX).then(|| text.to_owned())
        };
        let tool = rule["toolName"].as_str().filter(|tool| !tool.is_empty())?;
        let content = match &rule["ruleContent"] {
            Json::Null => None,
            Json::String(content) => Some(plain(content)?),
            _ => return None,
        };
        Some(PermissionRule { tool: plain(tool)?, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: Json) -> Json {
        json!([{ "type": "addRules", "rules": list, "behavior": "allow", "destination": "localSettings" }])
    }

    #[test]
    fn suggestions_are_for_the_session_whatever_their_destination() {
        let told = rules(
            json!([{"toolName": "Bash", "ruleContent": "npm test:*"}, {"toolName": "mcp__x"}]),
        );
        let grant = PermissionGrant::from_suggestions(&told).unwrap();
        assert_eq!(grant.describe(), "Bash(npm test:*), mcp__x");
        let updates = grant.to_updates();
        assert_eq!(updates[0]["destination"], "session");
        assert_eq!(updates[0]["rules"], told[0]["rules"]);
        let mode = json!([{"type": "setMode", "mode": "acceptEdits", "destination": "session"}]);
        let mode = PermissionGrant::from_suggestions(&mode).unwrap();
        assert_eq!(mode.describe(), "all edits of files");
        assert_eq!(grant.lasting_rules().unwrap(), ["Bash(npm test:*)", "mcp__x"]);
        assert_eq!(mode.lasting_rules(), None);
        let mut both = grant.clone();
        both.add(&mode);
        both.add(&grant);
        assert_eq!(both.describe(), "Bash(npm test:*), mcp__x, all edits of files");
        assert_eq!(
            serde_json::from_value::<PermissionGrant>(json!({})).unwrap(),
            PermissionGrant::default()
        );
    }

    #[test]
    fn what_cannot_be_described_is_not_offered() {
        for told in [
            json!(null),
            json!([]),
            json!([{"type": "setMode", "mode": "bypassPermissions", "destination": "session"}]),
            json!([{"type": "addDirectories", "directories": ["/"]}]),
            json!([{"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "deny"}]),
            rules(json!([{"toolName": "Bash", "ruleContent": "ls\u{200b}"}])),
            rules(json!([{"toolName": "Bash", "ruleContent": "ls\nrm"}])),
            rules(json!([{"toolName": "Bash", "ruleContent": "x".repeat(501)}])),
            rules(json!([{"toolName": "Bash", "ruleContent": 3}])),
            rules(json!([{"toolName": ""}])),
            rules(json!(vec![json!({"toolName": "Bash"}); RULES_MAX + 1])),
        ] {
            assert_eq!(PermissionGrant::from_suggestions(&told), None, "{told}");
        }
    }
}
