//! Git remotes of a sandboxed agent: the tokens that the proxy has, and the settings by which the
//! agent's git finds the proxy.

use heeler_egress::{GIT_PATH, GitRemoteAccess};
use heeler_model::run::GitAccessSpec;
use indexmap::IndexMap;
use thiserror::Error;
use url::Url;

use super::PROXY_PORT;
use super::credentials::PLACEHOLDER;

/// Variable with the number of git settings in the environment.
const CONFIG_COUNT: &str = "GIT_CONFIG_COUNT";

/// Reason that a git remote has no credential.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum GitAccessError {
    #[error(
        "`sandbox.git` needs the variable {0}, which is not in the agent's environment: set it, and list it \
         in the agent's `secrets`"
    )]
    Missing(String),
    #[error(
        "`sandbox.git` needs the proxy of the run, which a container with `network: bridge` does not use: \
         set `docker: {{network: none}}`, or remove `sandbox.git`"
    )]
    NoProxy,
    #[error("`sandbox.git` names `{0}`, which is no address")]
    Address(String),
}

/// Finds the tokens of the remotes in the agent's environment.
pub(super) fn find_git_access(
    remotes: &[GitAccessSpec],
    env: &IndexMap<String, String>,
) -> Result<Vec<GitRemoteAccess>, GitAccessError> {
    let find = |remote: &GitAccessSpec| {
        let token = env.get(&remote.token_env).map(|value| value.trim());
        let token = token.filter(|value| !value.is_empty());
        let missing = || GitAccessError::Missing(remote.token_env.clone());
        Ok(GitRemoteAccess {
            url: remote.url.parse().map_err(|_| GitAccessError::Address(remote.url.clone()))?,
            username: remote.username.clone(),
            token: token.ok_or_else(missing)?.to_owned(),
        })
    };
    remotes.iter().map(find).collect()
}

/// Returns the variables that send the agent's git to the proxy, and placeholders for the tokens.
pub(super) fn git_variables(
    remotes: &[GitRemoteAccess],
    env: &IndexMap<String, String>,
) -> Vec<(String, String)> {
    if remotes.is_empty() {
        return Vec::new();
    }
    // Some tokens are in two variables.
    let is_token = |value: &str| remotes.iter().any(|remote| remote.token == value.trim());
    let tokens = env.iter().filter(|(_, value)| is_token(value));
    let mut variables: Vec<(String, String)> =
        tokens.map(|(name, _)| (name.clone(), PLACEHOLDER.to_owned())).collect();
    let first: usize = env.get(CONFIG_COUNT).and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut count = first;
    for (key, value) in remotes.iter().flat_map(|remote| git_settings(&remote.url)) {
        variables.push((format!("GIT_CONFIG_KEY_{count}"), key));
        variables.push((format!("GIT_CONFIG_VALUE_{count}"), value));
        count += 1;
    }
    variables.push((CONFIG_COUNT.to_owned(), count.to_string()));
    variables
}

/// Returns the settings that replace the address of a remote, also in the forms for SSH.
fn git_settings(url: &Url) -> Vec<(String, String)> {
    let (host, path) = (url.host_str().unwrap_or_default(), url.path().trim_start_matches('/'));
    let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let key = format!("url.http://127.0.0.1:{PROXY_PORT}{GIT_PATH}{authority}/{path}.insteadOf");
    let forms = [url.to_string(), format!("git@{host}:{path}"), format!("ssh://git@{host}/{path}")];
    forms.into_iter().map(|form| (key.clone(), form)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(url: &str) -> GitAccessSpec {
        GitAccessSpec {
            url: url.to_owned(),
            username: "x-access-token".to_owned(),
            token_env: "DEPLOY_TOKEN".to_owned(),
        }
    }

    #[test]
    fn the_agents_git_is_sent_to_the_proxy_and_has_no_token() {
        let env = [
            ("DEPLOY_TOKEN", "tok-1"),
            ("SAME", "tok-1"),
            ("OTHER", "x"),
            ("GIT_CONFIG_COUNT", "1"),
        ];
        let env: IndexMap<String, String> =
            env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let found = find_git_access(&[remote("https://git.example/acme/app")], &env).unwrap();
        assert_eq!(found[0].token, "tok-1");
        let variables: IndexMap<String, String> = git_variables(&found, &env).into_iter().collect();
        assert!(variables.values().all(|value| !value.contains("tok-1")));
        assert_eq!(
            (&variables["DEPLOY_TOKEN"][..], &variables["SAME"][..]),
            (PLACEHOLDER, PLACEHOLDER)
        );
        assert!(!variables.contains_key("OTHER"));
        assert_eq!(variables["GIT_CONFIG_COUNT"], "4");
        let key = "url.http://127.0.0.1:3128/.heeler-git/git.example/acme/app.insteadOf";
        for (number, form) in [
            (1, "https://git.example/acme/app"),
            (2, "git@git.example:acme/app"),
            (3, "ssh://git@git.example/acme/app"),
        ] {
            assert_eq!(variables[&format!("GIT_CONFIG_KEY_{number}")], key);
            assert_eq!(variables[&format!("GIT_CONFIG_VALUE_{number}")], form);
        }
    }

    #[test]
    fn a_remote_without_a_token_is_refused_with_the_cure() {
        let error = find_git_access(&[remote("https://git.example/a")], &IndexMap::new());
        assert_eq!(error.unwrap_err(), GitAccessError::Missing("DEPLOY_TOKEN".to_owned()));
        assert!(git_variables(&[], &IndexMap::new()).is_empty());
    }
}
