//! `heeler logs` and `heeler jobs logs`: print and follow the newest transcript rows.
//!
//! The database lists the transcripts and tells whether their jobs have ended. The rows come
//! directly from the files, so following needs no daemon. Start at [`run`].

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use anstyle::Style;
use camino::Utf8Path;
use clap::Args;
use heeler_config::RuntimeType;
use heeler_engine::logs::{DAEMON_LOG, LOG_POLL_INTERVAL, LogTail};
use heeler_model::{JobHead, JobId};
use heeler_query::job_feed::{MultiJobFeed, MultiJobFeedEvent};
use heeler_store::{JobFilter, StoreReader};
use heeler_transcript::{
    FollowStart, TranscriptFault, TranscriptFaultKind, TranscriptPage, TranscriptRecord, read_tail,
};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::context::CommandContext;
use crate::display_rows::{DisplayRow, RowFormatter};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, SafeText};
use crate::process_env;
use crate::shared_args;
use crate::terminal_markdown::TerminalMarkdown;

/// Newest jobs of an agent that are searched for its newest rows.
const JOBS_LOOKED_AT_MAX: usize = 200;
/// Interval at which a follower checks the database for new and ended jobs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time to wait for the last rows of a job that has ended.
const LAST_LINES_WAIT: Duration = Duration::from_millis(300);

/// Arguments of `logs`.
#[derive(Args)]
pub(crate) struct LogsArgs {
    /// Agent name [default: the whole fleet]
    #[arg(add = shared_args::agents())]
    agent: Option<String>,
    /// Print only this job's transcript
    #[arg(long, value_name = "ID", add = shared_args::jobs(), conflicts_with = "agent")]
    job: Option<String>,
    /// Print the daemon's log instead of the agents' transcripts
    #[arg(long, conflicts_with_all = ["agent", "job", "json"])]
    daemon: bool,
    #[command(flatten)]
    pub(crate) how: LogOutputArgs,
}

/// Output options of `logs`.
#[derive(Args, Clone)]
pub(crate) struct LogOutputArgs {
    /// Keep printing new lines until Ctrl-C or the end of the job or run
    #[arg(short, long)]
    follow: bool,
    /// Number of lines to start with
    #[arg(short = 'n', long = "number", alias = "lines", value_name = "N", default_value = "50")]
    lines: NonZeroUsize,
    /// Print the raw transcript rows: one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Default for LogOutputArgs {
    fn default() -> LogOutputArgs {
        LogOutputArgs {
            follow: false,
            lines: NonZeroUsize::new(50).expect("50 is not zero"),
            json: false,
        }
    }
}

impl LogOutputArgs {
    /// Returns options that print every row of a job as a JSON line.
    pub(crate) fn all_rows_as_json() -> LogOutputArgs {
        LogOutputArgs { json: true, lines: NonZeroUsize::MAX, ..LogOutputArgs::default() }
    }
}

/// Runs `logs`.
pub(crate) fn run(global: &GlobalArgs, args: &LogsArgs) -> CommandResult {
    if let Some(job) = &args.job {
        return print_job_log(global, job, &args.how);
    }
    if args.daemon {
        return print_daemon_log(global, &args.how);
    }
    let context = CommandContext::find(global)?;
    let Some(reader) = context.open_reader()? else {
        return Ok(output::print_note(&format!("no transcripts yet in {}", context.state_dir))?);
    };
    let agent = args.agent.as_deref().map(|name| context.find_agent(&reader, name)).transpose()?;
    print_jobs_log(&context, &reader, &args.how, &|reader| {
        Ok((newest_jobs(reader, agent.as_deref())?, false))
    })
}

/// Prints the daemon's log, including rotated files.
fn print_daemon_log(global: &GlobalArgs, how: &LogOutputArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let path = context.state_dir.join("logs").join(DAEMON_LOG);
    let failed = |error: std::io::Error| {
        CommandFailure::new(
            FailureCode::Usage,
            anyhow::Error::new(error).context(format!("cannot read {path}")),
        )
    };
    // A follower waits for the first daemon instead.
    if !how.follow && !path.exists() {
        return Ok(output::print_note(&format!("{path} does not exist yet: no daemon has run"))?);
    }
    let (mut tail, lines) = LogTail::last(&path, how.lines.get()).map_err(failed)?;
    let print = |lines: Vec<String>| {
        // The log quotes errors of agents, which must not control the terminal.
        lines.iter().try_for_each(|line| output::print_line(output::sanitize(line)))
    };
    print(lines)?;
    if !how.follow {
        return Ok(());
    }
    loop {
        // The daemon rotates the file, which a poll notices and a read of an open file does not.
        std::thread::sleep(LOG_POLL_INTERVAL);
        print(tail.read_more().map_err(failed)?)?;
    }
}

