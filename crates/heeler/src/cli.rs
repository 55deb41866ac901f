//! The command line: commands, shared arguments and their help. Start at [`CliArgs`].

use std::num::NonZeroU32;

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{AccessScope, ApprovalStatus, JobStatus, SessionStatus};

use crate::commands;
use crate::completion;
use crate::context::CommandContext;
use crate::logging::LogOutputFormat;

/// Run fleets of coding agents and never lose their work
#[derive(Parser)]
#[command(
    name = "heeler",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "Start with `heeler init`, or run any command in a herdctl project: its state is adopted in place.\n\
        Exit codes: 0 ok, 1 failed, 2 usage or config, 3 no daemon, 4 not found, 5 refused, 70 internal error, 130 interrupted."
)]
pub(crate) struct CliArgs {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// Options of every command.
#[derive(Args, Clone)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Config file, or the folder to search upward from [default: working directory]
    #[arg(short, long, global = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) config: Option<Utf8PathBuf>,
    /// State directory [default: .heeler or .herdctl next to the config file]
    #[arg(
        short = 's', long = "state-dir", alias = "state", global = true, value_name = "DIR",
        env = "HEELER_STATE_DIR", hide_env_values = true, value_hint = ValueHint::DirPath
    )]
    pub(crate) state_dir: Option<Utf8PathBuf>,
    /// Log more to stderr; repeat for even more (or set HEELER_LOG)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print only results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Start the daemon, which runs the fleet's schedules and jobs
    #[command(after_help = commands::start::ABOUT)]
    Start(commands::start::StartArgs),
    /// Stop the daemon after its running jobs have finished
    #[command(after_help = commands::stop::ABOUT)]
    Stop(commands::stop::StopArgs),
    /// Replace the daemon with a new one; running jobs continue
    #[command(after_help = commands::restart::ABOUT)]
    Restart(commands::restart::RestartArgs),
    /// Make the daemon reread its config
    #[command(after_help = commands::reload::ABOUT)]
    Reload(commands::reload::ReloadArgs),
    /// Give an agent a job, watch it, and exit with its outcome
    #[command(after_help = commands::trigger::EXAMPLES)]
    Trigger(commands::trigger::TriggerArgs),
    /// Chat with an agent and the workers it starts
    #[command(after_help = commands::chat::ABOUT)]
    Chat(commands::chat::ChatArgs),
    /// Cancel running jobs (same as `jobs cancel`)
    #[command(hide = true, after_help = commands::jobs::CANCEL)]
    Cancel(commands::cancel::JobCancelArgs),
    /// Supervise one run in a prepared folder (internal: started by the daemon)
    #[command(hide = true)]
    Runner(commands::runner::RunnerArgs),
    /// Show the fleet: running jobs, upcoming jobs and failures
    #[command(after_help = commands::status::ABOUT)]
    Status(commands::status::StatusArgs),
    /// List, show and change schedules
    #[command(
        after_help = "Examples:\n  heeler schedule list\n  heeler schedule set coder nightly '0 3 * * *'\n  heeler schedule trigger coder nightly"
    )]
    Schedule {
        #[command(subcommand)]
        command: commands::schedule::ScheduleCommand,
    },
    /// Run, watch and control workflows: phases of work with approval gates
    #[command(after_help = commands::workflow::ABOUT)]
    Workflow {
        #[command(subcommand)]
        command: commands::workflow::WorkflowCommand,
    },
    /// List, show, enable and disable agents
    #[command(
        after_help = "Examples:\n  heeler agent list\n  heeler agent show coder\n  heeler agent disable coder"
    )]
    Agent {
        #[command(subcommand)]
        command: commands::agent::AgentCommand,
    },
    /// Answer questions from workflows and running agents
    #[command(
        after_help = "Examples:\n  heeler approvals list\n  heeler approvals approve ask-1a2b3c4d\n  heeler approvals reply ask-1a2b3c4d 'the second one'"
    )]
    Approvals {
        #[command(subcommand)]
        command: commands::approvals::ApprovalsCommand,
    },
    /// Summarize spending
    #[command(after_help = commands::costs::ABOUT)]
    Costs(commands::costs::CostsArgs),
    /// Open the dashboard in a browser, logged in
    #[command(after_help = commands::open::ABOUT)]
    Open(commands::open::OpenArgs),
    /// Create, list and revoke API tokens for programs
    #[command(
        after_help = "Examples:\n  heeler token create ci --scope operate --expires 30d\n  heeler token list\n  heeler token revoke ci"
    )]
    Token {
        #[command(subcommand)]
        command: commands::token::TokenCommand,
    },
    /// Manage dashboard users and their passwords
    #[command(
        after_help = "Examples:\n  heeler password set\n  heeler password set ann --scope read\n  heeler password list"
    )]
    Password {
        #[command(subcommand)]
        command: commands::password::PasswordCommand,
    },
    /// List jobs, newest first; subcommands act on one job
    Jobs(commands::jobs::JobsArgs),
    /// Show one job (herdctl's name for `jobs show`)
    #[command(hide = true)]
    Job(commands::jobs::JobArgs),
    /// Print the newest transcript rows of an agent or of the fleet
    Logs(commands::logs::LogsArgs),
    /// List, show, fork, resume and delete sessions
    Session {
        #[command(subcommand)]
        command: commands::session::SessionCommand,
    },
    /// List sessions (herdctl's name for `session list`)
    #[command(hide = true)]
    Sessions(commands::session::list::SessionListArgs),
    /// Find text in all transcripts
    Search(commands::search::SearchArgs),
    /// Create a fleet that works at once, or add an agent to one
    Init(commands::init::InitArgs),
    /// Check, show or edit the configuration
    Config {
        #[command(subcommand)]
        command: commands::config::ConfigCommand,
    },
    /// Import the state of herdctl, Last Light or agents-fleet
    Import(commands::import::ImportArgs),
    /// Check the state directory; report problems and how to fix them
    Doctor(commands::doctor::DoctorArgs),
    /// Write the state directory to one archive, even while a daemon runs
    Backup(commands::backup::BackupArgs),
    /// Restore an archive made by `backup`; newer data is kept
    Restore(commands::backup::RestoreArgs),
    /// Try Heeler in a folder of its own
    #[command(after_help = commands::demo::ABOUT)]
    Demo(commands::demo::DemoArgs),
    /// Act as a scripted agent (internal: started by a run)
    #[command(hide = true)]
    Play(commands::play::PlayArgs),
    /// Take a snapshot of this folder (internal: started by a run)
    #[command(hide = true)]
    Snapshot(commands::snapshot::SnapshotArgs),
    /// Print a shell's completion script
    #[command(
        after_help = "Bash: source <(heeler completions bash)\nAgent names, job IDs and session IDs are completed too."
    )]
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages
    Man(commands::completions::ManArgs),
    /// Print Heeler's version and its components' versions
    Version(commands::completions::VersionArgs),
}

