//! The API credentials of an agent: where Heeler finds them, and what the agent gets instead.

use camino::Utf8Path;
use heeler_config::{
    CredentialMode, ModelApiProtocol, PROXIED_APIS, ProxiedApiError, RuntimeType, find_proxied_api,
    proxied_agent_name,
};
use heeler_egress::ApiCredentials;
use indexmap::IndexMap;
use thiserror::Error;

/// Value that the agent has in place of a credential.
pub(super) const PLACEHOLDER: &str = "heeler-adds-the-credentials";

/// API of Claude, if the environment names no other one.
const API_BASE: &str = "https://api.anthropic.com";

const API_KEY: &str = "ANTHROPIC_API_KEY";
const AUTH_TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";
const OAUTH_TOKEN: &str = "CLAUDE_CODE_OAUTH_TOKEN";
const BASE_URL: &str = "ANTHROPIC_BASE_URL";

/// Variables that send Claude to an API that the proxy cannot log in to.
const OTHER_PROVIDERS: [&str; 3] =
    ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"];

/// Variable with further headers, which may be credentials.
const CUSTOM_HEADERS: &str = "ANTHROPIC_CUSTOM_HEADERS";

/// Reason that credentials cannot be proxied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum CredentialError {
    #[error(
        "`credentials: proxied` does not support {0}: unset it, or set `sandbox: {{credentials: agent}}` \
         to give the agent its credentials"
    )]
    Unsupported(&'static str),
    #[error(
        "no API credentials were found for `credentials: proxied`: set ANTHROPIC_API_KEY, or log in by \
         running `claude` and `/login`; or set `sandbox: {{credentials: agent}}`"
    )]
    Missing,
    #[error(
        "`credentials: proxied` is not possible: {0}; to give the agent its credentials, set `sandbox: \
         {{credentials: agent}}`"
    )]
    Program(#[from] ProxiedApiError),
}

/// Agent whose credentials are looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct CredentialOwner<'a> {
    pub(super) runtime: RuntimeType,
    /// Name that the run records for the agent's program; empty for Claude.
    pub(super) program: &'a str,
}

/// The API of an agent, and the credentials for it.
#[derive(Debug)]
pub(super) struct ApiAccess {
    pub(super) base: String,
    pub(super) protocol: ModelApiProtocol,
    pub(super) credentials: ApiCredentials,
    /// Variable by which the agent finds the API.
    pub(super) base_url_variable: &'static str,
    /// Variables that the agent has with a placeholder.
    replaced: Vec<&'static str>,
}

impl ApiAccess {
    fn is_login(&self) -> bool {
        matches!(self.credentials, ApiCredentials::LoginFile(_))
    }

    /// Returns the agent's variables in place of the credentials.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = (String, String)> {
        self.replaced.iter().map(|name| ((*name).to_owned(), PLACEHOLDER.to_owned()))
    }
}

/// Finds credentials that the proxy can add; `None` if the agent gets its credentials itself. Without a
/// mode, credentials in the environment are proxied, and a login is not: only the agent can renew it.
pub(super) fn find_api_access(
    mode: Option<CredentialMode>,
    env: &IndexMap<String, String>,
    owner: CredentialOwner<'_>,
) -> Result<Option<ApiAccess>, CredentialError> {
    let is_claude = matches!(owner.runtime, RuntimeType::Sdk | RuntimeType::Cli);
    let agent = proxied_agent_name(owner.runtime, owner.program);
    let found = match PROXIED_APIS.iter().any(|api| api.agent == agent) {
        true => find_program_key(agent, env).map(Some),
        false => find_credentials(env),
    };
    match (mode, found) {
        (Some(CredentialMode::Agent), _) => Ok(None),
        (None, found) => Ok(found.ok().flatten().filter(|access| !access.is_login())),
        // A command may need no API.
        (Some(CredentialMode::Proxied), Ok(None)) if is_claude => Err(CredentialError::Missing),
        (Some(CredentialMode::Proxied), found) => found,
    }
}

