//! Shell completion of values: agents, jobs, sessions, approvals and workflows of the current
//! fleet.
//!
//! Completion must never fail or print: if nothing can be read, nothing is offered. The state may
//! come from another person, so names that no config could contain are not offered: they would be
//! passed to a shell.

use std::ffi::OsStr;

use camino::Utf8PathBuf;
use clap_complete::CompletionCandidate;
use heeler_model::{AgentName, ApprovalStatus, LocalName};
use heeler_query::hosts::host_role;
use heeler_store::{ApprovalFilter, JobFilter, StateDir, StoreReader, WorkflowRunFilter};

use crate::context::CommandContext;
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::text_file;

/// Jobs, sessions or runs that are offered.
const JOBS_MAX: usize = 50;
/// Approvals that are offered.
const APPROVALS_MAX: usize = 50;
/// Characters of a question that are shown next to its ID.
const HELP_CHARS_MAX: usize = 60;

fn find_context() -> Option<CommandContext> {
    // The words typed so far are this process's arguments; clap does not pass them to completers.
    let words: Vec<String> = std::env::args().collect();
    let option = |names: [&str; 2]| {
        let at = words.iter().position(|word| names.contains(&word.as_str()))?;
        words.get(at + 1).map(Utf8PathBuf::from)
    };
    let global = GlobalArgs {
        // The spelling `--config=PATH` is not recognized; completion then offers the local fleet.
        config: option(["-c", "--config"]),
        state_dir: option(["-s", "--state-dir"]),
        verbose: 0,
        quiet: true,
    };
    CommandContext::find(&global).ok()
}

/// Opens the state without adopting it: pressing Tab must change nothing.
fn reader(context: &CommandContext) -> Option<StoreReader> {
    StoreReader::open(&StateDir::open(&context.state_dir).ok()?).ok()
}

/// Offers the agents of the config and those with state.
pub(crate) fn agents(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(context) = find_context() else { return Vec::new() };
    let config = context.config.as_deref();
    let loaded =
        config.and_then(|file| fleet_config::try_load(&context, file, &text_file::read_text).ok());
    let mut names: Vec<String> = match loaded {
        Some(Ok(loaded)) => loaded.agents.iter().map(|agent| agent.name.to_string()).collect(),
        _ => Vec::new(),
    };
    // An agent that was removed from the config still has jobs to ask for.
    names.extend(reader(&context).and_then(|reader| reader.agent_names().ok()).unwrap_or_default());
    names.sort();
    names.dedup();
    let typed = typed.to_string_lossy();
    names
        .into_iter()
        // A name from the database may have been written by another program, with any characters.
        .filter(|name| name.starts_with(&*typed) && name.parse::<AgentName>().is_ok())
        .map(CompletionCandidate::new)
        .collect()
}

/// Offers the hosts of the fleet, with their role.
pub(crate) fn hosts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(reader) = find_context().and_then(|context| reader(&context)) else {
        return Vec::new();
    };
    let typed = typed.to_string_lossy();
    let hosts = reader.hosts().unwrap_or_default().into_iter();
    hosts
        .filter(|host| host.name.starts_with(&*typed) && host.name.parse::<LocalName>().is_ok())
        .map(|host| {
            let help = host_role(&host);
            CompletionCandidate::new(host.name.clone()).help(Some(help.into()))
        })
        .collect()
}

/// Offers open approvals, with their questions.
pub(crate) fn approvals(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(reader) = find_context().and_then(|context| reader(&context)) else {
        return Vec::new();
    };
    let typed = typed.to_string_lossy();
    let status = Some(ApprovalStatus::Pending);
    let filter = ApprovalFilter { status, ..ApprovalFilter::default() };
    let waiting = reader.approvals(&filter, None, APPROVALS_MAX).unwrap_or_default();
    waiting
        .into_iter()
        .filter(|approval| approval.id.as_str().starts_with(&*typed))
        .map(|approval| {
            let help = output::truncate_chars(&output::one_line(&approval.summary), HELP_CHARS_MAX);
            CompletionCandidate::new(approval.id.as_str()).help(Some(help.into()))
        })
        .collect()
}

/// Offers the newest jobs, with their agent, status and age.
pub(crate) fn jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(reader) = find_context().and_then(|context| reader(&context)) else {
        return Vec::new();
    };
    let now = process_env::now();
    let typed = typed.to_string_lossy();
    let newest = reader.jobs(&JobFilter::default(), None, JOBS_MAX).unwrap_or_default();
    newest
        .into_iter()
        .filter(|head| head.id.as_str().starts_with(&*typed))
        .map(|head| {
            let help = format!(
                "{} {}, {}",
                output::one_line(&head.agent),
                head.status,
                output::relative_time(head.started_at, now)
            );
            CompletionCandidate::new(head.id.as_str()).help(Some(help.into()))
        })
        .collect()
}

/// Offers the sessions used last.
pub(crate) fn sessions(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(reader) = find_context().and_then(|context| reader(&context)) else {
        return Vec::new();
    };
    let typed = typed.to_string_lossy();
    let newest = reader.sessions(&heeler_store::SessionFilter::default(), None, JOBS_MAX);
    newest
        .unwrap_or_default()
        .into_iter()
        .filter(|session| session.id.as_str().starts_with(&*typed))
        .map(|session| {
            let help = output::one_line(&session.agent);
            CompletionCandidate::new(session.id.as_str()).help(Some(help.into()))
        })
        .collect()
}

/// Offers the workflows of the fleet.
pub(crate) fn workflows(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(context) = find_context() else { return Vec::new() };
    let Some(config) = context.config.as_deref() else { return Vec::new() };
    let loaded = fleet_config::try_load(&context, config, &text_file::read_text);
    let Ok(Ok(loaded)) = loaded else { return Vec::new() };
    let typed = typed.to_string_lossy();
    let named = loaded.workflows.iter().filter(|it| it.workflow.name.as_str().starts_with(&*typed));
    named
        .map(|it| {
            let help = it.workflow.description.as_deref().map(output::one_line);
            CompletionCandidate::new(it.workflow.name.as_str()).help(help.map(Into::into))
        })
        .collect()
}

/// Offers the newest workflow runs.
pub(crate) fn workflow_runs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(reader) = find_context().and_then(|context| reader(&context)) else {
        return Vec::new();
    };
    let now = process_env::now();
    let typed = typed.to_string_lossy();
    let newest = reader.workflow_runs(&WorkflowRunFilter::default(), None, JOBS_MAX);
    let newest = newest.unwrap_or_default().into_iter();
    newest
        .filter(|head| head.id.as_str().starts_with(&*typed))
        .map(|head| {
            let (name, when) = (output::one_line(&head.workflow), head.started_at);
            let help = format!("{name} {}, {}", head.status, output::relative_time(when, now));
            CompletionCandidate::new(head.id.as_str()).help(Some(help.into()))
        })
        .collect()
}
