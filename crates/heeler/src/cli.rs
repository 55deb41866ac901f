//! The command line: what can be typed, and the help that teaches it.

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

/// Runs fleets of coding agents and never loses their work.
#[derive(Parser)]
#[command(
    name = "heeler",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "Start with `heeler init`, or run any command in a herdctl project: it is adopted in place.\n\
        Exit codes: 0 ok, 1 failed, 2 usage or config, 3 no daemon, 4 not found, 5 refused, 70 our bug, 130 interrupted."
)]
pub(crate) struct CliArgs {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// Options that every command takes.
#[derive(Args, Clone)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Config file, or the folder to look upward from [default: the working directory]
    #[arg(short, long, global = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) config: Option<Utf8PathBuf>,
    /// State directory [default: .heeler or .herdctl beside the config file]
    #[arg(
        short = 's', long = "state-dir", alias = "state", global = true, value_name = "DIR",
        env = "HEELER_STATE_DIR", hide_env_values = true, value_hint = ValueHint::DirPath
    )]
    pub(crate) state_dir: Option<Utf8PathBuf>,
    /// Say more on stderr; repeat for more still (or set HEELER_LOG)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Say nothing but results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Run the fleet: schedules, queue, recovery
    #[command(after_help = commands::start::ABOUT)]
    Start(commands::start::StartArgs),
    /// End the daemon; jobs that run are waited for
    #[command(after_help = commands::stop::ABOUT)]
    Stop(commands::stop::StopArgs),
    /// Let a new daemon take over; jobs run on
    #[command(after_help = commands::restart::ABOUT)]
    Restart(commands::restart::RestartArgs),
    /// Let the daemon read its config again
    #[command(after_help = commands::reload::ABOUT)]
    Reload(commands::reload::ReloadArgs),
    /// Ask an agent to do something, watch it, and end with its outcome
    #[command(after_help = commands::trigger::EXAMPLES)]
    Trigger(commands::trigger::TriggerArgs),
    /// Talk with an agent, and with the workers that it sets to work
    #[command(after_help = commands::chat::ABOUT)]
    Chat(commands::chat::ChatArgs),
    /// End running jobs (the same as `jobs cancel`)
    #[command(hide = true, after_help = commands::jobs::CANCEL)]
    Cancel(commands::cancel::JobCancelArgs),
    /// Run one agent in a folder that is prepared for it; the engine does that
    #[command(hide = true)]
    Runner(commands::runner::RunnerArgs),
    /// Show the fleet: what runs, what comes next, what failed
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
    /// Run, watch and steer workflows: phases that agents do, in order, with your consent
    #[command(after_help = commands::workflow::ABOUT)]
    Workflow {
        #[command(subcommand)]
        command: commands::workflow::WorkflowCommand,
    },
    /// List, show and switch off agents
    #[command(
        after_help = "Examples:\n  heeler agent list\n  heeler agent show coder\n  heeler agent disable coder"
    )]
    Agent {
        #[command(subcommand)]
        command: commands::agent::AgentCommand,
    },
    /// Answer what workflows and running agents ask people
    #[command(
        after_help = "Examples:\n  heeler approvals list\n  heeler approvals approve ask-1a2b3c4d\n  heeler approvals reply ask-1a2b3c4d 'the second one'"
    )]
    Approvals {
        #[command(subcommand)]
        command: commands::approvals::ApprovalsCommand,
    },
    /// Sum up what was spent
    #[command(after_help = commands::costs::ABOUT)]
    Costs(commands::costs::CostsArgs),
    /// Open the dashboard in a browser, logged in
    #[command(after_help = commands::open::ABOUT)]
    Open(commands::open::OpenArgs),
    /// Make, list and revoke tokens by which programs use the API
    #[command(
        after_help = "Examples:\n  heeler token create ci --scope operate --expires 30d\n  heeler token list\n  heeler token revoke ci"
    )]
    Token {
        #[command(subcommand)]
        command: commands::token::TokenCommand,
    },
    /// Give people passwords for the dashboard
    #[command(
        after_help = "Examples:\n  heeler password set\n  heeler password set ann --scope read\n  heeler password list"
    )]
    Password {
        #[command(subcommand)]
        command: commands::password::PasswordCommand,
    },
    /// List jobs, newest first; `jobs show`, `logs`, `cancel`, `resume`, `retry`, `fork`
    Jobs(commands::jobs::JobsArgs),
    /// Show one job (herdctl's spelling of `jobs show`)
    #[command(hide = true)]
    Job(commands::jobs::JobArgs),
    /// Print the newest transcript lines of an agent or of the fleet
    Logs(commands::logs::LogsArgs),
    /// List, show, fork, resume and delete sessions
    Session {
        #[command(subcommand)]
        command: commands::session::SessionCommand,
    },
    /// List sessions (herdctl's spelling of `session list`)
    #[command(hide = true)]
    Sessions(commands::session::list::SessionListArgs),
    /// Find text in all transcripts
    Search(commands::search::SearchArgs),
    /// Make a fleet that works at once, or add an agent to one
    Init(commands::init::InitArgs),
    /// Check, show or edit the configuration
    Config {
        #[command(subcommand)]
        command: commands::config::ConfigCommand,
    },
    /// Take over the state of herdctl, Last Light or agents-fleet
    Import(commands::import::ImportArgs),
    /// Examine the state directory; say what is wrong and the cure
    Doctor(commands::doctor::DoctorArgs),
    /// Write the state directory (database, transcripts, files) to one file, also while a daemon runs
    Backup(commands::backup::BackupArgs),
    /// Bring back what `backup` wrote; nothing newer is deleted
    Restore(commands::backup::RestoreArgs),
    /// See Heeler at work in a folder of its own
    #[command(after_help = commands::demo::ABOUT)]
    Demo(commands::demo::DemoArgs),
    /// Be a scripted agent (started by a run)
    #[command(hide = true)]
    Play(commands::play::PlayArgs),
    /// Record the work tree of this folder (started by a run)
    #[command(hide = true)]
    Snapshot(commands::snapshot::SnapshotArgs),
    /// Print a shell's completion script
    #[command(
        after_help = "Bash: source <(heeler completions bash)\nAgents, jobs and sessions complete too."
    )]
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages
    Man(commands::completions::ManArgs),
    /// Print the version, and those of what is inside
    Version(commands::completions::VersionArgs),
}