/// Default of `--limit`.
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
    #[arg(short = 'l', long, value_name = "N", default_value = LIMIT)]
    pub(crate) limit: NonZeroU32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
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
        let limit = (limit != LIMIT).then_some(limit.as_str());
        let filters = [
            ("--agent", self.agent.as_deref()),
            ("--status", status),
            ("--since", self.since.as_deref()),
            ("--limit", limit),
            ("--before", Some(last)),
        ];
        let given =
            filters.iter().filter_map(|(name, value)| Some(format!(" {name} {}", (*value)?)));
        format!("heeler {command}{}", given.collect::<String>())
    }

    /// Returns the message for an empty list, with the reason.
    pub(crate) fn empty_list_note(
        &self,
        what: &str,
        status: Option<&str>,
        place: &CommandContext,
    ) -> String {
        let filtered = self.agent.is_some() || self.since.is_some() || status.is_some();
        match (filtered, &self.before) {
            (true, _) => format!("no {what} match"),
            (false, Some(id)) => format!("no {what} before {id}"),
            (false, None) => format!("no {what} yet in {}", place.state_dir),
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
pub(crate) fn scope() -> impl clap::builder::TypedValueParser<Value = AccessScope> {
    words(AccessScope::ALL.iter().map(|scope| scope.as_str()))
}

/// Parses a job status; an error lists the valid ones.
pub(crate) fn job_status() -> impl clap::builder::TypedValueParser<Value = JobStatus> {
    words(JobStatus::ALL.iter().map(|status| status.as_str()))
}

/// Parses an approval status.
pub(crate) fn approval_status() -> impl clap::builder::TypedValueParser<Value = ApprovalStatus> {
    words(ApprovalStatus::ALL.iter().map(|status| status.as_str()))
}

/// Parses a session status.
pub(crate) fn session_status() -> impl clap::builder::TypedValueParser<Value = SessionStatus> {
    words(SessionStatus::ALL.iter().map(|status| status.as_str()))
}

fn words<T>(
    words: impl Iterator<Item = &'static str>,
) -> impl clap::builder::TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = heeler_model::UnknownWordError> + Clone + Send + Sync + 'static,
{
    use clap::builder::TypedValueParser as _;
    clap::builder::PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
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
pub(crate) fn run_status() -> impl clap::builder::TypedValueParser<Value = WorkflowRunStatus> {
    words(WorkflowRunStatus::ALL.iter().map(|status| status.as_str()))
}

/// Completes job IDs.
pub(crate) fn jobs() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::jobs)
}

/// Rewraps the text after every command's options to the terminal: lines of a paragraph are joined,
/// indented lines stay.
pub(crate) fn reflow_help(command: clap::Command) -> clap::Command {
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(reflow_text(&text)),
        None => command,
    };
    command.mut_subcommands(reflow_help)
}

