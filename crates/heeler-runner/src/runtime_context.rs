//! Builds the runtime of a run.
//!
//! Start at [`build_runtime`].

use heeler_config::{
    ClientTools, KnownAgent, PermissionMode, RuntimeType, UnknownWordError, find_known_agent,
};
use heeler_model::error_chain;
use heeler_model::run::{
    ClaudeLaunchSpec, McpServerSpec, ProgramLaunchSpec, RunSpec, RuntimeLaunchSpec, SessionStart,
};
use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use crate::acp::{AcpLaunchOptions, AcpRuntime};
use crate::claude::{ClaudeCliRuntime, ClaudeLaunchOptions, SdkRuntime};
use crate::codex::{self, CODEX_AGENT, CodexLaunchOptions, CodexRuntime};
use crate::command::CommandRuntime;
use crate::conversation_text::prompt_with_conversation;
use crate::mcp::{
    self, InjectedMcpAddress, InjectedMcpServers, InjectedMcpTransport, McpBridgeEndpoint,
};
use crate::native_fork::{NativeFork, find_native_fork};
use crate::process::{LaunchArg, LaunchSpec};
use crate::program_policy::ProgramPolicy;
use crate::program_rows::TurnUsage;
use crate::qwen::{QWEN_AGENT, QwenLaunchOptions, QwenRuntime};
use crate::run::RunnerHost;
use crate::runtime::AgentRuntime;
use crate::token_budget::TokenBudget;
use crate::{scripted, session};

/// Inputs for building a runtime.
pub(crate) struct RuntimeContext<'s> {
    pub(crate) spec: &'s RunSpec,
    /// Services of the host program.
    pub(crate) host: &'s RunnerHost,
    pub(crate) injected: &'s InjectedMcpServers,
    /// HTTP endpoint of the injected servers, for the runtime that needs it.
    pub(crate) endpoint: Option<&'s McpBridgeEndpoint>,
    /// Address of the agent's API, if the proxy of the run adds the credentials.
    pub(crate) api_base: Option<&'static str>,
}

/// Builds the runtime of a run; the error says why the run must not start.
pub(crate) fn build_runtime(context: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    let RuntimeContext { spec, host, injected, endpoint, .. } = context;
    let brief = &host.brief;
    let prompt = prompt_with_conversation(spec, &brief.prompt).map_err(|it| error_chain(&it))?;
    match (spec.runtime, &brief.work) {
        (RuntimeType::Sdk, RuntimeLaunchSpec::Claude(claude)) => {
            let setup = claude_options(spec, claude, injected, &InjectedMcpTransport::InProcess);
            let sdk = SdkRuntime::claude(prompt, setup).map_err(|refusal| refusal.to_string())?;
            Ok(Box::new(sdk))
        }
        (RuntimeType::Cli, RuntimeLaunchSpec::Claude(claude)) => {
            let endpoint = endpoint.ok_or("the agent's tools have no address")?.clone();
            let setup =
                claude_options(spec, claude, injected, &InjectedMcpTransport::Http(endpoint));
            let cli =
                ClaudeCliRuntime::new(prompt, setup).map_err(|refusal| refusal.to_string())?;
            Ok(Box::new(cli))
        }
        (RuntimeType::Scripted, RuntimeLaunchSpec::Script { steps }) => {
            // The closure is kept as long as the runtime, so it owns its data.
            let (program, spec) = (host.program.clone(), (*spec).clone());
            let (steps, secrets) = (steps.clone(), brief.secrets.clone());
            let launch = move |start: &SessionStart| {
                scripted::launch(&program, &spec, &steps, &secrets, start)
            };
            Ok(Box::new(SdkRuntime::new(prompt, Box::new(launch))))
        }
        (RuntimeType::Command, RuntimeLaunchSpec::Command { command }) => {
            let runtime = CommandRuntime::new(prompt, command.clone());
            // The command of a workflow part is built when the part begins, so it is recorded
            // nowhere else.
            Ok(Box::new(if spec.keep_output { runtime.with_command_recorded() } else { runtime }))
        }
        (RuntimeType::Acp, RuntimeLaunchSpec::Acp(program)) => {
            Ok(Box::new(AcpRuntime::new(prompt, acp_options(context, program)?)))
        }
        (RuntimeType::Codex, RuntimeLaunchSpec::Codex(program)) => {
            Ok(Box::new(CodexRuntime::new(prompt, codex_options(context, program)?)))
        }
        (RuntimeType::Qwen, RuntimeLaunchSpec::Qwen(program)) => {
            Ok(Box::new(QwenRuntime::new(prompt, qwen_options(context, program)?)))
        }
        (runtime, _) => Err(format!("the brief is not one of runtime `{runtime}`")),
    }
}