/// Prints one job's transcript.
pub(crate) fn print_job_log(global: &GlobalArgs, id: &str, how: &LogOutputArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let reader = context.reader_for("job", id)?;
    let job = reader.find_job(id)?;
    let path = context.log_path(&reader, &job.head)?;
    let mut view = LogPrinter::new(how, &context)?;
    let start = match &path {
        Some(path) if path.is_file() => {
            let page = read_tail(path, view.rows_wanted()).map_err(anyhow::Error::from)?;
            view.print_page(&job.head, &page)?;
            // Follow from where the page ended: rows written since are neither lost nor repeated.
            FollowStart::Offset(page.end)
        }
        // A queued job writes its first row later.
        _ if how.follow && !job.head.status.is_final() => FollowStart::Beginning,
        _ => {
            return Err(CommandFailure::message(
                FailureCode::NotFound,
                why_no_transcript(&context, &job.head.id)?,
            ));
        }
    };
    if !how.follow {
        return Ok(());
    }
    let head = job.head;
    let starts = HashMap::from([(head.id.clone(), start)]);
    follow(&context, &reader, &mut view, (std::slice::from_ref(&head), &starts), &|reader| {
        let is_over = reader.job(&head.id)?.is_none_or(|job| job.head.status.is_final());
        Ok((Vec::new(), is_over))
    })?;
    // The job has ended, so these calls get no result any more.
    view.unfinished(&head, true).iter().try_for_each(|line| view.print(line))
}

/// Lists jobs, newest first, and tells whether the list is complete.
type JobListFn<'j> = dyn Fn(&StoreReader) -> CommandResult<(Vec<JobHead>, bool)> + 'j;

/// Prints the transcripts of several jobs in order of time, each row with its agent's name.
pub(crate) fn print_jobs_log(
    context: &CommandContext,
    reader: &StoreReader,
    how: &LogOutputArgs,
    jobs: &JobListFn<'_>,
) -> CommandResult {
    let (heads, is_over) = jobs(reader)?;
    let mut view = LogPrinter::new(how, context)?;
    // The width is fixed by the first jobs, because printed lines cannot be aligned again.
    view.agent_width = heads.iter().map(|head| head.agent.chars().count()).max();
    let starts = view.print_newest(context, reader, &heads)?;
    let is_followed = how.follow && !is_over;
    if !is_followed && !starts.values().any(|start| matches!(start, FollowStart::Offset(_))) {
        output::print_note("no transcripts yet")?;
    }
    match is_followed {
        true => follow(context, reader, &mut view, (&heads, &starts), jobs),
        false => Ok(()),
    }
}

/// Prints new rows of the known jobs that have a start, and of jobs that are listed later, until the
/// list is complete.
fn follow(
    context: &CommandContext,
    reader: &StoreReader,
    view: &mut LogPrinter,
    (known, starts): (&[JobHead], &HashMap<JobId, FollowStart>),
    jobs: &JobListFn<'_>,
) -> CommandResult {
    let mut feed = MultiJobFeed::default();
    let add = |head: &JobHead, start: FollowStart, feed: &mut MultiJobFeed<JobHead>| {
        let path = context.log_path(reader, head)?;
        path.into_iter().for_each(|path| feed.add(head.clone(), &path, start));
        CommandResult::Ok(())
    };
    for head in known {
        if let Some(start) = starts.get(&head.id) {
            add(head, *start, &mut feed)?;
        }
    }
    let mut known: HashSet<JobId> = known.iter().map(|head| head.id.clone()).collect();
    loop {
        // Query before reading: the transcripts of jobs that have ended are then complete.
        let (heads, is_over) = jobs(reader)?;
        // The list has the newest job first, and rows of older jobs should be printed first.
        for head in heads.iter().rev().filter(|head| known.insert(head.id.clone())) {
            add(head, FollowStart::Beginning, &mut feed)?;
        }
        let wait = if is_over { LAST_LINES_WAIT } else { POLL_INTERVAL };
        // Jobs are queried again only after a pause, so that a busy follower is not slowed.
        while let Some((head, event)) = feed.next(wait).map_err(anyhow::Error::from)? {
            view.print_event(head, &event)?;
        }
        if is_over {
            return Ok(());
        }
    }
}

/// Returns the reason why a job has no transcript, if known.
fn why_no_transcript(context: &CommandContext, job: &JobId) -> CommandResult<String> {
    // Retention moves transcripts to the trash, but keeps the record of the job.
    let dir = context.dir()?;
    let name = dir.job_transcript(job).file_name().unwrap_or_default().to_owned();
    let trashed = dir.trashed_job(job).join(name);
    Ok(match trashed.is_file() {
        true => format!(
            "the transcript of job {job} was moved to the trash by the `retention` setting: {trashed}"
        ),
        false => format!("job {job} has no transcript: none was written, or the file was deleted"),
    })
}

