//! `heeler logs` and `heeler jobs logs`: print and follow the newest transcript rows.
//!
//! The database lists the transcripts and tells whether their jobs have ended. The rows come
//! directly from the files, so following needs no daemon. Start at [`run`].

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use anstyle::Style;
use camino::Utf8PathBuf;
use clap::Args;
use heeler_engine::logs::{DAEMON_LOG, LOG_POLL_INTERVAL, LogTail};
use heeler_model::{JobHead, JobId};
use heeler_store::{JobFilter, StoreReader};
use heeler_transcript::{
    FollowStart, FollowUpdate, TranscriptFault, TranscriptFollower, TranscriptPage,
    TranscriptRecord, read_tail,
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
    /// Keep printing new lines until Ctrl-C or the end of the job
    #[arg(short, long)]
    follow: bool,
    /// Number of lines to start with
    #[arg(short = 'n', long, value_name = "N", default_value = "50")]
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
    let place = CommandContext::find(global)?;
    let Some(reader) = place.open_reader()? else {
        return Ok(output::print_note(&format!("no transcripts yet in {}", place.state_dir))?);
    };
    let agent = args.agent.as_deref().map(|name| place.find_agent(&reader, name)).transpose()?;
    let heads = newest_jobs(&reader, agent.as_deref())?;
    let mut view = LogPrinter::new(&args.how);
    view.agent_width = heads.iter().map(|head| head.agent.chars().count()).max();
    let ends = view.print_newest(&place, &reader, &heads)?;
    if ends.is_empty() && !args.how.follow {
        output::print_note("no transcripts yet")?;
    }
    match args.how.follow {
        true => follow_fleet(&place, &reader, agent.as_deref(), view, &heads, &ends),
        false => Ok(()),
    }
}

/// Prints the daemon's log, including rotated files.
fn print_daemon_log(global: &GlobalArgs, how: &LogOutputArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let path = place.state_dir.join("logs").join(DAEMON_LOG);
    let failed = |error: std::io::Error| {
        CommandFailure::new(
            FailureCode::Usage,
            anyhow::Error::new(error).context(format!("cannot read {path}")),
        )
    };
    if !how.follow && !path.exists() {
        return Ok(output::print_note(&format!("{path} does not exist yet: no daemon has run"))?);
    }
    let (mut tail, lines) = LogTail::last(&path, how.lines.get()).map_err(failed)?;
    let print = |lines: Vec<String>| {
        lines.iter().try_for_each(|line| output::print_line(output::sanitize(line)))
    };
    print(lines)?;
    if !how.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(LOG_POLL_INTERVAL);
        print(tail.read_more().map_err(failed)?)?;
    }
}

/// Prints one job's transcript.
pub(crate) fn print_job_log(global: &GlobalArgs, id: &str, how: &LogOutputArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let reader = place.reader_for("job", id)?;
    let job = reader.find_job(id)?;
    let path = place.log_path(&reader, &job.head)?;
    let mut view = LogPrinter::new(how);
    let start = match &path {
        Some(path) if path.is_file() => {
            let page = read_tail(path, view.rows_wanted()).map_err(anyhow::Error::from)?;
            view.print_page(&job.head, &page)?;
            page.end
        }
        _ if how.follow && !job.head.status.is_final() => 0,
        _ => {
            return Err(CommandFailure::message(
                FailureCode::NotFound,
                why_no_transcript(&place, &job.head.id)?,
            ));
        }
    };
    match path {
        Some(path) if how.follow => {
            let mut follower = TranscriptFollower::new();
            follower.add(&path, FollowStart::Offset(start));
            follow_job(&reader, &job.head, &mut follower, &mut view)
        }
        _ => Ok(()),
    }
}

/// Lists jobs, newest first, and tells whether the list is complete.
type JobListFn<'j> = dyn Fn(&StoreReader) -> CommandResult<(Vec<JobHead>, bool)> + 'j;

/// Prints the transcripts of several jobs in order of time, each row with its agent's name.
pub(crate) fn print_jobs_log(
    place: &CommandContext,
    how: &LogOutputArgs,
    jobs: &JobListFn<'_>,
) -> CommandResult {
    let Some(reader) = place.open_reader()? else { return Ok(()) };
    let (heads, is_over) = jobs(&reader)?;
    let mut view = LogPrinter::new(how);
    view.agent_width = heads.iter().map(|head| head.agent.chars().count()).max();
    let ends = view.print_newest(place, &reader, &heads)?;
    if ends.is_empty() && (is_over || !how.follow) {
        output::print_note("no transcripts yet")?;
    }
    if is_over || !how.follow {
        return Ok(());
    }
    let mut follower = TranscriptFollower::new();
    let mut followed: Vec<JobHead> = Vec::new();
    let mut known: HashSet<JobId> = HashSet::new();
    loop {
        // Query before reading: the transcripts of jobs that have ended are then complete.
        let (heads, is_over) = jobs(&reader)?;
        for head in heads.iter().rev().filter(|head| known.insert(head.id.clone())) {
            let start =
                ends.get(&head.id).map_or(FollowStart::Beginning, |end| FollowStart::Offset(*end));
            follow(place, &reader, head, start, &mut follower, &mut followed)?;
        }
        let patience = if is_over { LAST_LINES_WAIT } else { POLL_INTERVAL };
        while let Some(update) = follower.next(patience).map_err(anyhow::Error::from)? {
            view.print_update(&followed[file_number(&update)], &update)?;
        }
        if is_over {
            return Ok(());
        }
    }
}

