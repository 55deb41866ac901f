//! `heeler session resume` and `heeler agent resume`: [`run`] and [`resume_agent`].

use clap::Args;
use heeler_config::RuntimeType;
use heeler_engine::RESUME_PROMPT;
use heeler_model::Session;
use heeler_store::SessionFilter;

use crate::commands::trigger::{self, TriggerArgs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::shared_args;

/// Help footer of `session resume`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session resume sess-1a2b -p 'And the next one'
  heeler session resume sess-1a2b --detach

Starts a new job of the session's agent in the session, whatever the session's status. The agent knows the
earlier messages. Without a prompt, the agent is informed that it was interrupted.
If the session was continued outside Heeler (with `claude --resume`), you are asked whether to import
those messages; --take-in answers yes.
If the session is in use, the job waits.
Exit codes: those of `trigger`; 4 no such session, 5 refused: continued outside Heeler.";

/// Help footer of `agent resume`.
pub(crate) const OF_AGENT: &str = "Examples:
  heeler agent resume coder
  heeler agent resume coder -p 'And now the tests'
  heeler agent resume coder --detach

Starts a new job of the agent in the session that it used last, whatever the session's status. The agent knows
the earlier messages. Without a prompt, the agent is informed that it was interrupted.
If the session was continued outside Heeler (with `claude --resume`), you are asked whether to import
those messages; --take-in answers yes.
`heeler session list --agent coder` lists the sessions; `session resume` continues any of them.
Exit codes: those of `trigger`; 4 no such agent, or it has no session; 5 refused.";

/// Options shared by `session resume` and `agent resume`.
#[derive(Args)]
pub(crate) struct ResumeOptionArgs {
    /// Prompt; `-` reads standard input [default: a note about the interruption]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Continue even if the session has external messages, and import them
    #[arg(long)]
    take_in: bool,
    /// Print the job's ID and return at once; the job continues
    #[arg(long)]
    detach: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session resume`.
#[derive(Args)]
pub(crate) struct SessionResumeArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    #[command(flatten)]
    pub(crate) how: ResumeOptionArgs,
}

/// Arguments of `agent resume`.
#[derive(Args)]
pub(crate) struct AgentResumeArgs {
    /// Agent name
    #[arg(add = shared_args::agents())]
    agent: String,
    #[command(flatten)]
    pub(crate) how: ResumeOptionArgs,
}

/// Runs `session resume`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionResumeArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let session = context.find_session(&args.id)?;
    resume_session(global, &session, &args.how)
}

/// Runs `agent resume`.
pub(crate) fn resume_agent(global: &GlobalArgs, args: &AgentResumeArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let none = |agent: &str| {
        let message = format!("{agent} has no session yet");
        CommandFailure::message(FailureCode::NotFound, message)
            .hint(format!("heeler trigger {agent} -p '…'"))
    };
    // Without any state the name cannot be checked, but there is certainly no session.
    let Some(reader) = context.open_reader()? else { return Err(none(&args.agent)) };
    let agent = context.find_agent(&reader, &args.agent)?;
    let filter = SessionFilter { agent: Some(agent.clone()), ..SessionFilter::default() };
    // The list has the most recently used session first.
    let last = reader.sessions(&filter, None, 1)?.pop().ok_or_else(|| none(&agent))?;
    drop(reader);
    resume_session(global, &last, &args.how)
}

fn resume_session(global: &GlobalArgs, session: &Session, how: &ResumeOptionArgs) -> CommandResult {
    // Its sessions are only records of output: a command does not know what it printed before.
    if session.runtime == RuntimeType::Command.as_str() {
        let message =
            format!("{} has the runtime `command`, which has no session to resume", session.agent);
        let hint = format!("heeler trigger {}", session.agent);
        return Err(CommandFailure::message(FailureCode::Refused, message).hint(hint));
    }
    let prompt = trigger::read_prompt(how.prompt.as_deref())?;
    // The option is passed on too, because `-` means that standard input is used up.
    let (id, given) = (session.id.as_str(), how.prompt.clone());
    let mut args = TriggerArgs::in_session(&session.agent, id, given, how.json);
    args.take_in = how.take_in;
    args.detach = how.detach;
    trigger::run_with(global, &args, Some(prompt.unwrap_or_else(|| RESUME_PROMPT.to_owned())))
}
