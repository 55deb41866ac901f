//! `heeler play`: the scripted agent as a process. Started by the runner; people use `trigger`.

use camino::Utf8PathBuf;
use clap::Args;
use heeler_model::AgentSessionId;
use heeler_model::run::SessionStart;
use heeler_runner::scripted::{self, ScriptedAgentOptions};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::process_env;

/// Arguments of `play`. They match Claude's flags where Claude has such a flag.
#[derive(Args)]
pub(crate) struct PlayArgs {
    /// Script to follow
    #[arg(long, value_name = "FILE", required_unless_present = "in_new_session")]
    script: Option<Utf8PathBuf>,
    /// Heeler's home folder
    #[arg(long, value_name = "DIR", required_unless_present = "in_new_session")]
    home: Option<Utf8PathBuf>,
    /// ID of the session to start
    #[arg(long, value_name = "ID")]
    session_id: Option<AgentSessionId>,
    /// ID of the session to continue
    #[arg(long, value_name = "ID")]
    resume: Option<AgentSessionId>,
    /// Continue in a new session
    #[arg(long, requires = "resume", requires = "session_id")]
    fork_session: bool,
    /// Last message that the new session knows
    #[arg(long, value_name = "UUID", requires = "fork_session")]
    resume_session_at: Option<uuid::Uuid>,
    #[arg(long, value_name = "N")]
    max_turns: Option<u32>,
    #[arg(long, value_name = "USD")]
    max_budget_usd: Option<f64>,
    #[arg(long)]
    include_partial_messages: bool,
    /// Do not store the session
    #[arg(long)]
    no_session_persistence: bool,
    /// Available tools; only an empty list has an effect
    #[arg(long, value_name = "LIST")]
    tools: Option<String>,
    #[arg(long, value_name = "stdio")]
    permission_prompt_tool: Option<String>,
    /// Run the command on standard input in a new process session, and do nothing else
    #[arg(long)]
    in_new_session: bool,
}

/// Runs the script, and exits the process.
pub(crate) fn run(args: PlayArgs) -> CommandResult {
    // It replaces this process, so it returns only if it fails.
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
        cwd: process_env::working_directory()?,
        program: process_env::program()?,
        session,
        max_turns: args.max_turns,
        max_budget_usd: args.max_budget_usd,
        partial: args.include_partial_messages,
        can_ask: args.permission_prompt_tool.is_some(),
        persists_session: !args.no_session_persistence,
        // Claude takes an empty list as "no tools"; a script cannot be limited to some.
        tools: args.tools.is_none_or(|tools| !tools.is_empty()),
        now: process_env::now,
    };
    // The exit code is that of the script, not one of the command line's codes.
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
