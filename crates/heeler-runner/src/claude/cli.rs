//! Claude for one prompt, without the control protocol (`runtime: cli`).
//!
//! The prompt goes in and messages come out. Questions cannot be asked, so Claude itself denies
//! calls that would need approval, and no further message can be sent. Start at
//! [`ClaudeCliRuntime`].

#[cfg(test)]
mod tests;

use heeler_model::message::parse_line;
use heeler_model::run::SessionStart;
use rustix::process::Signal;
use uuid::Uuid;

use super::args::ClaudeLaunchOptions;
use super::call_policy::CallPolicy;
use super::progress::ClaudeTurnProgress;
use super::tool_allowlist::{AllowedToolsError, ToolAllowlist};
use crate::process::LaunchSpec;
use crate::runtime::{AgentRuntime, RuntimeEffect};

/// Runtime of Claude for one prompt.
pub(crate) struct ClaudeCliRuntime {
    prompt: String,
    setup: ClaudeLaunchOptions,
    policy: CallPolicy,
    progress: ClaudeTurnProgress,
}

impl ClaudeCliRuntime {
    /// Builds the runtime; fails if the tool allowlist cannot be enforced.
    pub(crate) fn new(
        prompt: String,
        setup: ClaudeLaunchOptions,
    ) -> Result<ClaudeCliRuntime, AllowedToolsError> {
        let policy = CallPolicy::from_brief(&setup.brief, &setup.injected)?;
        // Without the control protocol there is no hook that could look at the input of a call.
        policy.allowed().map_or(Ok(()), ToolAllowlist::ensure_no_input_rules)?;
        Ok(ClaudeCliRuntime { prompt, setup, policy, progress: ClaudeTurnProgress::default() })
    }
}

impl AgentRuntime for ClaudeCliRuntime {
    fn launch_spec(&mut self, session: &SessionStart) -> LaunchSpec {
        self.setup.cli_launch(&self.policy, session)
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<RuntimeEffect> {
        // A second attempt must not continue from the first one's state.
        self.progress = ClaudeTurnProgress::default();
        // The end of the input is the end of the prompt, so no further message can follow.
        vec![RuntimeEffect::Write(self.prompt.clone().into_bytes()), RuntimeEffect::CloseInput]
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect> {
        let message = parse_line(line);
        self.progress.handle_message(&message);
        let mut steps = vec![RuntimeEffect::Message(message)];
        if self.progress.take_done() {
            steps.push(RuntimeEffect::Done);
        }
        steps
    }

    fn interrupt(&mut self) -> Vec<RuntimeEffect> {
        self.progress.request_end();
        vec![RuntimeEffect::Signal(Signal::INT)]
    }

    fn waits_for_tool(&self) -> bool {
        self.progress.waits_for_tool()
    }
}
