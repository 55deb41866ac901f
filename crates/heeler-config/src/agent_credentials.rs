//! API keys of agents that are not Claude: the variables by which a program finds its key and its API,
//! and the protocol of the API.
//!
//! By this table the proxy of a run keeps a key outside of the sandbox: the agent gets an address of the
//! proxy and a placeholder. A login in a file of the program is not in the table, because only the program
//! can renew it. Start at [`find_proxied_api`].

use thiserror::Error;

use crate::agent_program::CODEX_PROGRAM;
use crate::runtime::RuntimeType;

/// Protocol of a model's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelApiProtocol {
    /// The Messages API. The key is in `x-api-key`.
    Anthropic,
    /// The Responses API and Chat Completions. The key is in `Authorization`.
    Openai,
    /// `generateContent` and `streamGenerateContent`. The key is in `x-goog-api-key`.
    Gemini,
}

/// API of an agent program that takes a key from its environment.
#[derive(Debug, PartialEq)]
pub struct ProxiedApi {
    /// Name of the known agent, or `codex`.
    pub agent: &'static str,
    /// Variable and value by which the program uses this API.
    pub choice: Option<ApiChoice>,
    /// Variable with the key.
    pub key_variable: &'static str,
    /// Variable with the base URL.
    pub base_url_variable: &'static str,
    /// Base URL that the program uses without the variable.
    pub default_base_url: Option<&'static str>,
    pub protocol: ModelApiProtocol,
    /// Variables with which the program reaches its API in another way, or by another credential.
    unsupported: &'static [&'static str],
}

/// Value of a variable by which a program uses an API.
#[derive(Debug, PartialEq)]
pub struct ApiChoice {
    pub variable: &'static str,
    pub value: &'static str,
    /// The program uses the API without the variable, too.
    pub is_default: bool,
}

const OPENAI_HOST: &str = "https://api.openai.com";
const OPENAI_BASE: &str = "https://api.openai.com/v1";
const GEMINI_BASE: &str = "https://generativelanguage.googleapis.com";
const ANTHROPIC_BASE: &str = "https://api.anthropic.com";

/// Returns the choice of one of goose's providers. Its config file may choose too, which is not read.
const fn goose_provider(value: &'static str) -> Option<ApiChoice> {
    Some(ApiChoice { variable: "GOOSE_PROVIDER", value, is_default: false })
}

/// APIs whose keys the proxy can add.
pub const PROXIED_APIS: [ProxiedApi; 7] = [
    ProxiedApi {
        agent: CODEX_PROGRAM,
        choice: None,
        key_variable: "CODEX_API_KEY",
        base_url_variable: "OPENAI_BASE_URL",
        default_base_url: Some(OPENAI_BASE),
        protocol: ModelApiProtocol::Openai,
        unsupported: &[],
    },
    ProxiedApi {
        agent: "gemini",
        choice: None,
        key_variable: "GEMINI_API_KEY",
        base_url_variable: "GOOGLE_GEMINI_BASE_URL",
        default_base_url: Some(GEMINI_BASE),
        protocol: ModelApiProtocol::Gemini,
        unsupported: &["GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"],
    },
    ProxiedApi {
        agent: "qwen",
        choice: None,
        key_variable: "OPENAI_API_KEY",
        base_url_variable: "OPENAI_BASE_URL",
        default_base_url: Some(OPENAI_BASE),
        protocol: ModelApiProtocol::Openai,
        unsupported: &[],
    },
    ProxiedApi {
        agent: "goose",
        choice: goose_provider("openai"),
        key_variable: "OPENAI_API_KEY",
        base_url_variable: "OPENAI_HOST",
        // It adds the version itself.
        default_base_url: Some(OPENAI_HOST),
        protocol: ModelApiProtocol::Openai,
        unsupported: &["OPENAI_BASE_URL", "OPENAI_BASE_PATH"],
    },
    ProxiedApi {
        agent: "goose",
        choice: goose_provider("google"),
        key_variable: "GOOGLE_API_KEY",
        base_url_variable: "GOOGLE_HOST",
        default_base_url: Some(GEMINI_BASE),
        protocol: ModelApiProtocol::Gemini,
        unsupported: &[],
    },
    ProxiedApi {
        agent: "goose",
        choice: goose_provider("anthropic"),
        key_variable: "ANTHROPIC_API_KEY",
        base_url_variable: "ANTHROPIC_HOST",
        default_base_url: Some(ANTHROPIC_BASE),
        protocol: ModelApiProtocol::Anthropic,
        unsupported: &[],
    },
    ProxiedApi {
        agent: "copilot",
        choice: Some(ApiChoice {
            variable: "COPILOT_PROVIDER_TYPE",
            value: "openai",
            is_default: true,
        }),
        key_variable: "COPILOT_PROVIDER_API_KEY",
        base_url_variable: "COPILOT_PROVIDER_BASE_URL",
        // Without it, Copilot uses GitHub's API by a login.
        default_base_url: None,
        protocol: ModelApiProtocol::Openai,
        unsupported: &["COPILOT_PROVIDER_BEARER_TOKEN"],
    },
];

