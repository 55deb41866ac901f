//! Arguments that several commands share: list pages, status words, and completion of names and IDs.
//! Start at [`ListPageArgs`].

use std::num::NonZeroU32;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::engine::ArgValueCompleter;
use heeler_config::quote_shell_word;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{AccessScope, ApprovalStatus, JobStatus, SessionStatus};

use crate::completion;
use crate::context::CommandContext;

/// Default of `--number`.
const LIMIT: &str = "20";

/// Filters, page and format of a list.
#[derive(Args, Clone)]
pub(crate) struct ListPageArgs {
    /// Show only entries of this agent
    #[arg(short, long, value_name = "NAME", add = agents())]
    pub(crate) agent: Option<String>,
    /// Show only entries newer than this: an age (2h, 7d) or a date
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,
    /// Show entries older than this ID (for the next page)
    #[arg(long, value_name = "ID", add = jobs_or_sessions())]
    pub(crate) before: Option<String>,
    /// Number of entries to show
    #[arg(
        short = 'n', short_alias = 'l', long = "number", alias = "limit", value_name = "N",
        default_value = LIMIT
    )]
    pub(crate) limit: NonZeroU32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Writes the given ones of these options for a shell.
pub(crate) fn write_options(options: &[(&str, Option<&str>)]) -> String {
    let given = options.iter().filter_map(|(name, value)| {
        let value = (*value)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+,@%=".contains(c);
        Some(match !value.is_empty() && value.chars().all(is_plain) {
            true => format!(" {name} {value}"),
            false => format!(" {name} {}", quote_shell_word(value)),
        })
    });
    given.collect()
}

impl ListPageArgs {
    /// Returns the command for the next page, with the filters of this one.
    pub(crate) fn next_page_command(
        &self,
        command: &str,
        status: Option<&str>,
        last: &str,
    ) -> String {
        let limit = self.limit.to_string();
        // The default is left out, so that the command to copy stays short.
        let limit = (limit != LIMIT).then_some(limit.as_str());
        let filters = [
            ("--agent", self.agent.as_deref()),
            ("--status", status),
            ("--since", self.since.as_deref()),
            ("--number", limit),
            ("--before", Some(last)),
        ];
        format!("heeler {command}{}", write_options(&filters))
    }

    /// Returns the message for an empty list, with the reason.
    pub(crate) fn empty_list_note(
        &self,
        what: &str,
        status: Option<&str>,
        context: &CommandContext,
    ) -> String {
        let filtered = self.agent.is_some() || self.since.is_some() || status.is_some();
        match (filtered, &self.before) {
            (true, _) => format!("no {what} match"),
            (false, Some(id)) => format!("no {what} before {id}"),
            (false, None) => format!("no {what} yet in {}", context.state_dir),
        }
    }
}

/// Completes job and session IDs.
fn jobs_or_sessions() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &std::ffi::OsStr| {
        let mut found = completion::jobs(typed);
        found.extend(completion::sessions(typed));
        found
    })
}

/// Parses an access scope.
pub(crate) fn scope() -> impl TypedValueParser<Value = AccessScope> {
    words(AccessScope::ALL.iter().map(|scope| scope.as_str()))
}

/// Parses a job status; an error lists the valid ones.
pub(crate) fn job_status() -> impl TypedValueParser<Value = JobStatus> {
    words(JobStatus::ALL.iter().map(|status| status.as_str()))
}

/// Parses an approval status.
pub(crate) fn approval_status() -> impl TypedValueParser<Value = ApprovalStatus> {
    words(ApprovalStatus::ALL.iter().map(|status| status.as_str()))
}

/// Parses a session status.
pub(crate) fn session_status() -> impl TypedValueParser<Value = SessionStatus> {
    words(SessionStatus::ALL.iter().map(|status| status.as_str()))
}

fn words<T>(words: impl Iterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = heeler_model::UnknownWordError> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

/// Completes agent names.
pub(crate) fn agents() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::agents)
}

/// Completes session IDs.
pub(crate) fn sessions() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::sessions)
}

/// Completes IDs of open approvals.
pub(crate) fn approvals() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::approvals)
}

/// Completes workflow names.
pub(crate) fn workflows() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::workflows)
}

/// Completes workflow run IDs.
pub(crate) fn workflow_runs() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::workflow_runs)
}

/// Completes workflow names and workflow run IDs.
pub(crate) fn workflows_or_runs() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &std::ffi::OsStr| {
        let mut found = completion::workflows(typed);
        found.extend(completion::workflow_runs(typed));
        found
    })
}

/// Parses the status of a workflow run.
pub(crate) fn run_status() -> impl TypedValueParser<Value = WorkflowRunStatus> {
    words(WorkflowRunStatus::ALL.iter().map(|status| status.as_str()))
}

/// Completes names of hosts.
pub(crate) fn hosts() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::hosts)
}

/// Completes job IDs.
pub(crate) fn jobs() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::jobs)
}
