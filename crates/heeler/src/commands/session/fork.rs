//! `heeler session fork` and `heeler jobs fork`: [`run`] and [`fork_job`].

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand, ForkedSession, SessionOperation};
use heeler_model::SessionId;
use heeler_workspace::SnapshotOmission;

use crate::commands::trigger::{self, TriggerArgs};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Help footer of `session fork`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session fork sess-1a2b
  heeler session fork sess-1a2b --at-message 5 --workspace
  heeler session fork sess-1a2b --run -p 'Try it without the cache'
  heeler session resume $(heeler session fork sess-1a2b -q) -p 'And now the other way'

The source session is not changed. The fork point is fixed when the command returns, even if the source continues. `session show ID --history` numbers the messages and marks possible
fork points: after the last answer of a finished turn. For any other number, the fork starts at the
nearest fork point before it.
Exit codes: 0 forked, 4 not found, 5 refused: not a possible fork point; with --run also those of
`trigger`.";

/// Help footer of `jobs fork`.
pub(crate) const OF_JOB: &str = "Examples:
  heeler jobs fork job-2026-11-15-k3v9q1
  heeler jobs fork job-2026-11-15-k3v9q1 --run -p 'Try it without the cache'
  heeler jobs fork job-2026-11-15-k3v9q1 --workspace --as reviewer

The new session holds the history of the job's session up to the end of the job, and nothing later.
An interrupted job is forked after its last finished answer.
The job and its session are not changed. `session fork` forks at any message.
Exit codes: 0 forked, 4 not found, 5 refused: the job has no session or no possible fork point; with
--run also those of `trigger`.";

/// Arguments of `session fork`.
#[derive(Args)]
pub(crate) struct SessionForkArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    #[command(flatten)]
    pub(crate) how: ForkOptionArgs,
    /// Last message that the fork knows [default: the last possible fork point]
    #[arg(short = 'm', long, value_name = "N")]
    at_message: Option<u64>,
}

/// Arguments of `jobs fork`.
#[derive(Args)]
pub(crate) struct JobForkArgs {
    /// Job to fork from (ID or unique prefix); the fork starts where that job ended
    #[arg(add = shared_args::jobs())]
    id: String,
    #[command(flatten)]
    pub(crate) how: ForkOptionArgs,
}

/// Options shared by `session fork` and `jobs fork`.
#[derive(Args)]
pub(crate) struct ForkOptionArgs {
    /// Give the fork its own worktree, with the files as of the fork point
    #[arg(short = 'W', long)]
    workspace: bool,
    /// Assign the fork to another agent
    ///
    /// An agent of another kind gets the conversation as text in its first prompt.
    #[arg(long = "as", alias = "agent", value_name = "AGENT", add = shared_args::agents())]
    agent: Option<String>,
    /// Continue the fork at once, and watch it
    #[arg(long)]
    run: bool,
    /// Prompt for the agent; `-` reads standard input
    #[arg(short, long, value_name = "TEXT", requires = "run", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `session fork`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionForkArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let session = context.find_session(&args.id)?;
    fork(global, &context, session.id, args.at_message, &args.how)
}

/// Runs `jobs fork`: forks the job's session after the job's last message.
pub(crate) fn fork_job(global: &GlobalArgs, args: &JobForkArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    // Fails with a better message than an empty reader would: there is no state at all.
    drop(context.reader_for("job", &args.id)?);
    let (session, at) = context.open_records()?.fork_point_of_job(&args.id)?;
    fork(global, &context, session.id, Some(at), &args.how)
}

fn fork(
    global: &GlobalArgs,
    context: &CommandContext,
    session: SessionId,
    at_message: Option<u64>,
    how: &ForkOptionArgs,
) -> CommandResult {
    // Read the prompt first: an invalid one must not leave a fork behind.
    let prompt = trigger::read_prompt(how.prompt.as_deref())?;
    let order = SessionOperation::Fork {
        session,
        at_message,
        agent: how.agent.clone(),
        workspace: how.workspace,
    };
    let command = DaemonCommand::Session { order, by: context.caller_name() };
    let answer = daemon::request(context, &command)?;
    let CommandReply::Session(made) = &answer else { return Err(daemon::unexpected(&answer)) };
    if how.run {
        if !how.json && !global.quiet {
            print_fork(made)?;
        }
        // The option is passed on too, because `-` means that standard input is used up.
        let (id, given) = (made.id.as_str(), how.prompt.clone());
        let mut next = TriggerArgs::in_session(&made.agent, id, given, how.json);
        // One JSON document must hold both the fork and the job.
        next.forked = how.json.then(|| daemon::to_json(&answer));
        return trigger::run_with(global, &next, prompt)
            .map_err(|failure| fork_not_run_failure(failure, made));
    }
    if how.json || global.quiet {
        return daemon::print_answer(&answer, how.json);
    }
    output::print_line(made.id.as_str())?;
    print_fork(made)?;
    Ok(output::print_note(&format!("continue it: heeler session resume {} -p '…'", made.id))?)
}

/// Adds to a failure that the fork exists, although nothing ran in it.
fn fork_not_run_failure(failure: CommandFailure, made: &ForkedSession) -> CommandFailure {
    // The job ran, and its outcome was printed.
    if failure.is_silent() {
        return failure;
    }
    let made = format!("{} was created, but nothing ran in it", made.id);
    CommandFailure { error: failure.error.context(made), ..failure }
}

/// Prints details of the fork, except its ID.
fn print_fork(made: &ForkedSession) -> CommandResult {
    let ForkedSession { id, parent, at_message, .. } = made;
    output::print_note(&format!("{id} has the history of {parent} up to message {at_message}"))?;
    if made.as_text {
        output::print_note(&format!(
            "{} cannot fork that session itself: its first prompt contains the conversation as text",
            made.agent
        ))?;
    }
    if let Some(asked) = made.asked_for {
        let why = "a session can be forked after the last answer of a finished turn";
        output::print_note(&format!(
            "message {asked} is no possible fork point: {why}; {at_message} is the last one before it"
        ))?;
    }
    if made.left_behind > 0 {
        let left = output::pluralize(made.left_behind, "message");
        output::print_note(&format!(
            "{left} after that were left out, because their turn has not ended: \
             heeler session show {parent} --history"
        ))?;
    }
    if let Some(workspace) = &made.workspace {
        output::print_note(&format!("its files are in {workspace}"))?;
    }
    for left_out in &made.left_out {
        // A daemon of another release may name a reason that is unknown here.
        let known: Option<SnapshotOmission> = serde_json::from_value(left_out.clone()).ok();
        let words = known.map_or_else(|| left_out.to_string(), |known| known.to_string());
        output::print_note(&format!("not included: {words}"))?;
    }
    if !made.others.is_empty() {
        let jobs = made.others.join(", ");
        output::print_note(&format!(
            "unfinished work of {jobs} in the same folder may be included"
        ))?;
    }
    Ok(())
}
