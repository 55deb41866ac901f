//! Builds the runtime of a run.
//!
//! Start at [`build_runtime`].

use heeler_config::RuntimeType;
use heeler_model::run::{ClaudeLaunchSpec, RunSpec, RuntimeLaunchSpec, SessionStart};

use crate::claude::{ClaudeCliRuntime, ClaudeLaunchOptions, SdkRuntime};
use crate::command::CommandRuntime;
use crate::mcp::{self, InjectedMcpServers, InjectedMcpTransport, McpBridgeEndpoint};
use crate::run::RunnerHost;
use crate::runtime::AgentRuntime;
use crate::scripted;

/// Inputs for building a runtime.
pub(crate) struct RuntimeContext<'s> {
    pub(crate) spec: &'s RunSpec,
    /// Services of the host program.
    pub(crate) host: &'s RunnerHost,
    pub(crate) injected: &'s InjectedMcpServers,
    /// HTTP endpoint of the injected servers, for the runtime that needs it.
    pub(crate) endpoint: Option<&'s McpBridgeEndpoint>,
}

/// Builds the runtime of a run; the error says why the run must not start.
pub(crate) fn build_runtime(context: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    let RuntimeContext { spec, host, injected, endpoint } = context;
    let brief = &host.brief;
    let prompt = brief.prompt.clone();
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
        (runtime, _) => Err(format!("the brief is not one of runtime `{runtime}`")),
    }
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
