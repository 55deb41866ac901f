//! Values that decide where the token of a chat platform comes from and where it is sent.
//!
//! Start at [`TokenVariable`] and [`ChatApiUrl`].

use serde_json::Value as Json;

use crate::github::{is_passed_to_agents, is_safe_for_credentials};
use crate::reader::ConfigReader;
use crate::shape::ValueShape;
use crate::value::{ConfigValue, VarName, WebUrl, report_expected};
use crate::yaml::YamlNode;

/// Environment variable that holds a token. Agents do not get it unless their config names it.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenVariable(VarName);

impl TokenVariable {
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(crate) fn name(&self) -> &VarName {
        &self.0
    }
}

impl ConfigValue for TokenVariable {
    fn shape() -> ValueShape {
        VarName::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<TokenVariable> {
        let name = VarName::read(node, reader)?;
        match is_passed_to_agents(&name) {
            true => report_expected(
                reader,
                node,
                "a variable without the prefix CLAUDE_, ANTHROPIC_ or LC_, which every agent gets",
            ),
            false => Some(TokenVariable(name)),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// Address to which a token may be sent: over TLS, or within this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatApiUrl(WebUrl);

impl ChatApiUrl {
    /// Returns the address without a slash at its end.
    pub fn as_str(&self) -> &str {
        self.0.expose().trim_end_matches('/')
    }
}

impl ConfigValue for ChatApiUrl {
    fn shape() -> ValueShape {
        WebUrl::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ChatApiUrl> {
        let url = WebUrl::read(node, reader)?;
        match is_safe_for_credentials(url.expose()) {
            true => Some(ChatApiUrl(url)),
            false => report_expected(
                reader,
                node,
                "an address that begins with https://, without a login or a query, because the token \
                 is sent there",
            ),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}
