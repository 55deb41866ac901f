//! Access to GitHub, as far as work sources need to know it.

/// Access to GitHub that work sources use.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkSourceAccess {
    /// Repositories of `github`; empty without access.
    pub(crate) repos: Vec<String>,
    /// Variable of `github` with the token.
    pub(crate) token_env: Option<String>,
}