fn file_number(update: &FollowUpdate) -> usize {
    let (FollowUpdate::Record { file, .. }
    | FollowUpdate::Fault { file, .. }
    | FollowUpdate::Restarted { file, .. }) = update;
    *file
}

/// Returns the reason why a job has no transcript, if known.
fn why_no_transcript(place: &CommandContext, job: &JobId) -> CommandResult<String> {
    let dir = place.dir()?;
    let name = dir.job_transcript(job).file_name().unwrap_or_default().to_owned();
    let trashed = dir.trashed_job(job).join(name);
    Ok(match trashed.is_file() {
        true => format!(
            "the transcript of job {job} was moved to the trash by the `retention` setting: {trashed}"
        ),
        false => format!("job {job} has no transcript: none was written, or the file was deleted"),
    })
}

fn follow_job(
    reader: &StoreReader,
    head: &JobHead,
    follower: &mut TranscriptFollower,
    view: &mut LogPrinter,
) -> CommandResult {
    loop {
        // Query before reading: the transcript of a job that has ended is then complete.
        let ended = reader.job(&head.id)?.is_none_or(|job| job.head.status.is_final());
        let patience = if ended { LAST_LINES_WAIT } else { POLL_INTERVAL };
        while let Some(update) = follower.next(patience).map_err(anyhow::Error::from)? {
            view.print_update(head, &update)?;
        }
        if ended {
            return view.unfinished(head, true).iter().try_for_each(|line| view.print(line));
        }
    }
}

/// Prints new rows of the listed jobs and of jobs that start later.
fn follow_fleet(
    place: &CommandContext,
    reader: &StoreReader,
    agent: Option<&str>,
    mut view: LogPrinter,
    there: &[JobHead],
    ends: &HashMap<JobId, u64>,
) -> CommandResult {
    let mut follower = TranscriptFollower::new();
    let mut followed: Vec<JobHead> = Vec::new();
    let mut known: HashSet<JobId> = there.iter().map(|head| head.id.clone()).collect();
    for head in there {
        let start = ends.get(&head.id).map_or(FollowStart::End, |end| FollowStart::Offset(*end));
        if !head.status.is_final() || ends.contains_key(&head.id) {
            follow(place, reader, head, start, &mut follower, &mut followed)?;
        }
    }
    loop {
        for head in newest_jobs(reader, agent)? {
            if known.insert(head.id.clone()) {
                follow(place, reader, &head, FollowStart::Beginning, &mut follower, &mut followed)?;
            }
        }
        while let Some(update) = follower.next(POLL_INTERVAL).map_err(anyhow::Error::from)? {
            view.print_update(&followed[file_number(&update)], &update)?;
        }
    }
}

fn follow(
    place: &CommandContext,
    reader: &StoreReader,
    head: &JobHead,
    start: FollowStart,
    follower: &mut TranscriptFollower,
    followed: &mut Vec<JobHead>,
) -> CommandResult {
    if let Some(path) = place.log_path(reader, head)? {
        follower.add(&path, start);
        followed.push(head.clone());
    }
    Ok(())
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
}

/// One line to print.
struct LogLine {
    at: Option<Timestamp>,
    agent: String,
    content: LogLineContent,
}

enum LogLineContent {
    Row(DisplayRow),
    Json(String),
}

impl LogPrinter {
    fn new(how: &LogOutputArgs) -> LogPrinter {
        let zone = TimeZone::system();
        let day = process_env::now().to_zoned(zone.clone()).date();
        LogPrinter { how: how.clone(), zone, agent_width: None, day, formatters: HashMap::new() }
    }

    /// Returns the number of rows to read for the wanted lines: a tool call and its result share a
    /// line.
    fn rows_wanted(&self) -> usize {
        let lines = self.how.lines.get();
        if self.how.json { lines } else { lines.saturating_mul(2) }
    }

