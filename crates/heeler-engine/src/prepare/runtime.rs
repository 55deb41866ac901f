//! Selects the work of a run by the agent's runtime.
//!
//! Start at [`runtime_work`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{
    AgentConfig, AgentProgram, ApprovalMode, McpServer, McpTransport, PermissionMode,
    RuntimeConfig, SecretText, TokenPrice, UsdAmount,
};
use heeler_model::run::{
    ClaudeLaunchSpec, McpServerSpec, ProgramLaunchSpec, RuntimeLaunchSpec, TokenRates,
};
use indexmap::IndexMap;
use rustix::fs::{Access, access};

use super::{PrepareError, period_millis};
use crate::claude_settings::setting_sources;

/// Default program of both claude runtimes.
const CLAUDE: &str = "claude";

/// Returns the work of the agent's runtime.
pub(crate) fn runtime_work(
    agent: &AgentConfig,
    env: &IndexMap<String, String>,
) -> Result<RuntimeLaunchSpec, PrepareError> {
    match &agent.runtime {
        RuntimeConfig::Sdk | RuntimeConfig::Cli => {
            Ok(RuntimeLaunchSpec::Claude(Box::new(claude_brief(agent, env)?)))
        }
        RuntimeConfig::Scripted(steps) => Ok(RuntimeLaunchSpec::Script { steps: steps.clone() }),
        RuntimeConfig::Command(command) => {
            Ok(RuntimeLaunchSpec::Command { command: command.clone() })
        }
        RuntimeConfig::Acp(program) => {
            Ok(RuntimeLaunchSpec::Acp(Box::new(program_brief(agent, program, env)?)))
        }
        RuntimeConfig::Codex(program) => {
            Ok(RuntimeLaunchSpec::Codex(Box::new(program_brief(agent, program, env)?)))
        }
        RuntimeConfig::Qwen(program) => {
            Ok(RuntimeLaunchSpec::Qwen(Box::new(program_brief(agent, program, env)?)))
        }
    }
}

/// Returns the launch options of an agent program that is not Claude.
fn program_brief(
    agent: &AgentConfig,
    program: &AgentProgram,
    env: &IndexMap<String, String>,
) -> Result<ProgramLaunchSpec, PrepareError> {
    let wanted = program.path.as_path();
    let found = match agent.container() {
        // The program is one of the image.
        Some(_) => Some(wanted.to_owned()),
        None => find_on_path(wanted, env.get("PATH").map_or("", String::as_str)),
    };
    let package = match (&agent.runtime, program.known) {
        (RuntimeConfig::Codex(_), _) => "Codex (npm @openai/codex)".to_owned(),
        (_, Some(known)) => format!("{} ({})", known.title, known.package),
        (_, None) => "it".to_owned(),
    };
    let servers = agent.mcp_servers.iter();
    Ok(ProgramLaunchSpec {
        program: found
            .ok_or_else(|| PrepareError::Program { program: wanted.to_owned(), package })?,
        args: program.args.clone(),
        agent: program.name().to_owned(),
        permission_mode: permission_mode(agent).to_string(),
        system_prompt: agent.system_prompt.clone(),
        model: agent.model.clone(),
        effort: agent.effort,
        mcp_servers: servers.map(|(name, server)| (name.clone(), mcp_brief(server, env))).collect(),
        protected: Vec::new(),
        unreadable: Vec::new(),
        is_isolated: agent.isolation_settings().is_some(),
        rates: agent.token_price().map(|price| token_rates(&price)),
    })
}

fn token_rates(price: &TokenPrice) -> TokenRates {
    let usd = |amount: &UsdAmount| amount.micros() as f64 / 1_000_000.0;
    let input = usd(&price.input);
    TokenRates {
        input,
        output: usd(&price.output),
        cache_read: price.cache_read.as_ref().map_or(input, usd),
        cache_write: price.cache_write.as_ref().map_or(input, usd),
    }
}

/// Returns the permission mode of a run. A review asks about each action, so no mode may answer for
/// the person.
pub(super) fn permission_mode(agent: &AgentConfig) -> PermissionMode {
    match (agent.approvals, agent.permission_mode) {
        (
            ApprovalMode::Review,
            PermissionMode::AcceptEdits | PermissionMode::BypassPermissions | PermissionMode::Auto,
        ) => PermissionMode::Default,
        (_, mode) => mode,
    }
}

