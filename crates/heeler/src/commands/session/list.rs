//! `heeler session list`: lists Heeler's sessions, or native ones. Start at [`run`].

use camino::Utf8PathBuf;
use clap::Args;
use heeler_model::SessionStatus;
use heeler_query::sessions::{SessionListQuery, SessionPage, SessionSummary};
use heeler_store::native::{NativeProgram, NativeSessionFilter};
use jiff::Timestamp;

use super::native;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args::{self, ListPageArgs};
use crate::time_argument;

/// Help footer of `session list`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session list --agent coder --status paused
  heeler session list --channel slack/C0123 --since 7d
  heeler session list --tree
  heeler session list --native       # sessions made with an agent program in a terminal

Exit codes: 0 listed (even if the list is empty), 4 no such agent.";

/// Deepest indentation of a tree; deeper entries are drawn at this depth.
const DEPTH_MAX: usize = 8;

/// Characters of a title that are shown.
const TITLE_CHARS_MAX: usize = 60;

/// Arguments of `session list`.
#[derive(Args)]
pub(crate) struct SessionListArgs {
    /// Show only sessions with this status
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = shared_args::session_status())]
    status: Option<SessionStatus>,
    /// Show only sessions of this channel and its threads: PLATFORM/CHANNEL[/THREAD]
    #[arg(short = 'C', long, value_name = "ID")]
    channel: Option<String>,
    /// Show forks and continuations of full sessions below their origin
    #[arg(long)]
    tree: bool,
    /// List native sessions, made with agent programs in a terminal
    #[arg(long, conflicts_with_all = ["status", "channel", "tree", "agent"])]
    native: bool,
    /// Show only sessions made in this directory
    #[arg(short = 'd', long, value_name = "DIR", requires = "native")]
    directory: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub(crate) page: ListPageArgs,
}

impl SessionListArgs {
    fn since(&self, now: Timestamp) -> CommandResult<Option<Timestamp>> {
        self.page.since.as_deref().map(|text| time_argument::parse_moment(text, now)).transpose()
    }

    /// Returns the query for Heeler's sessions.
    pub(super) fn query(&self, now: Timestamp) -> CommandResult<SessionListQuery> {
        Ok(SessionListQuery {
            agent: self.page.agent.clone(),
            status: self.status,
            channel: self.channel.clone(),
            since: self.since(now)?,
            before: self.page.before.clone(),
            limit: self.page.limit.get() as usize,
            tree: self.tree,
        })
    }
}

/// Runs `session list`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionListArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let now = process_env::now();
    if args.native {
        let filter = native_filter(&context, args, args.since(now)?)?;
        return native::list(&context, &args.page, filter);
    }
    let wanted = args.query(now)?;
    let page = context.open_records()?.sessions(&wanted, process_env::now())?;
    match args.page.json {
        true => Ok(output::print_json(&page)?),
        false => print(&context, &page, args),
    }
}

fn native_filter(
    context: &CommandContext,
    args: &SessionListArgs,
    since: Option<Timestamp>,
) -> CommandResult<NativeSessionFilter> {
    let usage = |error| CommandFailure::new(FailureCode::Usage, error);
    let before = args.page.before.as_deref().map(|id| NativeProgram::split_id(id).1.parse());
    let before = before.transpose().map_err(usage)?;
    // Claude names its folders after real paths, with links resolved.
    let real = |path: &Utf8PathBuf| {
        let path = context.working_dir.join(path);
        path.canonicalize_utf8().unwrap_or(path)
    };
    Ok(NativeSessionFilter { cwd: args.directory.as_ref().map(real), since, before })
}

