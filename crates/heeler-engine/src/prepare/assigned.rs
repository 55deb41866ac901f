//! Prepares a job whose agent works on another host: only what its start needs on record. That host
//! looks at the working directory, the programs and the environment. Start at
//! [`prepare_assigned_request`].

use heeler_config::AgentConfig;
use heeler_model::JobRequest;
use heeler_model::run::{AgentLaunchSpec, PROTOCOL, RunAuthority, RuntimeLaunchSpec};
use indexmap::IndexMap;

use super::{
    PrepareContext, PrepareError, configured_request, environment, find_schedule, marked_prompt,
    refuse_removed_mode,
};
use crate::resolved_request::ResolvedJobRequest;

/// Resolves a job request for an agent that works on another host.
pub(crate) fn prepare_assigned_request(
    agent: &AgentConfig,
    wanted: &JobRequest,
    around: &PrepareContext<'_>,
) -> Result<ResolvedJobRequest, PrepareError> {
    refuse_removed_mode(agent)?;
    let schedule = find_schedule(agent, wanted.schedule.as_deref())?;
    let prompt = marked_prompt(agent, schedule, wanted)?;
    let working_directory = around.directory.unwrap_or(&agent.working_directory).to_owned();
    let brief = AgentLaunchSpec {
        protocol: PROTOCOL,
        prompt,
        env: IndexMap::new(),
        // They are removed from the prompt on record.
        secrets: environment::secrets(agent, around.env),
        shared_secrets: Vec::new(),
        work: RuntimeLaunchSpec::Script { steps: Vec::new() },
        send_files_to: None,
        authority: RunAuthority::default(),
        may_start_jobs: agent.spawn.allows_jobs(),
        sandbox: None,
    };
    Ok(ResolvedJobRequest {
        is_assigned: true,
        ..configured_request((agent, schedule), wanted, around, (working_directory, brief))
    })
}
