//! `heeler session resume` and `heeler agent resume`: go on in a session.

use clap::Args;
use heeler_engine::RESUME_PROMPT;
use heeler_model::Session;
use heeler_model::config::RuntimeType;
use heeler_store::SessionFilter;

use crate::cli::{self, GlobalArgs};
use crate::commands::trigger::{self, TriggerArgs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// What the help of `session resume` shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session resume sess-1a2b -p 'And the next one'
  heeler session resume sess-1a2b --detach

It is a new job of the session's agent, in the session, whatever state that is in: what was said in
it is known to the agent. Without a prompt the agent is told that it was interrupted.
If somebody went on with the session outside (with `claude --resume`), you are asked whether what
they said is to be taken in; --take-in says yes.
One that is in use is waited for.
Exit codes: those of `trigger`; 4 no such session, 5 refused: it moved on outside.";

/// What the help of `agent resume` shows at its end.
pub(crate) const OF_AGENT: &str = "Examples:
  heeler agent resume coder
  heeler agent resume coder -p 'And now the tests'
  heeler agent resume coder --detach

It is a new job of the agent in the session that it used last, whatever state that is in: what was
said in it is known to the agent. Without a prompt the agent is told that it was interrupted.
If somebody went on with the session outside (with `claude --resume`), you are asked whether what
they said is to be taken in; --take-in says yes.
`heeler session list --agent coder` lists the sessions; `session resume` goes on in any of them.
Exit codes: those of `trigger`; 4 no such agent, or it has no session; 5 refused.";

/// How to go on.
#[derive(Args)]
pub(crate) struct ResumeOptionArgs {
    /// What to tell the agent [default: that it was interrupted and may go on]; `-` reads it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Go on although somebody else went on with it: what they said becomes part of it
    #[arg(long)]
    take_in: bool,
    /// Print the job's id and return at once; the job goes on
    #[arg(long)]
    detach: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session resume`.
#[derive(Args)]
pub(crate) struct SessionResumeArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    #[command(flatten)]
    pub(crate) how: ResumeOptionArgs,
}

/// Arguments of `agent resume`.
#[derive(Args)]
pub(crate) struct AgentResumeArgs {
    /// The agent whose last session goes on
    #[arg(add = cli::agents())]
    agent: String,
    #[command(flatten)]
    pub(crate) how: ResumeOptionArgs,
}

/// Goes on in a session.
pub(crate) fn run(global: &GlobalArgs, args: &SessionResumeArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    place.migrate_database()?;
    let session = super::find(&place, &args.id)?;
    resume_session(global, &session, &args.how)
}

/// Goes on in an agent's last session.
pub(crate) fn resume_agent(global: &GlobalArgs, args: &AgentResumeArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    place.migrate_database()?;
    let none = |agent: &str| {
        let message = format!("{agent} has no session yet");
        CommandFailure::message(FailureCode::NotFound, message)
            .hint(format!("heeler trigger {agent} -p '…'"))
    };
    let Some(reader) = place.open_reader()? else { return Err(none(&args.agent)) };
    let agent = place.find_agent(&reader, &args.agent)?;
    let filter = SessionFilter { agent: Some(agent.clone()), ..SessionFilter::default() };
    let last = reader.sessions(&filter, None, 1)?.pop().ok_or_else(|| none(&agent))?;
    drop(reader);
    resume_session(global, &last, &args.how)
}

fn resume_session(global: &GlobalArgs, session: &Session, how: &ResumeOptionArgs) -> CommandResult {
    if session.runtime == RuntimeType::Command.as_str() {
        let message = format!("{} is a command, which has no session to go on in", session.agent);
        let hint = format!("heeler trigger {}", session.agent);
        return Err(CommandFailure::message(FailureCode::Refused, message).hint(hint));
    }
    let prompt = trigger::read_prompt(how.prompt.as_deref())?;
    let (id, given) = (session.id.as_str(), how.prompt.clone());
    let mut args = TriggerArgs::in_session(&session.agent, id, given, how.json);
    args.take_in = how.take_in;
    args.detach = how.detach;
    trigger::run_with(global, &args, Some(prompt.unwrap_or_else(|| RESUME_PROMPT.to_owned())))
}