/// Reason that the proxy cannot add the key of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProxiedApiError {
    #[error("Heeler does not know the API of `{0}`")]
    UnknownAgent(String),
    #[error(
        "the API that {variable} chooses has no key that the proxy can add: set it to {values}"
    )]
    UnknownProvider { variable: &'static str, values: String },
    #[error("{0} is not set")]
    Missing(&'static str),
    #[error("{0} is set, by which the agent reaches its API in another way")]
    Unsupported(&'static str),
}

/// Returns the name in the table for an agent program: that of a known agent, or of Codex, whose
/// program has any name.
pub fn proxied_agent_name(runtime: RuntimeType, program: &str) -> &str {
    match runtime {
        RuntimeType::Codex => CODEX_PROGRAM,
        _ => program,
    }
}

/// Returns true if the table has an agent.
pub(crate) fn is_in_table(agent: &str) -> bool {
    PROXIED_APIS.iter().any(|api| api.agent == agent)
}

/// Finds the API that an agent uses by these variables, with a key that the proxy can add. `value` returns
/// the value of a variable.
pub fn find_proxied_api<'v>(
    agent: &str,
    value: impl Fn(&str) -> Option<&'v str>,
) -> Result<&'static ProxiedApi, ProxiedApiError> {
    let value = |name: &str| value(name).filter(|value| !value.is_empty());
    let is_on = |name: &str| value(name).is_some_and(|value| value != "0" && value != "false");
    let mut apis = PROXIED_APIS.iter().filter(|api| api.agent == agent).peekable();
    if apis.peek().is_none() {
        return Err(ProxiedApiError::UnknownAgent(agent.to_owned()));
    }
    let is_chosen = |api: &&ProxiedApi| match &api.choice {
        None => true,
        Some(choice) => value(choice.variable).map_or(choice.is_default, |it| it == choice.value),
    };
    let api = apis.find(is_chosen).ok_or_else(|| unknown_provider(agent))?;
    if let Some(name) = api.unsupported.iter().find(|name| is_on(name)) {
        return Err(ProxiedApiError::Unsupported(name));
    }
    let needed = match api.default_base_url {
        Some(_) => [api.key_variable, api.key_variable],
        None => [api.key_variable, api.base_url_variable],
    };
    match needed.into_iter().find(|name| value(name).is_none()) {
        Some(name) => Err(ProxiedApiError::Missing(name)),
        None => Ok(api),
    }
}

fn unknown_provider(agent: &str) -> ProxiedApiError {
    let choices: Vec<&ApiChoice> = PROXIED_APIS
        .iter()
        .filter(|api| api.agent == agent)
        .filter_map(|api| api.choice.as_ref())
        .collect();
    let values: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.value)).collect();
    ProxiedApiError::UnknownProvider {
        variable: choices.first().map_or("", |choice| choice.variable),
        values: values.join(" or "),
    }
}