    /// Prints the newest lines of several jobs in order of time; returns the end offset of each
    /// transcript.
    fn print_newest(
        &mut self,
        place: &CommandContext,
        reader: &StoreReader,
        heads: &[JobHead],
    ) -> CommandResult<HashMap<JobId, u64>> {
        let wanted = self.how.lines.get();
        let mut lines: Vec<LogLine> = Vec::new();
        let mut ends = HashMap::new();
        for head in heads {
            if lines.len() >= wanted {
                break;
            }
            let Some(path) = place.log_path(reader, head)?.filter(|path| path.is_file()) else {
                continue;
            };
            let page = read_tail(&path, self.rows_wanted()).map_err(anyhow::Error::from)?;
            ends.insert(head.id.clone(), page.end);
            self.print_faults(&page.faults, &path)?;
            lines.extend(page.records.iter().filter_map(|record| self.line(head, record)));
        }
        // Stable: rows of one job stay in the order in which they were written.
        lines.sort_by_key(|line| line.at);
        self.print_last(lines)?;
        Ok(ends)
    }

    fn print_page(&mut self, head: &JobHead, page: &TranscriptPage) -> CommandResult {
        let mut lines: Vec<LogLine> =
            page.records.iter().filter_map(|record| self.line(head, record)).collect();
        if !self.how.follow {
            lines.extend(self.unfinished(head, head.status.is_final()));
        }
        self.print_last(lines)?;
        self.print_faults(&page.faults, &Utf8PathBuf::from("the transcript"))
    }

    fn print_last(&mut self, lines: Vec<LogLine>) -> CommandResult {
        let skip = lines.len().saturating_sub(self.how.lines.get());
        lines.into_iter().skip(skip).try_for_each(|line| self.print(&line))
    }

    fn print_update(&mut self, head: &JobHead, update: &FollowUpdate) -> CommandResult {
        match update {
            FollowUpdate::Record { record, .. } => match self.line(head, record) {
                Some(line) => self.print(&line),
                None => Ok(()),
            },
            FollowUpdate::Fault { fault, .. } => {
                self.print_faults(&[*fault], &Utf8PathBuf::from("the transcript"))
            }
            FollowUpdate::Restarted { .. } => {
                self.formatters.remove(&head.id);
                Ok(output::print_note("the transcript was replaced; reading it from its start")?)
            }
        }
    }

    /// Returns the tool calls of a job that have no result, or not yet.
    fn unfinished(&mut self, head: &JobHead, ended: bool) -> Vec<LogLine> {
        let why = if ended { "no result" } else { "no result yet" };
        let told = self.formatters.get_mut(&head.id).map(|told| told.unfinished(why));
        let line = |row: DisplayRow| LogLine {
            at: row.at,
            agent: head.agent.clone(),
            content: LogLineContent::Row(row),
        };
        told.into_iter().flatten().map(line).collect()
    }

    /// Returns the line to print for a row, if any.
    fn line(&mut self, head: &JobHead, record: &TranscriptRecord) -> Option<LogLine> {
        let text = record.text.as_bytes();
        let (at, what) = match self.how.json {
            true => (DisplayRow::read(text).at, LogLineContent::Json(record.text.clone())),
            false => {
                let told = self.formatters.entry(head.id.clone()).or_insert_with(RowFormatter::new);
                let row = told.next_row(text)?;
                (row.at, LogLineContent::Row(row))
            }
        };
        Some(LogLine { at, agent: head.agent.clone(), content: what })
    }

    fn print(&mut self, line: &LogLine) -> CommandResult {
        let row = match &line.content {
            LogLineContent::Json(text) => return Ok(output::print_json_line(text)?),
            LogLineContent::Row(row) => row,
        };
        if let Some(day) = row.at.map(|at| at.to_zoned(self.zone.clone()).date())
            && day != self.day
        {
            self.day = day;
            output::print_line(SafeText::styled(Style::new().dimmed(), &format!("{day}")))?;
        }
        let shown = row.show(&self.zone);
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
    fn print_faults(&self, faults: &[TranscriptFault], path: &camino::Utf8Path) -> CommandResult {
        for fault in faults {
            let what = match fault.kind {
                heeler_transcript::TranscriptFaultKind::TornTail => "an unfinished last line",
                heeler_transcript::TranscriptFaultKind::Nul => "NUL bytes",
                heeler_transcript::TranscriptFaultKind::NotUtf8 => "bytes that are not text",
                heeler_transcript::TranscriptFaultKind::NotAnObject => "a damaged line",
                heeler_transcript::TranscriptFaultKind::TooLong => "a line that is too long",
            };
            output::print_note(&format!(
                "skipped {what} at byte {} of {path} ({} bytes)",
                fault.offset, fault.len
            ))?;
        }
        Ok(())
    }
}