/// How many a list shows when nobody says.
const LIMIT: &str = "20";

/// Which part of a list, and in what form.
#[derive(Args, Clone)]
pub(crate) struct ListPageArgs {
    /// Only this agent's
    #[arg(short, long, value_name = "NAME", add = agents())]
    pub(crate) agent: Option<String>,
    /// Only what is newer: a length (2h, 7d) or a date
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,
    /// Only what comes after this one in the list; for the next page
    #[arg(long, value_name = "ID", add = jobs_or_sessions())]
    pub(crate) before: Option<String>,
    /// How many to show
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

    /// Says that there is nothing to show, and why.
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

/// Completes job and session ids.
fn jobs_or_sessions() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &std::ffi::OsStr| {
        let mut found = completion::jobs(typed);
        found.extend(completion::sessions(typed));
        found
    })
}

/// Reads what somebody may.
pub(crate) fn scope() -> impl clap::builder::TypedValueParser<Value = AccessScope> {
    words(AccessScope::ALL.iter().map(|scope| scope.as_str()))
}

/// Reads a job status, with the list of them on a mistake.
pub(crate) fn job_status() -> impl clap::builder::TypedValueParser<Value = JobStatus> {
    words(JobStatus::ALL.iter().map(|status| status.as_str()))
}

/// Reads the status of an approval.
pub(crate) fn approval_status() -> impl clap::builder::TypedValueParser<Value = ApprovalStatus> {
    words(ApprovalStatus::ALL.iter().map(|status| status.as_str()))
}

/// Reads a session status.
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

/// Completes session ids.
pub(crate) fn sessions() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::sessions)
}

/// Completes ids of what waits for an answer.
pub(crate) fn approvals() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::approvals)
}

/// Completes names of workflows.
pub(crate) fn workflows() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::workflows)
}

/// Completes ids of workflow runs.
pub(crate) fn workflow_runs() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::workflow_runs)
}

/// Completes names of workflows and ids of their runs.
pub(crate) fn workflows_or_runs() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &std::ffi::OsStr| {
        let mut found = completion::workflows(typed);
        found.extend(completion::workflow_runs(typed));
        found
    })
}

/// Reads the status of a workflow run.
pub(crate) fn run_status() -> impl clap::builder::TypedValueParser<Value = WorkflowRunStatus> {
    words(WorkflowRunStatus::ALL.iter().map(|status| status.as_str()))
}

/// Completes job ids.
pub(crate) fn jobs() -> ArgValueCompleter {
    ArgValueCompleter::new(completion::jobs)
}

/// Lets the words at the end of every help fit the terminal: lines of a paragraph flow together, what is
/// indented stays as it is.
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
    /// Says what is logged, and how.
    pub(crate) fn log_form(&self) -> LogOutputFormat {
        match self {
            CliCommand::Start(args) if args.is_daemon() && args.json => LogOutputFormat::Json,
            CliCommand::Start(args) if args.is_daemon() => LogOutputFormat::Lines,
            _ => LogOutputFormat::Remarks,
        }
    }

    /// Says whether stdout is promised to be JSON, so that a failure is told in JSON too.
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
