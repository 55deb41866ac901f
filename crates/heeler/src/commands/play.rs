//! `heeler play`: the scripted agent as a process. The runner starts it; people have `trigger`.

use camino::Utf8PathBuf;
use clap::Args;
use heeler_model::AgentSessionId;
use heeler_model::run::SessionStart;
use heeler_runner::scripted::{self, ScriptedAgentOptions};

use crate::context;
use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Arguments of `play`. They are Claude's where Claude has such a flag.
#[derive(Args)]
pub(crate) struct PlayArgs {
    /// What is played
    #[arg(long, value_name = "FILE", required_unless_present = "in_new_session")]
    script: Option<Utf8PathBuf>,
    /// The user's folder
    #[arg(long, value_name = "DIR", required_unless_present = "in_new_session")]
    home: Option<Utf8PathBuf>,
    /// The session that is begun
    #[arg(long, value_name = "ID")]
    session_id: Option<AgentSessionId>,
    /// The session that is continued
    #[arg(long, value_name = "ID")]
    resume: Option<AgentSessionId>,
    /// Continue in a new session
    #[arg(long, requires = "resume", requires = "session_id")]
    fork_session: bool,
    /// The last message that a new session knows
    #[arg(long, value_name = "UUID", requires = "fork_session")]
    resume_session_at: Option<uuid::Uuid>,
    #[arg(long, value_name = "N")]
    max_turns: Option<u32>,
    #[arg(long, value_name = "USD")]
    max_budget_usd: Option<f64>,
    #[arg(long)]
    include_partial_messages: bool,
    /// Keep nothing of the session
    #[arg(long)]
    no_session_persistence: bool,
    /// The tools there are; an empty list is the only one that counts
    #[arg(long, value_name = "LIST")]
    tools: Option<String>,
    #[arg(long, value_name = "stdio")]
    permission_prompt_tool: Option<String>,
    /// Run the line on standard input in a session of its own, instead of all else
    #[arg(long)]
    in_new_session: bool,
}

/// Plays, and ends the process.
pub(crate) fn run(args: PlayArgs) -> CommandResult {
    if args.in_new_session {
        return Err(scripted::exec_in_new_session().into());
    }
    let session = session(&args)?;
    let (Some(script), Some(home)) = (args.script, args.home) else {
        return Err(CommandFailure::message(
            FailureCode::Usage,
            "`play` needs --script and --home",
        ));
    };
    let play = ScriptedAgentOptions {
        script,
        home,
        cwd: context::working_directory()?,
        program: context::program()?,
        session,
        max_turns: args.max_turns,
        max_budget_usd: args.max_budget_usd,
        partial: args.include_partial_messages,
        can_ask: args.permission_prompt_tool.is_some(),
        persists_session: !args.no_session_persistence,
        tools: args.tools.is_none_or(|tools| !tools.is_empty()),
        now: context::now,
    };
    std::process::exit(i32::from(scripted::run_scripted_agent(&play)))
}

fn session(args: &PlayArgs) -> CommandResult<SessionStart> {
    match (args.resume.clone(), args.session_id.clone(), args.fork_session) {
        (None, Some(id), false) => Ok(SessionStart::Fresh { id }),
        (Some(id), None, false) => Ok(SessionStart::Resume { id }),
        (Some(source), Some(id), true) => {
            Ok(SessionStart::Fork { source, id, at: args.resume_session_at })
        }
        _ => Err(CommandFailure::message(
            FailureCode::Usage,
            "give --session-id, --resume, or both with --fork-session",
        )),
    }
}
