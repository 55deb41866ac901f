//! `heeler session resume` and `heeler agent resume`: go on in a session.

use clap::Args;
use heeler_engine::GO_ON;
use heeler_model::Session;
use heeler_model::config::RuntimeType;
use heeler_store::SessionFilter;

use crate::cli::{self, Global};
use crate::commands::trigger::{self, TriggerArgs};
use crate::failure::{Code, Failure, Outcome};
use crate::place::Place;

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
pub(crate) struct How {
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
pub(crate) struct ResumeArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Arguments of `agent resume`.
#[derive(Args)]
pub(crate) struct AgentResumeArgs {
    /// The agent whose last session goes on
    #[arg(add = cli::agents())]
    agent: String,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Goes on in a session.
pub(crate) fn run(global: &Global, args: &ResumeArgs) -> Outcome {
    let place = Place::find(global)?;
    place.bring_up_to_date()?;
    let session = super::find(&place, &args.id)?;
    go_on(global, &session, &args.how)
}

/// Goes on in an agent's last session.
pub(crate) fn of_agent(global: &Global, args: &AgentResumeArgs) -> Outcome {
    let place = Place::find(global)?;
    place.bring_up_to_date()?;
    let none = |agent: &str| {
        let message = format!("{agent} has no session yet");
        Failure::message(Code::NotFound, message).hint(format!("heeler trigger {agent} -p '…'"))
    };
    let Some(reader) = place.reader()? else { return Err(none(&args.agent)) };
    let agent = place.known_agent(&reader, &args.agent)?;
    let filter = SessionFilter { agent: Some(agent.clone()), ..SessionFilter::default() };
    let last = reader.sessions(&filter, None, 1)?.pop().ok_or_else(|| none(&agent))?;
    drop(reader);
    go_on(global, &last, &args.how)
}

fn go_on(global: &Global, session: &Session, how: &How) -> Outcome {
    if session.runtime == RuntimeType::Command.as_str() {
        let message = format!("{} is a command, which has no session to go on in", session.agent);
        let hint = format!("heeler trigger {}", session.agent);
        return Err(Failure::message(Code::Refused, message).hint(hint));
    }
    let prompt = trigger::read_prompt(how.prompt.as_deref())?;
    let (id, given) = (session.id.as_str(), how.prompt.clone());
    let mut args = TriggerArgs::in_session(&session.agent, id, given, how.json);
    args.take_in = how.take_in;
    args.detach = how.detach;
    trigger::run_with(global, &args, Some(prompt.unwrap_or_else(|| GO_ON.to_owned())))
}
