//! Names of repositories.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest owner or name, in bytes. GitHub's own limits are 39 and 100.
const PART_BYTES_MAX: usize = 100;

/// Repository: `owner/name`. Both parts are safe in an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GithubRepo {
    owner: String,
    name: String,
}

/// Error for a text that names no repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a repository is written as owner/name")]
pub struct GithubRepoError;

impl GithubRepo {
    pub fn owner(&self) -> &str {
        &self.owner
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for GithubRepo {
    type Err = GithubRepoError;

    fn from_str(text: &str) -> Result<GithubRepo, GithubRepoError> {
        let fits = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            // `.` and `..` would leave their place in an address.
            (1..=PART_BYTES_MAX).contains(&part.len())
                && part.bytes().all(allowed)
                && !matches!(part, "." | "..")
        };
        match text.split_once('/') {
            Some((owner, name)) if fits(owner) && fits(name) => {
                Ok(GithubRepo { owner: owner.to_owned(), name: name.to_owned() })
            }
            _ => Err(GithubRepoError),
        }
    }
}

impl fmt::Display for GithubRepo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_owner_and_a_name_are_a_repository() {
        assert_eq!("acme/app.js".parse::<GithubRepo>().unwrap().to_string(), "acme/app.js");
        for text in ["", "acme", "acme/", "/app", "a/b/c", "acme/..", "./app", "a b/c", "a/b?c"] {
            assert_eq!(text.parse::<GithubRepo>(), Err(GithubRepoError), "{text}");
        }
    }
}
