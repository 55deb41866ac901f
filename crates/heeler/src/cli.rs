//! The command line: the tree of commands, and the function that runs each. Start at [`CliArgs`].
//!
//! Each command is a module of `commands`, with its arguments and its help.

use clap::{ArgMatches, Parser, Subcommand};

use crate::command_effect::{self, CommandEffect};
use crate::commands;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
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
        Exit codes: 0 ok, 1 failed, 2 usage or config, 3 no daemon, 4 not found, 5 refused, 6 not trusted, 70 internal error, 130 interrupted."
)]
pub(crate) struct CliArgs {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

impl CliArgs {
    /// Runs the command that was typed.
    pub(crate) fn run(self, effect: CommandEffect) -> CommandResult {
        let global = &self.global;
        command_effect::require_trust(global, effect)?;
        match self.command {
            CliCommand::Start(args) => commands::start::run(global, &args),
            CliCommand::Stop(args) => commands::stop::run(global, &args),
            CliCommand::Restart(args) => commands::restart::run(global, &args),
            CliCommand::Reload(args) => commands::reload::run(global, &args),
            CliCommand::Schedule { command } => commands::schedule::run(global, &command),
            CliCommand::Workflow { command } => commands::workflow::run(global, &command),
            CliCommand::Agent { command } => commands::agent::run(global, &command),
            CliCommand::Approvals { command } => commands::approvals::run(global, &command),
            CliCommand::Costs(args) => commands::costs::run(global, &args),
            CliCommand::Chat(args) => commands::chat::run(global, &args),
            CliCommand::Connect { command } => commands::connect::run(global, &command),
            CliCommand::Notify { command } => commands::notify::run(global, &command),
            CliCommand::Host { command } => commands::host::run(global, &command),
            CliCommand::Open(args) => commands::open::run(global, &args),
            CliCommand::Token { command } => commands::token::run(global, &command),
            CliCommand::Password { command } => commands::password::run(global, &command),
            CliCommand::Trigger(args) => commands::trigger::run(global, &args),
            CliCommand::Cancel(args) => commands::cancel::run(global, &args),
            CliCommand::Status(args) => commands::status::run(global, &args),
            CliCommand::Jobs(args) => commands::jobs::run(global, &args),
            CliCommand::Job(args) => commands::jobs::run_job(global, &args),
            CliCommand::Logs(args) => commands::logs::run(global, &args),
            CliCommand::Session { command } => commands::session::run(global, &command),
            CliCommand::Sessions(args) => commands::session::herdctl::run(global, &args),
            CliCommand::Messages(args) => commands::messages::run(global, &args),
            CliCommand::Search(args) => commands::search::run(global, &args),
            CliCommand::Init(args) => commands::init::run(global, &args),
            CliCommand::Trust(args) => commands::trust::run(global, &args),
            CliCommand::Config { command } => commands::config::run(global, &command),
            CliCommand::Image { command } => commands::image::run(global, &command),
            CliCommand::Import(args) => commands::import::run(global, &args),
            CliCommand::Doctor(args) => commands::doctor::run(global, &args),
            CliCommand::Backup(args) => commands::backup::run(global, &args),
            CliCommand::Restore(args) => commands::backup::restore(global, &args),
            CliCommand::Migrate { command } => commands::migrate::run(global, &command),
            CliCommand::Demo(args) => commands::demo::run(&args),
            CliCommand::Completions(args) => commands::completions::run(&args),
            CliCommand::Man(args) => commands::completions::man(&args),
            CliCommand::Version(args) => commands::completions::version(&args),
            CliCommand::SelfUpdate(args) => commands::self_update::run(&args),
        }
    }
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
    /// Show the fleet: running jobs, upcoming jobs and failures
    #[command(alias = "ps", after_help = commands::status::ABOUT)]
    Status(commands::status::StatusArgs),
    /// List, show and change schedules
    #[command(
        alias = "schedules",
        after_help = "Examples:\n  heeler schedule list\n  heeler schedule set coder nightly '0 3 * * *'\n  heeler schedule trigger coder nightly"
    )]
    Schedule {
        #[command(subcommand)]
        command: commands::schedule::ScheduleCommand,
    },
    /// Run, watch and control workflows: phases of work with approval gates
    #[command(alias = "workflows", after_help = commands::workflow::ABOUT)]
    Workflow {
        #[command(subcommand)]
        command: commands::workflow::WorkflowCommand,
    },
    /// List, show, add, remove, enable and disable agents
    #[command(
        alias = "agents",
        after_help = "Examples:\n  heeler agent list\n  heeler agent show coder\n  heeler agent disable coder"
    )]
    Agent {
        #[command(subcommand)]
        command: commands::agent::AgentCommand,
    },
    /// Answer questions from workflows and running agents
    #[command(
        alias = "approval",
        after_help = "Examples:\n  heeler approvals list\n  heeler approvals approve ask-1a2b3c4d\n  heeler approvals reply ask-1a2b3c4d 'the second one'"
    )]
    Approvals {
        #[command(subcommand)]
        command: commands::approvals::ApprovalsCommand,
    },
    /// Summarize spending
    #[command(after_help = commands::costs::ABOUT)]
    Costs(commands::costs::CostsArgs),
    /// Set up a chat platform or GitHub step by step
    #[command(
        after_help = "Examples:\n  heeler connect telegram\n  heeler connect slack\n  heeler connect github"
    )]
    Connect {
        #[command(subcommand)]
        command: commands::connect::ConnectCommand,
    },
    /// List and test the channels that tell people when they are needed
    #[command(after_help = "Examples:\n  heeler notify list\n  heeler notify test phone")]
    Notify {
        #[command(subcommand)]
        command: commands::notify::NotifyCommand,
    },
    /// List, show and remove the hosts of a fleet on several machines
    #[command(
        alias = "hosts",
        after_help = "Examples:\n  heeler host list\n  heeler host show alpha\n  heeler host remove alpha"
    )]
    Host {
        #[command(subcommand)]
        command: commands::host::HostCommand,
    },
    /// Open the dashboard in a browser, logged in
    #[command(after_help = commands::open::ABOUT)]
    Open(commands::open::OpenArgs),
    /// Create, list and revoke API tokens for programs
    #[command(
        alias = "tokens",
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
    Sessions(commands::session::herdctl::SessionsArgs),
    /// List conversations in chats, and what people and agents said
    #[command(after_help = commands::messages::ABOUT)]
    Messages(commands::messages::MessagesArgs),
    /// Find text in all transcripts
    Search(commands::search::SearchArgs),
    /// Create a fleet that works at once, or add an agent to one
    Init(commands::init::InitArgs),
    /// Show what a fleet would run, and agree to it
    #[command(after_help = commands::trust::ABOUT)]
    Trust(commands::trust::TrustArgs),
    /// Check, show or edit the configuration
    Config {
        #[command(subcommand)]
        command: commands::config::ConfigCommand,
    },
    /// Build the image in which agents run (`docker`)
    Image {
        #[command(subcommand)]
        command: commands::image::ImageCommand,
    },
    /// Import the state of herdctl, Last Light or agents-fleet
    Import(commands::import::ImportArgs),
    /// Check the state directory; report problems and how to fix them
    Doctor(commands::doctor::DoctorArgs),
    /// Write the state directory to one archive, even while a daemon runs
    Backup(commands::backup::BackupArgs),
    /// Restore an archive made by `backup`; newer data is kept
    Restore(commands::backup::RestoreArgs),
    /// Move the fleet's records between SQLite and PostgreSQL
    Migrate {
        #[command(subcommand)]
        command: commands::migrate::MigrateCommand,
    },
    /// Try Heeler in a folder of its own
    #[command(after_help = commands::demo::ABOUT)]
    Demo(commands::demo::DemoArgs),
    /// Print a shell's completion script
    #[command(
        after_help = "Example for bash:\n  source <(heeler completions bash)\n\nAgent names, job IDs and session IDs are completed too."
    )]
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages
    Man(commands::completions::ManArgs),
    /// Print Heeler's version and its components' versions
    Version(commands::completions::VersionArgs),
    /// Tell whether there is a newer release, and how to install it
    #[command(after_help = commands::self_update::ABOUT)]
    SelfUpdate(commands::self_update::SelfUpdateArgs),
}

/// Returns true if the command promises JSON on stdout; its failures are then printed as JSON too.
/// The log of a daemon is no such output.
pub(crate) fn wants_json(given: &ArgMatches, command: &CliCommand) -> bool {
    let mut given = given;
    // `--json` belongs to the innermost subcommand.
    while let Some((_, of_subcommand)) = given.subcommand() {
        given = of_subcommand;
    }
    // Commands without this flag answer with an error here, which means no JSON.
    let has_flag = given.try_get_one::<bool>("json").is_ok_and(|flag| flag == Some(&true));
    has_flag && command.log_form() == LogOutputFormat::Remarks
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
        // A line after a colon begins a list, and exit codes are looked for at the start of a line.
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
            // With `-d` the flag means the format of the command's own output.
            CliCommand::Start(args) if args.is_daemon() && args.json => LogOutputFormat::Json,
            CliCommand::Start(args) if args.is_daemon() => LogOutputFormat::Lines,
            _ => LogOutputFormat::Remarks,
        }
    }
}