impl ProxiedApi {
    /// Returns the base URL for the value of its variable. A value without a scheme is a host, as goose
    /// accepts it.
    pub fn base_url(&self, value: Option<&str>) -> String {
        match value.filter(|value| !value.is_empty()) {
            None => self.default_base_url.unwrap_or_default().to_owned(),
            Some(url) if url.contains("://") => url.to_owned(),
            Some(host) => format!("https://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_agents::find_known_agent;

    fn find(
        agent: &str,
        variables: &[(&str, &'static str)],
    ) -> Result<&'static ProxiedApi, ProxiedApiError> {
        find_proxied_api(agent, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        })
    }

    #[test]
    fn the_table_names_known_agents_only() {
        for api in &PROXIED_APIS {
            let is_known = api.agent == CODEX_PROGRAM || find_known_agent(api.agent).is_some();
            assert!(is_known, "{}", api.agent);
            assert!(is_in_table(api.agent));
        }
        assert!(!is_in_table("opencode"));
    }

    #[test]
    fn the_key_in_the_environment_is_found() {
        let codex = find("codex", &[("CODEX_API_KEY", "k")]).unwrap();
        assert_eq!(codex.base_url(None), "https://api.openai.com/v1");
        assert_eq!(codex.base_url(Some("http://127.0.0.1:1/v1")), "http://127.0.0.1:1/v1");
        let missing = ProxiedApiError::Missing("CODEX_API_KEY");
        assert_eq!(find("codex", &[("CODEX_API_KEY", "")]), Err(missing.clone()));
        assert_eq!(find("codex", &[("OPENAI_API_KEY", "k")]), Err(missing));
        let unknown = ProxiedApiError::UnknownAgent("opencode".to_owned());
        assert_eq!(find("opencode", &[("OPENAI_API_KEY", "k")]), Err(unknown));
        let gemini = [("GEMINI_API_KEY", "k"), ("GOOGLE_GENAI_USE_VERTEXAI", "false")];
        assert_eq!(find("gemini", &gemini).unwrap().protocol, ModelApiProtocol::Gemini);
        let vertex = [("GEMINI_API_KEY", "k"), ("GOOGLE_GENAI_USE_VERTEXAI", "true")];
        let unsupported = ProxiedApiError::Unsupported("GOOGLE_GENAI_USE_VERTEXAI");
        assert_eq!(find("gemini", &vertex), Err(unsupported));
    }

    #[test]
    fn the_provider_chooses_the_key() {
        let keys = [("OPENAI_API_KEY", "o"), ("GOOGLE_API_KEY", "g"), ("ANTHROPIC_API_KEY", "a")];
        let with = |name: &'static str| [&keys[..], &[("GOOSE_PROVIDER", name)]].concat();
        for (provider, key) in [
            ("openai", "OPENAI_API_KEY"),
            ("google", "GOOGLE_API_KEY"),
            ("anthropic", "ANTHROPIC_API_KEY"),
        ] {
            assert_eq!(find("goose", &with(provider)).unwrap().key_variable, key);
        }
        let unknown = find("goose", &with("ollama")).unwrap_err().to_string();
        assert!(unknown.contains("GOOSE_PROVIDER") && unknown.contains("`google`"), "{unknown}");
        assert!(find("goose", &keys).is_err(), "its config file may choose another one");
        let api = find("goose", &with("openai")).unwrap();
        assert_eq!(api.base_url(Some("api.example.com:8443")), "https://api.example.com:8443");

        let own = [("COPILOT_PROVIDER_API_KEY", "k"), ("COPILOT_PROVIDER_BASE_URL", "http://h/v1")];
        assert!(find("copilot", &own).is_ok());
        let missing = ProxiedApiError::Missing("COPILOT_PROVIDER_BASE_URL");
        assert_eq!(find("copilot", &own[..1]), Err(missing));
        let azure = [&own[..], &[("COPILOT_PROVIDER_TYPE", "azure")]].concat();
        assert!(find("copilot", &azure).is_err());
    }
}