fn reflow_text(text: &str) -> String {
    let mut flowed = String::with_capacity(text.len());
    let mut before = "";
    for line in text.lines() {
        let is_apart = |line: &str| line.is_empty() || line.starts_with(' ');
        let is_own = line.starts_with("Exit codes") || before.ends_with(':');
        if !flowed.is_empty() {
            flowed.push(if is_own || is_apart(before) || is_apart(line) { '\n' } else { ' ' });
        }
        flowed.push_str(line);
        before = line;
    }
    flowed
}

impl CliCommand {
    /// Returns the log format of the command.
    pub(crate) fn log_form(&self) -> LogOutputFormat {
        match self {
            CliCommand::Start(args) if args.is_daemon() && args.json => LogOutputFormat::Json,
            CliCommand::Start(args) if args.is_daemon() => LogOutputFormat::Lines,
            _ => LogOutputFormat::Remarks,
        }
    }

    /// Returns true if the command promises JSON on stdout; its failures are then printed as JSON
    /// too.
    pub(crate) fn wants_json(&self) -> bool {
        use commands::config::ConfigCommand;
        use commands::jobs::JobsCommand;
        match self {
            CliCommand::Start(args) => args.json && !args.is_daemon(),
            CliCommand::Stop(args) => args.json,
            CliCommand::Restart(args) => args.json,
            CliCommand::Reload(args) => args.json,
            CliCommand::Schedule { command } => command.wants_json(),
            CliCommand::Workflow { command } => command.wants_json(),
            CliCommand::Agent { command } => command.wants_json(),
            CliCommand::Approvals { command } => command.wants_json(),
            CliCommand::Costs(args) => args.json,
            CliCommand::Chat(_) => false,
            CliCommand::Open(args) => args.json,
            CliCommand::Token { command } => command.wants_json(),
            CliCommand::Password { command } => command.wants_json(),
            CliCommand::Status(args) => args.json,
            CliCommand::Trigger(args) => args.json,
            CliCommand::Cancel(args) => args.json,
            CliCommand::Jobs(args) => match &args.command {
                None => args.list.page.json,
                Some(JobsCommand::Show(args)) => args.json,
                Some(JobsCommand::Logs(args)) => args.how.json,
                Some(JobsCommand::Cancel(args)) => args.json,
                Some(JobsCommand::Resume(args)) => args.json,
                Some(JobsCommand::Retry(args)) => args.json,
                Some(JobsCommand::Fork(args)) => args.how.json,
            },
            CliCommand::Job(args) => args.show.json,
            CliCommand::Logs(args) => args.how.json,
            CliCommand::Session { command } => command.wants_json(),
            CliCommand::Sessions(args) => args.page.json,
            CliCommand::Search(args) => args.json,
            CliCommand::Config { command } => match command {
                ConfigCommand::Validate(args) => args.json,
                ConfigCommand::Show(args) => args.json,
                ConfigCommand::Schema(_) | ConfigCommand::Edit(_) => false,
            },
            CliCommand::Import(args) => args.json,
            CliCommand::Doctor(args) => args.json,
            CliCommand::Backup(args) => args.json,
            CliCommand::Restore(args) => args.json,
            CliCommand::Version(args) => args.json,
            CliCommand::Init(_)
            | CliCommand::Demo(_)
            | CliCommand::Play(_)
            | CliCommand::Snapshot(_)
            | CliCommand::Runner(_)
            | CliCommand::Completions(_)
            | CliCommand::Man(_) => false,
        }
    }
}
