//! Git remotes that a sandboxed agent reaches with a credential of its proxy.

use std::str::FromStr;

use serde_json::json;
use url::Url;

use crate::github::is_safe_for_credentials;
use crate::shape::section;
use crate::value::{VarName, text_value};

section! {
    /// Git remote that the agent reaches with a credential which it does not have itself.
    pub struct GitAccessConfig ("sandbox.git") {
        /// Address of the repository, such as `https://github.com/acme/app`.
        remote: GitRemote,
        /// Variable of the agent's environment that holds the token. The agent has a placeholder in it.
        token_env: VarName,
        /// User name that the server expects with a token. GitHub accepts any.
        username: GitUsername = "x-access-token",
    }
}

/// Address of a repository, without `.git`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRemote(Url);

impl GitRemote {
    pub fn url(&self) -> &Url {
        &self.0
    }
}

impl FromStr for GitRemote {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<GitRemote, &'static str> {
        let mut url: Url = text.parse().map_err(|_| "it is no address")?;
        if !is_safe_for_credentials(text) || url.fragment().is_some() {
            return Err("it must begin with https:// and have no login, query or fragment");
        }
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path).to_owned();
        let has_name = !path.is_empty() && !path.ends_with('/');
        // Another program could read these as another path.
        if !has_name || path.contains(['%', '\\']) || path.contains("//") {
            return Err("it must name one repository, in plain characters");
        }
        url.set_path(&path);
        Ok(GitRemote(url))
    }
}

/// User name of a git credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitUsername(String);

impl GitUsername {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GitUsername {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<GitUsername, &'static str> {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        match !text.is_empty() && text.bytes().all(fits) {
            true => Ok(GitUsername(text.to_owned())),
            false => Err("only visible ASCII characters other than `:` are allowed"),
        }
    }
}

text_value! {
    GitRemote: "the address of a git repository", "`https://github.com/acme/app`", None,
        |remote| json!(remote.0.as_str());
    GitUsername: "a user name", "`oauth2`", None, |name| json!(name.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_is_one_repository_at_a_safe_address() {
        let parse = |text: &str| text.parse::<GitRemote>().map(|remote| remote.0.to_string());
        for text in
            ["https://git.example/a/b", "https://git.example/a/b.git", "https://git.example/a/b/"]
        {
            assert_eq!(parse(text).as_deref(), Ok("https://git.example/a/b"), "{text}");
        }
        assert!(parse("http://127.0.0.1:8000/app").is_ok());
        assert_eq!(parse("https://git.example/x/../b").as_deref(), Ok("https://git.example/b"));
        for text in [
            "http://git.example/a/b",
            "https://git.example",
            "https://git.example/",
            "https://git.example/.git",
            "https://me:pass@git.example/a/b",
            "https://git.example/a%2fb",
            "https://git.example/a//b",
            "https://git.example/a?x",
            "https://git.example/a#x",
            "git@git.example:a/b",
            "ssh://git@git.example/a/b",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
