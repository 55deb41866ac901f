//! `heeler session fork` and `heeler jobs fork`: a new session with the history of another.

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand, ForkedSession, SessionOperation};
use heeler_model::SessionId;
use heeler_workspace::SnapshotOmission;

use crate::cli::{self, GlobalArgs};
use crate::commands::trigger::{self, TriggerArgs};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult};
use crate::output;

/// What the help of `session fork` shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session fork sess-1a2b
  heeler session fork sess-1a2b --at-message 5 --workspace
  heeler session fork sess-1a2b --run -p 'Try it without the cache'
  heeler session resume $(heeler session fork sess-1a2b -q) -p 'And now the other way'

The source stays as it is, byte for byte. The cut is fixed when the command returns, whatever the
source does later. `session show ID --history` numbers messages and marks where a session can be
cut: behind the last answer of a finished turn. Another number moves to the nearest before it.
Exit codes: 0 forked, 4 not found, 5 refused: it cannot be cut there; with --run also those of
`trigger`.";

/// What the help of `jobs fork` shows at its end.
pub(crate) const OF_JOB: &str = "Examples:
  heeler jobs fork job-2026-11-15-k3v9q1
  heeler jobs fork job-2026-11-15-k3v9q1 --run -p 'Try it without the cache'
  heeler jobs fork job-2026-11-15-k3v9q1 --workspace --as reviewer

The new session knows what the job's session did when the job had ended, and nothing that came
later. A job that was cut off is forked behind the last answer that was finished before.
The job and its session stay as they are; `session fork` cuts a session anywhere.
Exit codes: 0 forked, 4 not found, 5 refused: the job has no session, or it cannot be cut there; with
--run also those of `trigger`.";

/// Arguments of `session fork`.
#[derive(Args)]
pub(crate) struct SessionForkArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    #[command(flatten)]
    pub(crate) how: ForkOptionArgs,
    /// The last message that the fork knows [default: the last it can be cut behind]
    #[arg(short = 'm', long, value_name = "N")]
    at_message: Option<u64>,
}

/// Arguments of `jobs fork`.
#[derive(Args)]
pub(crate) struct JobForkArgs {
    /// The job in whose session, at whose end; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    #[command(flatten)]
    pub(crate) how: ForkOptionArgs,
}

/// How a fork is made, and what comes next.
#[derive(Args)]
pub(crate) struct ForkOptionArgs {
    /// Give the fork a worktree of its own, in the state that the files were in at that message
    #[arg(short = 'W', long)]
    workspace: bool,
    /// Let the fork be another agent's
    #[arg(long = "as", value_name = "AGENT", add = cli::agents())]
    agent: Option<String>,
    /// Go on in the fork at once, and watch it
    #[arg(long)]
    run: bool,
    /// What to tell the agent; `-` reads it from standard input
    #[arg(short, long, value_name = "TEXT", requires = "run", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Forks a session.
pub(crate) fn run(global: &GlobalArgs, args: &SessionForkArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    place.migrate_database()?;
    let session = super::find(&place, &args.id)?;
    fork(global, &place, session.id, args.at_message, &args.how)
}

/// Forks the session of a job behind the job's last message.
pub(crate) fn fork_job(global: &GlobalArgs, args: &JobForkArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    place.migrate_database()?;
    drop(place.reader_for("job", &args.id)?);
    let (session, at) = place.open_records()?.fork_point_of_job(&args.id)?;
    fork(global, &place, session.id, Some(at), &args.how)
}

fn fork(
    global: &GlobalArgs,
    place: &CommandContext,
    session: SessionId,
    at_message: Option<u64>,
    how: &ForkOptionArgs,
) -> CommandResult {
    // A prompt that is none leaves no fork behind.
    let prompt = trigger::read_prompt(how.prompt.as_deref())?;
    let order = SessionOperation::Fork {
        session,
        at_message,
        agent: how.agent.clone(),
        workspace: how.workspace,
    };
    let command = DaemonCommand::Session { order, by: place.caller_name() };
    let answer = daemon::request(place, &command)?;
    let CommandReply::Session(made) = &answer else { return Err(daemon::unexpected(&answer)) };
    if how.run {
        if !how.json && !global.quiet {
            print_fork(made)?;
        }
        let (id, given) = (made.id.as_str(), how.prompt.clone());
        let mut next = TriggerArgs::in_session(&made.agent, id, given, how.json);
        next.forked = how.json.then(|| daemon::to_json(&answer));
        return trigger::run_with(global, &next, prompt)
            .map_err(|failure| fork_not_run_failure(failure, made));
    }
    if how.json || global.quiet {
        return daemon::print_answer(&answer, how.json);
    }
    output::print_line(made.id.as_str())?;
    print_fork(made)?;
    Ok(output::print_note(&format!("go on in it: heeler session resume {} -p '…'", made.id))?)
}

/// Says of a fork that nothing ran in that it is there.
fn fork_not_run_failure(failure: CommandFailure, made: &ForkedSession) -> CommandFailure {
    if failure.is_silent() {
        return failure;
    }
    let made = format!("{} is made, but nothing ran in it", made.id);
    CommandFailure { error: failure.error.context(made), ..failure }
}

/// Says what the fork is, beside its id.
fn print_fork(made: &ForkedSession) -> CommandResult {
    let ForkedSession { id, parent, at_message, .. } = made;
    output::print_note(&format!("{id} has the history of {parent} up to message {at_message}"))?;
    if let Some(asked) = made.asked_for {
        let why = "a session is cut behind the last answer of a finished turn";
        output::print_note(&format!(
            "message {asked} is no place to cut: {why}, {at_message} is the last before it"
        ))?;
    }
    if made.left_behind > 0 {
        let left = output::pluralize(made.left_behind, "message");
        output::print_note(&format!(
            "{left} after that did not come along, since their turn has not ended: \
             heeler session show {parent} --history"
        ))?;
    }
    if let Some(workspace) = &made.workspace {
        output::print_note(&format!("its files are in {workspace}"))?;
    }
    for left_out in &made.left_out {
        let known: Option<SnapshotOmission> = serde_json::from_value(left_out.clone()).ok();
        let words = known.map_or_else(|| left_out.to_string(), |known| known.to_string());
        output::print_note(&format!("not in there: {words}"))?;
    }
    if !made.others.is_empty() {
        let jobs = made.others.join(", ");
        output::print_note(&format!(
            "what {jobs} had half done in the same folder may be in there"
        ))?;
    }
    Ok(())
}
