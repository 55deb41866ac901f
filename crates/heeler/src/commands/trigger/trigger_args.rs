//! Arguments and help of `heeler trigger`. Start at [`TriggerArgs`].

use std::ops::RangeInclusive;

use clap::Args;
use heeler_config::PRIORITY_MAX;
use heeler_model::ChannelKey;
use serde_json::Value;

use crate::shared_args;

/// Valid priorities, as in the config.
const PRIORITIES: RangeInclusive<i64> = -(PRIORITY_MAX as i64)..=PRIORITY_MAX as i64;

/// Help footer of `trigger`.
pub(crate) const EXAMPLES: &str = "Examples:
  heeler trigger coder -p 'Fix the failing test'
  git diff | heeler trigger reviewer -p - > review.md
  heeler trigger coder --session sess-1a2b -p 'And the next one'
  heeler trigger helper --channel slack/C0123/1731.55 -p 'Any news?'
  id=$(heeler trigger coder -p 'Clean up' --detach -q); heeler jobs logs $id -f

The agent's messages go to stdout, its actions to stderr. On a terminal you are asked its questions,
even with `-p -`; elsewhere they are denied. Ctrl-C cancels the job; a second Ctrl-C kills it at once.

Exit codes:
  0    the job succeeded, or was started with --detach
  1    the job failed
  2    the command line or the configuration is invalid
  4    no such agent, schedule or session
  5    refused: the agent is disabled, its budget is spent, or the queue is full
  130  interrupted by Ctrl-C";

/// Help heading of options for the session.
const SESSION: &str = "Session options";
/// Help heading of options for the output.
const OUTPUT: &str = "Output options";

/// Arguments of `trigger`.
#[derive(Args)]
pub(crate) struct TriggerArgs {
    /// Agent name
    #[arg(add = shared_args::agents())]
    pub(super) agent: String,
    /// Prompt; `-` reads standard input [default: the schedule's or agent's prompt]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,
    /// Use the prompt, session and limits of this schedule
    #[arg(short = 'S', long, value_name = "NAME")]
    pub(super) schedule: Option<String>,
    /// Session to continue (ID or unique prefix)
    #[arg(
        long, value_name = "ID", help_heading = SESSION, add = shared_args::sessions(),
        conflicts_with_all = ["fresh", "channel"]
    )]
    pub(super) session: Option<String>,
    /// Continue in a fork: a new session with the history of --session
    #[arg(
        long, help_heading = SESSION, requires = "session",
        conflicts_with_all = ["fresh", "channel"]
    )]
    pub(super) fork: bool,
    /// Start a new session
    #[arg(long, help_heading = SESSION)]
    pub(super) fresh: bool,
    /// Continue the session of this chat channel: PLATFORM/CHANNEL[/THREAD]
    #[arg(
        long, value_name = "CHANNEL", help_heading = SESSION,
        value_parser = clap::value_parser!(ChannelKey)
    )]
    pub(super) channel: Option<ChannelKey>,
    /// Queue priority, -100 to 100; higher starts first
    ///
    /// It is added to the agent's `priority`.
    #[arg(
        long, value_name = "N", default_value = "0", hide_default_value = true,
        allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(PRIORITIES)
    )]
    pub(super) priority: i64,
    /// Continue even if the session has external messages, and import them
    #[arg(long, help_heading = SESSION)]
    pub(crate) take_in: bool,
    /// Print the job's ID and return at once; the job continues
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) detach: bool,
    /// Print one JSON document at the end; `result` is the agent's last message
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Also write the output as text to `jobs/JOB/output.log` in the state directory
    #[arg(long, help_heading = OUTPUT)]
    pub(super) output_file: bool,
    /// No effect: waiting is the default (herdctl's flag)
    #[arg(short = 'w', long, hide = true, conflicts_with = "detach")]
    pub(super) wait: bool,
    /// The session that was forked for this job, which `--json` prints next to the job.
    #[arg(skip)]
    pub(crate) forked: Option<Value>,
}

impl TriggerArgs {
    /// Returns arguments that continue a session.
    pub(crate) fn in_session(
        agent: &str,
        session: &str,
        prompt: Option<String>,
        json: bool,
    ) -> TriggerArgs {
        TriggerArgs {
            agent: agent.to_owned(),
            prompt,
            schedule: None,
            session: Some(session.to_owned()),
            fork: false,
            fresh: false,
            channel: None,
            priority: 0,
            take_in: false,
            detach: false,
            json,
            output_file: false,
            wait: false,
            forked: None,
        }
    }
}