/// Returns the permission mode of a run in which a person has chosen another one. Only modes that ask
/// about commands can be chosen, and a review stays one.
pub(super) fn chosen_mode(agent: &AgentConfig, chosen: &str) -> Option<PermissionMode> {
    let mode = match chosen {
        "default" => PermissionMode::Default,
        "acceptEdits" => PermissionMode::AcceptEdits,
        "plan" => PermissionMode::Plan,
        _ => return None,
    };
    (agent.approvals != ApprovalMode::Review || mode == PermissionMode::Plan).then_some(mode)
}

fn claude_brief(
    agent: &AgentConfig,
    env: &IndexMap<String, String>,
) -> Result<ClaudeLaunchSpec, PrepareError> {
    let wanted = agent.claude_path.as_ref().map_or(Utf8Path::new(CLAUDE), |path| path.as_path());
    let sources = setting_sources(agent);
    let servers = agent.mcp_servers.iter();
    Ok(ClaudeLaunchSpec {
        program: match agent.container() {
            // The program is one of the image.
            Some(_) => wanted.to_owned(),
            None => find_program(wanted, env.get("PATH").map_or("", String::as_str))?,
        },
        permission_mode: permission_mode(agent).to_string(),
        granted: Vec::new(),
        tools: agent.tools.clone(),
        allowed_tools: agent.allowed_tools.clone(),
        denied_tools: agent.denied_tools.clone(),
        protected: Vec::new(),
        instructed: Vec::new(),
        unreadable: Vec::new(),
        readable: Vec::new(),
        review: agent.approvals == ApprovalMode::Review,
        system_prompt: agent.system_prompt.clone(),
        model: agent.model.clone(),
        effort: agent.effort,
        setting_sources: sources.iter().map(ToString::to_string).collect(),
        plugins: agent.plugins.iter().map(|plugin| plugin.path.clone()).collect(),
        mcp_servers: servers.map(|(name, server)| (name.clone(), mcp_brief(server, env))).collect(),
    })
}

/// Finds a program by its path, or by its name in the directories of PATH.
fn find_program(wanted: &Utf8Path, path: &str) -> Result<Utf8PathBuf, PrepareError> {
    find_on_path(wanted, path).ok_or_else(|| PrepareError::Claude { program: wanted.to_owned() })
}

/// Returns the path of a server's program. The runner checks that no agent can write it.
fn find_host_program(command: &str, env: &IndexMap<String, String>) -> String {
    let path = env.get("PATH").map_or("", String::as_str);
    find_on_path(Utf8Path::new(command), path).map_or_else(|| command.to_owned(), String::from)
}

fn find_on_path(wanted: &Utf8Path, path: &str) -> Option<Utf8PathBuf> {
    if wanted.as_str().contains('/') {
        return Some(wanted).filter(|it| is_program(it)).map(Utf8Path::to_owned);
    }
    // A relative folder of PATH would depend on the daemon's own directory.
    let folders = path.split(':').map(Utf8Path::new).filter(|folder| folder.is_absolute());
    let mut programs = folders.map(|folder| folder.join(wanted));
    programs.find(|program| is_program(program))
}

fn is_program(path: &Utf8Path) -> bool {
    path.is_file() && access(path.as_std_path(), Access::EXEC_OK).is_ok()
}

fn mcp_brief(server: &McpServer, env: &IndexMap<String, String>) -> McpServerSpec {
    let (timeout_ms, always_load) =
        (server.timeout.map(|it| period_millis(it.0)), server.always_load);
    let exposed = |(name, value): (&String, &SecretText)| (name.clone(), value.expose().to_owned());
    match &server.transport {
        McpTransport::Stdio { command, args, env: own_env, is_on_host } => McpServerSpec::Stdio {
            command: match is_on_host {
                true => find_host_program(command, env),
                false => command.clone(),
            },
            args: args.clone(),
            env: own_env.get().iter().map(exposed).collect(),
            timeout_ms,
            always_load,
            is_on_host: *is_on_host,
        },
        McpTransport::Http { url, headers } => McpServerSpec::Http {
            url: url.expose().to_owned(),
            headers: headers.iter().map(exposed).collect(),
            timeout_ms,
            always_load,
        },
        McpTransport::Sse { url, headers } => McpServerSpec::Sse {
            url: url.expose().to_owned(),
            headers: headers.iter().map(exposed).collect(),
            timeout_ms,
            always_load,
        },
    }
}
