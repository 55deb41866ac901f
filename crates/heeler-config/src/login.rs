//! Signs of a program's login.
//!
//! A login is recognized by the existence of a file or variable. Neither is read. Start at
//! [`LoginSigns::find`].

use serde::Deserialize;

use crate::static_data::{StaticText, static_text, static_texts};

/// Signs of a program's login.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginSigns {
    /// Files below the home directory, of which one exists after a login.
    #[serde(default, deserialize_with = "static_texts")]
    pub files: &'static [&'static str],
    /// Environment variables with a key.
    #[serde(default, deserialize_with = "static_texts")]
    pub variables: &'static [&'static str],
    /// True if there can be a login without any of these signs, such as in a keychain.
    #[serde(default = "is_possible_elsewhere")]
    pub has_others: bool,
    /// Instruction for a person who has to log in.
    #[serde(deserialize_with = "static_text")]
    pub cure: StaticText,
}

fn is_possible_elsewhere() -> bool {
    LoginSigns::NONE.has_others
}

/// Login of a program, as far as its signs show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginState {
    /// This file below the home directory exists.
    File(&'static str),
    /// This variable is set.
    Variable(&'static str),
    Absent,
    /// There is no sign, and there need not be one.
    Unknown,
}

impl LoginSigns {
    /// No sign is known.
    pub(crate) const NONE: LoginSigns = LoginSigns {
        files: &[],
        variables: &[],
        has_others: true,
        cure: "log in with the program",
    };

    pub(crate) const CLAUDE: LoginSigns = LoginSigns {
        files: &[".claude/.credentials.json"],
        variables: &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
        // On macOS, Claude uses the keychain.
        has_others: cfg!(target_os = "macos"),
        cure: "run `claude` and `/login`, or set ANTHROPIC_API_KEY",
    };

    pub(crate) const CODEX: LoginSigns = LoginSigns {
        files: &[".codex/auth.json"],
        variables: &["CODEX_API_KEY"],
        has_others: false,
        cure: "run `codex login`, or set CODEX_API_KEY",
    };

    /// Returns the login. The variables take precedence, because the programs prefer them.
    pub fn find(
        &self,
        has_file: impl Fn(&str) -> bool,
        has_variable: impl Fn(&str) -> bool,
    ) -> LoginState {
        let variable = self.variables.iter().copied().find(|name| has_variable(name));
        let file = || self.files.iter().copied().find(|path| has_file(path));
        match variable.map(LoginState::Variable).or_else(|| file().map(LoginState::File)) {
            Some(state) => state,
            None if self.has_others => LoginState::Unknown,
            None => LoginState::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_recognized_by_its_signs() {
        let codex = LoginSigns::CODEX;
        let no = |_: &str| false;
        assert_eq!(codex.find(no, no), LoginState::Absent);
        assert_eq!(
            codex.find(|path| path == ".codex/auth.json", no),
            LoginState::File(".codex/auth.json")
        );
        assert_eq!(codex.find(|_| true, |_| true), LoginState::Variable("CODEX_API_KEY"));
        assert_eq!(LoginSigns::NONE.find(no, no), LoginState::Unknown);
    }
}