fn acp_options(
    context: &RuntimeContext<'_>,
    program: &ProgramLaunchSpec,
) -> Result<AcpLaunchOptions, String> {
    let RuntimeContext { spec, host, .. } = context;
    let mode = parse_mode(program)?;
    let known = find_known_agent(&program.agent);
    Ok(AcpLaunchOptions {
        launch: known_launch(host, program),
        agent: program.agent.clone(),
        known,
        mode,
        policy: program_policy(spec, program, mode),
        client_tools: offered_tools(host, known),
        system_prompt: program.system_prompt.clone(),
        model: program.model.clone(),
        mcp_servers: configured_servers(context, program)?,
        injected: injected_servers(context)?,
        working_directory: spec.working_directory.clone(),
        native_session: native_session(spec, &program.agent)?,
        fork: native_fork(context, &program.agent)?,
        budget: TokenBudget::new(program.rates, spec.limits.budget_usd),
    })
}

/// Returns the services of the client that an agent is offered. The runner is outside of every sandbox,
/// so an agent in one would leave it by them.
fn offered_tools(host: &RunnerHost, known: Option<&'static KnownAgent>) -> ClientTools {
    let is_confined = host.brief.sandbox.is_some() || host.brief.authority.file_limits.is_some();
    known.filter(|_| !is_confined).map_or(ClientTools::NONE, |known| known.client_tools)
}

/// Returns the program with the variables that the table has for it.
fn known_launch(host: &RunnerHost, program: &ProgramLaunchSpec) -> LaunchSpec {
    let known = find_known_agent(&program.agent);
    // The agent's own environment takes precedence over that of the table.
    let table = known.map_or(&[][..], |known| known.env).iter();
    let table = table.filter(|(name, _)| !host.brief.env.contains_key(*name));
    let env = table.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let args = program.args.iter().map(|arg| LaunchArg::ConfigText("program", arg.clone()));
    LaunchSpec { program: program.program.clone(), args: args.collect(), env }
}

fn qwen_options(
    context: &RuntimeContext<'_>,
    program: &ProgramLaunchSpec,
) -> Result<QwenLaunchOptions, String> {
    let RuntimeContext { spec, host, .. } = context;
    let mode = parse_mode(program)?;
    let native_session = native_session(spec, QWEN_AGENT)?;
    let last_result = match (&spec.session.start, &native_session) {
        (SessionStart::Resume { id }, Some(_)) => session::last_result(spec, id),
        _ => None,
    };
    Ok(QwenLaunchOptions {
        launch: known_launch(host, program),
        mode,
        policy: program_policy(spec, program, mode),
        system_prompt: program.system_prompt.clone(),
        model: program.model.clone(),
        effort: program.effort,
        max_turns: spec.limits.max_turns,
        servers: qwen_servers(&configured_servers(context, program)?, &injected_servers(context)?),
        native_session,
        session_usage: last_result.as_ref().and_then(TurnUsage::of_session),
        budget: TokenBudget::new(program.rates, spec.limits.budget_usd),
    })
}

fn codex_options(
    context: &RuntimeContext<'_>,
    program: &ProgramLaunchSpec,
) -> Result<CodexLaunchOptions, String> {
    let spec = context.spec;
    let mode = parse_mode(program)?;
    let args = codex::launch_args(&context.host.brief.env, context.api_base);
    Ok(CodexLaunchOptions {
        launch: LaunchSpec { program: program.program.clone(), args, env: Vec::new() },
        mode,
        policy: program_policy(spec, program, mode),
        system_prompt: program.system_prompt.clone(),
        model: program.model.clone(),
        effort: program.effort,
        servers: codex_servers(
            &configured_servers(context, program)?,
            &injected_servers(context)?,
        )?,
        working_directory: spec.working_directory.clone(),
        is_isolated: program.is_isolated,
        native_session: native_session(spec, CODEX_AGENT)?,
        fork: native_fork(context, CODEX_AGENT)?,
        budget: TokenBudget::new(program.rates, spec.limits.budget_usd),
    })
}

fn parse_mode(program: &ProgramLaunchSpec) -> Result<PermissionMode, String> {
    program.permission_mode.parse().map_err(|error: UnknownWordError| error.to_string())
}

fn program_policy(
    spec: &RunSpec,
    program: &ProgramLaunchSpec,
    mode: PermissionMode,
) -> ProgramPolicy {
    let (protected, unreadable) = (program.protected.clone(), program.unreadable.clone());
    ProgramPolicy::new(mode, protected, unreadable, spec.working_directory.clone())
}

fn injected_servers(context: &RuntimeContext<'_>) -> Result<Vec<InjectedMcpAddress>, String> {
    let endpoint = context.endpoint.ok_or("the agent's tools have no address")?;
    Ok(mcp::injected_addresses(context.injected, endpoint))
}