fn newest_jobs(reader: &StoreReader, agent: Option<&str>) -> CommandResult<Vec<JobHead>> {
    let filter = JobFilter { agent: agent.map(str::to_owned), ..JobFilter::default() };
    Ok(reader.jobs(&filter, None, JOBS_LOOKED_AT_MAX)?)
}

/// Prints transcript rows, and keeps the state needed between rows.
struct LogPrinter {
    how: LogOutputArgs,
    zone: TimeZone,
    /// Width of the agent column; `None` for a single job.
    agent_width: Option<usize>,
    /// Day of the last line; a change of day is printed.
    day: Date,
    /// Row formatter of each job.
    formatters: HashMap<JobId, RowFormatter>,
    /// Layout of agents' messages; `None` prints them as they are.
    messages: Option<MessageLayout>,
}

/// Layout of the messages of agents. The output of a command is no markdown.
struct MessageLayout {
    markdown: TerminalMarkdown,
    reader: StoreReader,
    /// Says of each job whether an agent writes its messages.
    is_of_agent: HashMap<JobId, bool>,
}

impl MessageLayout {
    fn find(context: &CommandContext) -> CommandResult<Option<MessageLayout>> {
        let Some(markdown) = TerminalMarkdown::find(&context.env) else { return Ok(None) };
        let reader = context.open_reader()?;
        Ok(reader.map(|reader| MessageLayout { markdown, reader, is_of_agent: HashMap::new() }))
    }

    /// Returns the layout for the messages of a job.
    fn of(&mut self, job: &JobId) -> Option<&TerminalMarkdown> {
        if !self.is_of_agent.contains_key(job) {
            let is_of_agent = self.is_of_agent(job);
            self.is_of_agent.insert(job.clone(), is_of_agent);
        }
        self.is_of_agent.get(job).is_some_and(|is_of_agent| *is_of_agent).then_some(&self.markdown)
    }

    fn is_of_agent(&self, job: &JobId) -> bool {
        // Without its record the message is shown as it is.
        let session = self.reader.job(job).ok().flatten().and_then(|job| job.head.session_id);
        let session = session.and_then(|id| self.reader.session_by_agent_id(&id).ok().flatten());
        session.is_some_and(|session| session.runtime != RuntimeType::Command.to_string())
    }
}

/// One line to print.
struct LogLine {
    at: Option<Timestamp>,
    job: JobId,
    agent: String,
    content: LogLineContent,
}

enum LogLineContent {
    Row(DisplayRow),
    Json(String),
}

impl LogPrinter {
    fn new(how: &LogOutputArgs, context: &CommandContext) -> CommandResult<LogPrinter> {
        let zone = TimeZone::system();
        let day = process_env::now().to_zoned(zone.clone()).date();
        let messages = if how.json { None } else { MessageLayout::find(context)? };
        let formatters = HashMap::new();
        Ok(LogPrinter { how: how.clone(), zone, agent_width: None, day, formatters, messages })
    }

    /// Returns the number of rows to read for the wanted lines: a tool call and its result share a
    /// line.
    fn rows_wanted(&self) -> usize {
        // A JSON line is one row; otherwise half of the rows may be results that share a line.
        let lines = self.how.lines.get();
        if self.how.json { lines } else { lines.saturating_mul(2) }
    }

    /// Prints the newest lines of several jobs in order of time; returns where to follow each
    /// transcript. Those of ended jobs are followed only if lines of them were printed.
    fn print_newest(
        &mut self,
        context: &CommandContext,
        reader: &StoreReader,
        heads: &[JobHead],
    ) -> CommandResult<HashMap<JobId, FollowStart>> {
        let mut lines: Vec<LogLine> = Vec::new();
        let mut starts = HashMap::new();
        for head in heads {
            // Jobs come newest first, so older ones are not read once there is enough.
            let is_enough = lines.len() >= self.how.lines.get();
            let path = context.log_path(reader, head)?.filter(|path| !is_enough && path.is_file());
            let Some(path) = path else {
                // Old jobs that still run are followed although none of their rows are shown yet.
                if !head.status.is_final() {
                    let start = if is_enough { FollowStart::End } else { FollowStart::Beginning };
                    starts.insert(head.id.clone(), start);
                }
                continue;
            };
            let page = read_tail(&path, self.rows_wanted()).map_err(anyhow::Error::from)?;
            starts.insert(head.id.clone(), FollowStart::Offset(page.end));
            self.print_faults(&page.faults, &path)?;
            lines.extend(page.records.iter().filter_map(|record| self.line(head, record)));
        }
        // Stable: rows of one job stay in the order in which they were written.
        lines.sort_by_key(|line| line.at);
        self.print_last(lines)?;
        Ok(starts)
    }