/// Draws the branch that leads to each entry of a tree, given the entries' depths.
fn branches(depths: &[usize]) -> Vec<String> {
    let mut drawn = Vec::with_capacity(depths.len());
    // For each depth: true if another entry follows below before the branch ends.
    let mut goes_on = [false; DEPTH_MAX + 1];
    // From the last entry upwards: whether a branch goes on depends on the entries below.
    for depth in depths.iter().rev().map(|depth| (*depth).min(DEPTH_MAX)) {
        let mut branch: String =
            (1..depth).map(|above| if goes_on[above] { "│ " } else { "  " }).collect();
        if depth > 0 {
            branch += if goes_on[depth] { "├ " } else { "└ " };
        }
        drawn.push(branch);
        goes_on[depth] = true;
        // Deeper branches belong to this entry's own children and end with it.
        goes_on[depth + 1..].fill(false);
    }
    drawn.reverse();
    drawn
}

fn print(context: &CommandContext, page: &SessionPage, args: &SessionListArgs) -> CommandResult {
    let listed = &page.sessions;
    let status = args.status.map(SessionStatus::as_str);
    if listed.is_empty() {
        let nothing = match &args.channel {
            Some(_) => "no sessions match".to_owned(),
            None => args.page.empty_list_note("sessions", status, context),
        };
        return Ok(output::print_line(nothing)?);
    }
    table(listed)?;
    if let Some(next) = &page.next {
        let (shown, total) = (listed.len(), output::group_thousands(page.total.unsigned_abs()));
        let channel = args.channel.as_ref().map(|id| format!(" --channel {id}"));
        let tree = if args.tree { " --tree" } else { "" };
        let command = format!("session list{tree}{}", channel.unwrap_or_default());
        let next = args.page.next_page_command(&command, status, next);
        output::print_note(&format!("showing {shown} of {total}; older: {next}"))?;
    }
    Ok(())
}

fn table(listed: &[SessionSummary]) -> CommandResult {
    let now = process_env::now();
    let mut lines = OutputTable::new(
        &["ID", "AGENT", "STATUS", "LAST USED", "MESSAGES", "JOBS", "TITLE", "FROM"],
        &["AGENT", "TITLE", "FROM"],
    );
    let depths: Vec<usize> = listed.iter().map(|session| session.depth.unwrap_or(0)).collect();
    for (session, branch) in listed.iter().zip(branches(&depths)) {
        let from = match (&session.parent, &session.continues) {
            // In a tree the parent is drawn above, so only the fork point is named.
            (Some(parent), _) if session.depth.is_some_and(|depth| depth > 0) => session
                .forked_at_message
                .map_or(format!("fork of {parent}"), |at| format!("fork at {at}")),
            (Some(parent), _) => format!("fork of {parent}"),
            (None, Some(full)) => format!("continues {full}"),
            (None, None) => String::new(),
        };
        lines.push(vec![
            SafeText::from(branch).append(output::id_cell(session.id.as_str())),
            output::one_line(&session.agent_id).into(),
            session.status.as_str().into(),
            output::relative_time(session.last_active_at, now).into(),
            session.message_count.to_string().into(),
            session.job_count.to_string().into(),
            output::truncate_chars(
                &output::one_line(session.title.as_deref().unwrap_or("")),
                TITLE_CHARS_MAX,
            )
            .into(),
            from.into(),
        ]);
    }
    Ok(lines.print()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_last_of_several_have_a_line_that_goes_on() {
        let drawn = |depths: &[usize]| branches(depths).join("|");
        assert_eq!(drawn(&[0, 1, 1, 0, 1]), "|├ |└ ||└ ");
        assert_eq!(drawn(&[0, 1, 2, 3, 2, 1, 2]), "|├ |│ ├ |│ │ └ |│ └ |└ |  └ ");
        assert_eq!(drawn(&[]), "");
        // What is deeper stands below the deepest.
        let deep: Vec<usize> = (0..12).collect();
        let drawn = branches(&deep);
        assert_eq!(drawn[DEPTH_MAX], format!("{}├ ", "  ".repeat(DEPTH_MAX - 1)));
        assert_eq!(drawn[11], format!("{}└ ", "  ".repeat(DEPTH_MAX - 1)));
    }
}
