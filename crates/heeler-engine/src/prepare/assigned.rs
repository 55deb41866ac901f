//! Prepares a job whose agent works on another host: only what its start needs on record. That host
//! looks at the working directory, the programs and the environment. Start at
//! [`prepare_assigned_request`].

use heeler_config::{AgentConfig, LocalName, LogDurability};
use heeler_model::run::{AgentLaunchSpec, PROTOCOL, RunAuthority, RuntimeLaunchSpec};
use heeler_model::{JobRequest, TriggerType};
use indexmap::IndexMap;

use super::{
    PrepareContext, PrepareError, environment, find_schedule, marked_prompt, question_policy,
    refuse_removed_mode, run_limits, session_rules,
};
use crate::resolved_request::ResolvedJobRequest;

/// Resolves a job request for an agent that works on another host.
pub(crate) fn prepare_assigned_request(
    agent: &AgentConfig,
    host: &LocalName,
    wanted: &JobRequest,
    around: &PrepareContext<'_>,
) -> Result<ResolvedJobRequest, PrepareError> {
    refuse_removed_mode(agent)?;
    let schedule = find_schedule(agent, wanted.schedule.as_deref())?;
    let prompt = marked_prompt(agent, schedule, wanted)?;
    let working_directory = around.directory.unwrap_or(&agent.working_directory).to_owned();
    Ok(ResolvedJobRequest {
        agent: agent.name.clone(),
        fleet_agents: around.agents.iter().map(|agent| agent.name.clone()).collect(),
        trigger: wanted.trigger.clone(),
        schedule: schedule.map(|schedule| schedule.name.clone()),
        runtime: agent.runtime.kind(),
        working_directory,
        host: Some(host.clone()),
        output_file: wanted.output_file || schedule.is_some_and(|it| it.output_to_file),
        home: around.home.to_owned(),
        sockets: around.sockets.to_owned(),
        session: wanted.session.clone(),
        rules: session_rules(agent, schedule, wanted),
        forked_from: None,
        channel: wanted.channel.clone(),
        note: None,
        take_in: wanted.take_in,
        approvals: agent.approvals,
        max_concurrent: agent.max_concurrent,
        fleet_max_concurrent: around.max_concurrent,
        limits: run_limits(agent, schedule, wanted),
        attendance: question_policy(agent, wanted),
        sync_each_row: around.durability == LogDurability::Event,
        keep_output: wanted.phase.is_some() || wanted.trigger == TriggerType::Chat,
        keep_agent: None,
        skill_files: Vec::new(),
        github_token: Vec::new(),
        brief: AgentLaunchSpec {
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
        },
    })
}