    fn print_page(&mut self, head: &JobHead, page: &TranscriptPage) -> CommandResult {
        let mut lines: Vec<LogLine> =
            page.records.iter().filter_map(|record| self.line(head, record)).collect();
        // A follower sees their results later.
        if !self.how.follow {
            lines.extend(self.unfinished(head, head.status.is_final()));
        }
        self.print_last(lines)?;
        self.print_faults(&page.faults, Utf8Path::new("the transcript"))
    }

    fn print_last(&mut self, lines: Vec<LogLine>) -> CommandResult {
        let skip = lines.len().saturating_sub(self.how.lines.get());
        lines.into_iter().skip(skip).try_for_each(|line| self.print(&line))
    }

    fn print_event(&mut self, head: &JobHead, event: &MultiJobFeedEvent) -> CommandResult {
        match event {
            MultiJobFeedEvent::Row(record) => match self.line(head, record) {
                Some(line) => self.print(&line),
                None => Ok(()),
            },
            MultiJobFeedEvent::Fault(fault) => {
                self.print_faults(&[*fault], Utf8Path::new("the transcript"))
            }
            MultiJobFeedEvent::Restarted => {
                // Its open calls belong to the content that was replaced.
                self.formatters.remove(&head.id);
                Ok(output::print_note("the transcript was replaced; reading it from its start")?)
            }
        }
    }

    /// Returns the tool calls of a job that have no result, or not yet.
    fn unfinished(&mut self, head: &JobHead, ended: bool) -> Vec<LogLine> {
        let why = if ended { "no result" } else { "no result yet" };
        let rows = self.formatters.get_mut(&head.id).map(|formatter| formatter.unfinished(why));
        let line = |row: DisplayRow| LogLine {
            at: row.at,
            job: head.id.clone(),
            agent: head.agent.clone(),
            content: LogLineContent::Row(row),
        };
        rows.into_iter().flatten().map(line).collect()
    }

    /// Returns the line to print for a row, if any.
    fn line(&mut self, head: &JobHead, record: &TranscriptRecord) -> Option<LogLine> {
        let text = record.text.as_bytes();
        let (at, what) = match self.how.json {
            true => (DisplayRow::read(text).at, LogLineContent::Json(record.text.clone())),
            false => {
                let formatter =
                    self.formatters.entry(head.id.clone()).or_insert_with(RowFormatter::new);
                let row = formatter.next_row(text)?;
                (row.at, LogLineContent::Row(row))
            }
        };
        Some(LogLine { at, job: head.id.clone(), agent: head.agent.clone(), content: what })
    }

    /// Returns a row as it is printed.
    fn shown(&mut self, line: &LogLine, row: &DisplayRow) -> SafeText {
        let prefix = self.agent_width.map_or(0, |width| width + 1);
        let messages = self.messages.as_mut().filter(|_| row.message.is_some());
        match messages.and_then(|messages| messages.of(&line.job)) {
            Some(markdown) => row.show_laid_out(&self.zone, markdown, prefix),
            None => row.show(&self.zone),
        }
    }

    fn print(&mut self, line: &LogLine) -> CommandResult {
        let row = match &line.content {
            // JSON is for programs, so it is printed byte for byte, without names or days.
            LogLineContent::Json(text) => return Ok(output::print_json_line(text)?),
            LogLineContent::Row(row) => row,
        };
        if let Some(day) = row.at.map(|at| at.to_zoned(self.zone.clone()).date())
            && day != self.day
        {
            self.day = day;
            output::print_line(SafeText::styled(Style::new().dimmed(), &format!("{day}")))?;
        }
        let shown = self.shown(line, row);
        match self.agent_width {
            None => output::print_line(shown)?,
            Some(width) => {
                let agent = format!("{:<width$} ", output::one_line(&line.agent));
                output::print_line(SafeText::from(agent).append(shown))?;
            }
        }
        Ok(())
    }

    /// Reports skipped parts on stderr, so that an incomplete transcript is noticed.
    fn print_faults(&self, faults: &[TranscriptFault], path: &Utf8Path) -> CommandResult {
        for fault in faults {
            let what = match fault.kind {
                TranscriptFaultKind::TornTail => "an unfinished last line",
                TranscriptFaultKind::Nul => "NUL bytes",
                TranscriptFaultKind::NotUtf8 => "bytes that are not text",
                TranscriptFaultKind::NotAnObject => "a damaged line",
                TranscriptFaultKind::TooLong => "a line that is too long",
            };
            output::print_note(&format!(
                "skipped {what} at byte {} of {path} ({} bytes)",
                fault.offset, fault.len
            ))?;
        }
        Ok(())
    }
}