/// Finds the key of an agent that is not Claude.
fn find_program_key(
    agent: &str,
    env: &IndexMap<String, String>,
) -> Result<ApiAccess, CredentialError> {
    let value = |name: &str| env.get(name).map(String::as_str);
    let api = find_proxied_api(agent, value)?;
    Ok(ApiAccess {
        base: api.base_url(value(api.base_url_variable)),
        protocol: api.protocol,
        credentials: ApiCredentials::Fixed {
            api_key: value(api.key_variable).map(str::to_owned),
            bearer: None,
        },
        base_url_variable: api.base_url_variable,
        replaced: vec![api.key_variable],
    })
}

fn find_credentials(env: &IndexMap<String, String>) -> Result<Option<ApiAccess>, CredentialError> {
    let value = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let is_on = |name: &str| value(name).is_some_and(|value| value != "0" && value != "false");
    let unsupported = OTHER_PROVIDERS.into_iter().find(|name| is_on(name));
    let unsupported = unsupported.or_else(|| value(CUSTOM_HEADERS).map(|_| CUSTOM_HEADERS));
    if let Some(name) = unsupported {
        return Err(CredentialError::Unsupported(name));
    }
    let replaced: Vec<&'static str> = [API_KEY, AUTH_TOKEN, OAUTH_TOKEN]
        .into_iter()
        .filter(|name| value(name).is_some())
        .collect();
    let base = value(BASE_URL).map_or(API_BASE, String::as_str).to_owned();
    let access = |credentials, replaced| ApiAccess {
        base,
        protocol: ModelApiProtocol::Anthropic,
        credentials,
        base_url_variable: BASE_URL,
        replaced,
    };
    if !replaced.is_empty() {
        let api_key = value(API_KEY).cloned();
        let bearer = value(AUTH_TOKEN).or_else(|| value(OAUTH_TOKEN)).cloned();
        let credentials = ApiCredentials::Fixed { api_key, bearer };
        return Ok(Some(access(credentials, replaced)));
    }
    let folder = match (value("CLAUDE_CONFIG_DIR"), value("HOME")) {
        (Some(folder), _) => Some(Utf8Path::new(folder).to_owned()),
        (None, Some(home)) => Some(Utf8Path::new(home).join(".claude")),
        (None, None) => None,
    };
    let login = folder.map(|folder| folder.join(".credentials.json")).filter(|file| file.is_file());
    Ok(login.map(|file| {
        let credentials = ApiCredentials::LoginFile(file.into_std_path_buf());
        // With this variable Claude behaves as with a login.
        access(credentials, vec![OAUTH_TOKEN])
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(
        mode: Option<CredentialMode>,
        variables: &[(&str, &str)],
        runtime: RuntimeType,
    ) -> Result<Option<ApiAccess>, CredentialError> {
        find_of(mode, variables, CredentialOwner { runtime, program: "" })
    }

    fn find_of(
        mode: Option<CredentialMode>,
        variables: &[(&str, &str)],
        owner: CredentialOwner<'_>,
    ) -> Result<Option<ApiAccess>, CredentialError> {
        let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        find_api_access(mode, &env.collect(), owner)
    }

    #[test]
    fn the_key_of_another_program_is_replaced() {
        let owner = CredentialOwner { runtime: RuntimeType::Codex, program: "/opt/codex" };
        let variables = [("CODEX_API_KEY", "sk-1"), (API_KEY, "sk-2")];
        let access = find_of(None, &variables, owner).unwrap().unwrap();
        assert_eq!(access.base, "https://api.openai.com/v1");
        assert_eq!(
            (access.base_url_variable, access.protocol),
            ("OPENAI_BASE_URL", ModelApiProtocol::Openai)
        );
        assert_eq!(access.replaced, ["CODEX_API_KEY"]);
        let ApiCredentials::Fixed { api_key, bearer: None } = access.credentials else { panic!() };
        assert_eq!(api_key.as_deref(), Some("sk-1"));
        assert!(find_of(Some(CredentialMode::Agent), &variables, owner).unwrap().is_none());

        let goose = CredentialOwner { runtime: RuntimeType::Acp, program: "goose" };
        let variables =
            [("GOOSE_PROVIDER", "anthropic"), (API_KEY, "k"), ("ANTHROPIC_HOST", "h.example")];
        let access = find_of(None, &variables, goose).unwrap().unwrap();
        assert_eq!(
            (access.base.as_str(), access.base_url_variable),
            ("https://h.example", "ANTHROPIC_HOST")
        );
    }

    #[test]
    fn a_program_without_a_key_keeps_its_login_or_is_refused() {
        let owner = CredentialOwner { runtime: RuntimeType::Acp, program: "gemini" };
        let vertex = [("GEMINI_API_KEY", "k"), ("GOOGLE_GENAI_USE_VERTEXAI", "1")];
        for variables in [&[("HOME", "/home/a")][..], &vertex] {
            assert!(find_of(None, variables, owner).unwrap().is_none());
            let refusal = find_of(Some(CredentialMode::Proxied), variables, owner).unwrap_err();
            assert!(matches!(refusal, CredentialError::Program(_)), "{refusal}");
            assert!(refusal.to_string().contains("{credentials: agent}"), "{refusal}");
        }
        // A program that is not in the table may use Claude's API.
        let other = CredentialOwner { runtime: RuntimeType::Acp, program: "claude-acp" };
        let access = find_of(None, &[(API_KEY, "k")], other).unwrap().unwrap();
        assert_eq!(access.base_url_variable, BASE_URL);
    }

    #[test]
    fn the_agent_gets_placeholders_for_its_credentials() {
        let variables = [(API_KEY, "sk-1"), (OAUTH_TOKEN, "tok-2"), (AUTH_TOKEN, "")];
        let access = find(None, &variables, RuntimeType::Sdk).unwrap().unwrap();
        assert_eq!(access.base, API_BASE);
        assert_eq!(access.replaced, [API_KEY, OAUTH_TOKEN]);
        let placeholders: Vec<_> = access.placeholders().collect();
        assert_eq!(placeholders[0], (API_KEY.to_owned(), PLACEHOLDER.to_owned()));
        let ApiCredentials::Fixed { api_key, bearer } = access.credentials else { panic!() };
        assert_eq!((api_key.as_deref(), bearer.as_deref()), (Some("sk-1"), Some("tok-2")));
        assert!(find(Some(CredentialMode::Agent), &variables, RuntimeType::Sdk).unwrap().is_none());
    }

    #[test]
    fn a_login_is_used_without_its_content() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap();
        let home_only = [("HOME", path), (BASE_URL, "http://127.0.0.1:1")];
        let proxied = Some(CredentialMode::Proxied);
        let refusal = find(proxied, &home_only, RuntimeType::Cli).unwrap_err();
        assert_eq!(refusal, CredentialError::Missing);
        assert!(find(proxied, &home_only, RuntimeType::Command).unwrap().is_none());
        std::fs::create_dir(home.path().join(".claude")).unwrap();
        std::fs::write(home.path().join(".claude/.credentials.json"), "{}").unwrap();
        // Only Claude can renew a login, so it is proxied on request only.
        assert!(find(None, &home_only, RuntimeType::Cli).unwrap().is_none());
        let access = find(proxied, &home_only, RuntimeType::Cli).unwrap().unwrap();
        assert_eq!(
            (access.base.as_str(), access.replaced.as_slice()),
            ("http://127.0.0.1:1", &[OAUTH_TOKEN][..])
        );
        assert!(matches!(access.credentials, ApiCredentials::LoginFile(_)));
    }

    #[test]
    fn credentials_that_cannot_be_proxied_are_refused() {
        let proxied = Some(CredentialMode::Proxied);
        for name in ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", CUSTOM_HEADERS] {
            let variables = [(API_KEY, "sk-1"), (name, "1")];
            let refusal = find(proxied, &variables, RuntimeType::Sdk).unwrap_err();
            assert_eq!(refusal, CredentialError::Unsupported(name));
            assert!(find(None, &variables, RuntimeType::Sdk).unwrap().is_none());
        }
        let off = [(API_KEY, "x"), ("CLAUDE_CODE_USE_BEDROCK", "0")];
        assert!(find(proxied, &off, RuntimeType::Sdk).unwrap().is_some());
    }
}