/// Returns the configured servers. Those outside of the agent's sandbox are reached as the injected
/// ones are.
fn configured_servers(
    context: &RuntimeContext<'_>,
    program: &ProgramLaunchSpec,
) -> Result<IndexMap<String, McpServerSpec>, String> {
    let endpoint = context.endpoint.ok_or("the agent's tools have no address")?;
    Ok(mcp::with_host_addresses(&program.mcp_servers, context.injected, endpoint))
}

/// Returns the agent's own ID of the session that the run continues.
fn native_session(spec: &RunSpec, agent: &str) -> Result<Option<String>, String> {
    match &spec.session.start {
        SessionStart::Resume { id } => {
            session::native_session_id(spec, id, agent).map_err(|error| error_chain(&error))
        }
        SessionStart::Fresh { .. } | SessionStart::Fork { .. } | SessionStart::Continue { .. } => {
            Ok(None)
        }
    }
}

/// Returns the fork that an agent program may make of its own session.
fn native_fork(context: &RuntimeContext<'_>, agent: &str) -> Result<Option<NativeFork>, String> {
    let point = find_native_fork(context.spec, agent).map_err(|error| error_chain(&error))?;
    let prompt = context.host.brief.prompt.clone();
    Ok(point.map(|point| NativeFork { point, prompt }))
}

/// Returns the MCP servers as values of Codex's config. They pass through its standard input,
/// because they may hold secrets.
fn codex_servers(
    configured: &IndexMap<String, McpServerSpec>,
    injected: &[InjectedMcpAddress],
) -> Result<Map<String, Json>, String> {
    let mut servers = Map::new();
    for (name, server) in configured {
        let entry = match server {
            McpServerSpec::Stdio { command, args, env, .. } => {
                json!({ "command": command, "args": args, "env": env })
            }
            McpServerSpec::Http { url, headers, .. } => {
                json!({ "url": url, "http_headers": headers })
            }
            McpServerSpec::Sse { .. } => {
                return Err(format!(
                    "Codex has no MCP servers by SSE: change `mcp_servers.{name}` to `type: http`, \
                     or remove it"
                ));
            }
        };
        servers.insert(format!("mcp_servers.{name}"), entry);
    }
    // Heeler guarantees its own tools to the agent, so they replace others of the same name.
    for server in injected {
        let headers = json!({ "Authorization": server.authorization });
        // They are part of Heeler, so they need no permission.
        let entry = json!({
            "url": server.url, "http_headers": headers, "default_tools_approval_mode": "approve",
        });
        servers.insert(format!("mcp_servers.{}", server.name), entry);
    }
    Ok(servers)
}

/// Returns the MCP servers in the form of Qwen Code's settings. They pass through its standard input,
/// because they may hold secrets.
fn qwen_servers(
    configured: &IndexMap<String, McpServerSpec>,
    injected: &[InjectedMcpAddress],
) -> Map<String, Json> {
    let mut servers = Map::new();
    for (name, server) in configured {
        let (mut entry, timeout_ms) = match server {
            McpServerSpec::Stdio { command, args, env, timeout_ms, .. } => {
                (json!({ "command": command, "args": args, "env": env }), timeout_ms)
            }
            McpServerSpec::Http { url, headers, timeout_ms, .. } => {
                (json!({ "httpUrl": url, "headers": headers }), timeout_ms)
            }
            McpServerSpec::Sse { url, headers, timeout_ms, .. } => {
                (json!({ "url": url, "headers": headers }), timeout_ms)
            }
        };
        if let Some(timeout_ms) = timeout_ms.filter(|timeout_ms| *timeout_ms > 0) {
            entry["timeout"] = timeout_ms.into();
        }
        servers.insert(name.clone(), entry);
    }
    // Heeler guarantees its own tools to the agent, so they replace others of the same name.
    for server in injected {
        let headers = json!({ "Authorization": server.authorization });
        // They are part of Heeler, so they need no permission, and they may wait for people.
        let entry = json!({
            "httpUrl": server.url, "headers": headers, "trust": true,
            "timeout": mcp::CALL_TIME_MAX_MS,
        });
        servers.insert(server.name.clone(), entry);
    }
    servers
}

fn claude_options(
    spec: &RunSpec,
    claude: &ClaudeLaunchSpec,
    injected: &InjectedMcpServers,
    transport: &InjectedMcpTransport,
) -> ClaudeLaunchOptions {
    ClaudeLaunchOptions {
        brief: claude.clone(),
        limits: spec.limits.clone(),
        mcp: mcp::build_mcp_config(&claude.mcp_servers, injected, transport),
        injected: injected.names().map(str::to_owned).collect(),
        long_running: mcp::has_long_running(injected),
    }
}
