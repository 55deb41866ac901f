//! Repository of an agent.
//!
//! Its URL may contain a token, which is removed from the URL at once: only the URL without the
//! token is shown, logged or passed in arguments.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde_json::Value as Json;
use url::Url;

use crate::reader::{ConfigDialect, ConfigReader};
use crate::shape::ValueShape;
use crate::value::{ConfigValue, SecretText};
use crate::work_source::RepoName;
use crate::yaml::YamlNode;

/// User name and password or token for a git server.
#[derive(Clone, PartialEq, Eq)]
pub struct RepoCredentials {
    pub user: String,
    /// Password or token; may be empty if the user name is the token.
    pub password: String,
}

impl fmt::Debug for RepoCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Repository to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct RepoConfig {
    address: String,
    credentials: Option<RepoCredentials>,
    source_text: String,
}

impl RepoConfig {
    /// Returns the URL or path for git, without secrets.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the user name and token that the config contains for the repository.
    pub fn credentials(&self) -> Option<&RepoCredentials> {
        self.credentials.as_ref()
    }
}

impl fmt::Debug for RepoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Repo({})", self.address)
    }
}

/// Name of this kind of value in messages.
pub(crate) const REPO_DESCRIPTION: &str = "a repository";

impl ConfigValue for RepoConfig {
    fn shape() -> ValueShape {
        ValueShape::Format { what: REPO_DESCRIPTION, example: "`octocat/hello`", pattern: None }
    }

    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<RepoConfig> {
        let text = SecretText::read(node, reader)?;
        let is_path = ["/", "./", "../", "~/"].iter().any(|start| text.expose().starts_with(start));
        let parsed = match is_path {
            true => Ok((reader.resolve(node.at, text.expose()).into_string(), None)),
            false => parse_repo(text.expose()),
        };
        match parsed {
            Ok((address, credentials)) => {
                // The form as written has the names of variables, and never their values.
                let Json::String(written) = text.show() else { return None };
                Some(RepoConfig { address, credentials, source_text: written })
            }
            // The message does not repeat the text: it may contain a token.
            Err(reason) => {
                let message = format!("this is not {REPO_DESCRIPTION}: {reason}");
                let fault = match reader.dialect {
                    // An unusable address would only fail when the agent starts.
                    ConfigDialect::Heeler => reader.error(node.at, message),
                    ConfigDialect::Herdctl => reader.warn(node.at, message),
                };
                fault.expected("expected `owner/name` on GitHub, an address or a path");
                None
            }
        }
    }

    fn show(&self) -> Json {
        Json::String(self.source_text.clone())
    }
}

fn parse_repo(text: &str) -> Result<(String, Option<RepoCredentials>), &'static str> {
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("it has spaces");
    }
    // First, because `owner/name` would also be a relative path.
    if let Ok(name) = text.parse::<RepoName>() {
        return Ok((format!("https://github.com/{}.git", name.as_str()), None));
    }
    if text.contains("://") {
        return parse_url(text);
    }
    // The scp-like form of ssh: git@example.com:path
    let is_word = |part: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        // A leading hyphen would be an option to ssh.
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(fits)
    };
    match text.split_once(':').and_then(|(host, path)| Some((host.split_once('@')?, path))) {
        Some(((user, host), path)) if is_word(user) && is_word(host) && !path.is_empty() => {
            Ok((text.to_owned(), None))
        }
        _ => Err("it is neither `owner/name`, an address nor a path"),
    }
}

fn parse_url(text: &str) -> Result<(String, Option<RepoCredentials>), &'static str> {
    let mut url: Url = text.parse().map_err(|_| "its address is malformed")?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("its address has a `?` or `#`");
    }
    let decoded = |part: &str| {
        let text = percent_decode_str(part).decode_utf8().map_err(|_| "its user is not UTF-8")?;
        // Credentials are passed to git in a line-based protocol.
        if text.contains(['\n', '\r', '\0']) {
            Err("its user has a line break")
        } else {
            Ok(text.into_owned())
        }
    };
    // A token is often the user name, without a password.
    let credentials = match (url.username(), url.password()) {
        ("", None) => None,
        (user, password) => Some(RepoCredentials {
            user: decoded(user)?,
            password: decoded(password.unwrap_or_default())?,
        }),
    };
    match url.scheme() {
        "https" | "http" => {
            let cannot = "its address is malformed";
            // Removed from the address at once, which is shown and passed as an argument.
            url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| cannot)?;
            Ok((url.to_string(), credentials))
        }
        // The user of ssh is not a secret, and part of the address.
        "ssh" | "git" if url.password().is_none() => Ok((url.to_string(), None)),
        "ssh" | "git" => Err("only https takes a password"),
        // A local repository needs no credentials.
        "file" => Ok((url.to_string(), None)),
        _ => Err("its address must begin with https, http, ssh, git or file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let got = match parse_repo(text) {
            Ok((address, None)) => address,
            Ok((address, Some(RepoCredentials { user, password }))) => {
                format!("{address} {user}:{password}")
            }
            Err(reason) => reason.to_owned(),
        };
        assert_eq!(got, expect, "{text}");
    }

    #[test]
    fn names_addresses_and_ssh_forms_are_read() {
        check("octocat/hello", "https://github.com/octocat/hello.git");
        check("https://example.com/a/b.git", "https://example.com/a/b.git");
        check("ssh://git@example.com:22/a", "ssh://git@example.com:22/a");
        check("git@example.com:a/b.git", "git@example.com:a/b.git");
        check("file:///srv/a.git", "file:///srv/a.git");
    }

    #[test]
    fn a_token_is_taken_out_of_the_address() {
        check("https://me:s%40cret@example.com/a", "https://example.com/a me:s@cret");
        check("https://token@example.com/a", "https://example.com/a token:");
    }

    #[test]
    fn what_git_should_not_be_given_is_refused() {
        check("hello", "it is neither `owner/name`, an address nor a path");
        check("--upload-pack=x", "it is neither `owner/name`, an address nor a path");
        check("-x@example.com:a", "it is neither `owner/name`, an address nor a path");
        check("ext::sh -c x", "it has spaces");
        check("ext://x/y", "its address must begin with https, http, ssh, git or file");
        check("https://example.com/a?token=x", "its address has a `?` or `#`");
        check("ssh://a:b@example.com/a", "only https takes a password");
        check("https://a%0Ab@example.com/a", "its user has a line break");
    }
}
