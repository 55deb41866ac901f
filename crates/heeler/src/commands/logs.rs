//! `heeler logs` and `heeler jobs logs`: the newest transcript lines, and following them.
//!
//! The database says which transcripts there are and whether their jobs have ended; the lines
//! come straight from the files, so following needs no daemon.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use anstyle::Style;
use camino::Utf8PathBuf;
use clap::Args;
use heeler_engine::logs::{DAEMON_LOG, LOG_LOOK_EVERY, LogTail};
use heeler_model::{JobHead, JobId};
use heeler_store::{JobFilter, Reader};
use heeler_transcript::{Fault, Follower, Page, Record, Start, Update, tail};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Text};
use crate::place::{self, Place};
use crate::rows::{Row, Telling};

/// How many of an agent's newest jobs are looked at for its newest lines.
const JOBS_LOOKED_AT_MAX: usize = 200;
/// How often a follower asks the database for new jobs and ended ones.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a followed job ended, how long its last lines are waited for.
const LAST_LINES: Duration = Duration::from_millis(300);

/// Arguments of `logs`.
#[derive(Args)]
pub(crate) struct LogsArgs {
    /// Only this agent's [default: the whole fleet's]
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Only this job's
    #[arg(long, value_name = "ID", add = cli::jobs(), conflicts_with = "agent")]
    job: Option<String>,
    /// What the daemon did, instead of what agents did
    #[arg(long, conflicts_with_all = ["agent", "job", "json"])]
    daemon: bool,
    #[command(flatten)]
    pub(crate) how: How,
}

/// How to print lines.
#[derive(Args, Clone)]
pub(crate) struct How {
    /// Go on printing as lines are written; ends with Ctrl-C, or with the job
    #[arg(short, long)]
    follow: bool,
    /// How many lines to start with
    #[arg(short = 'n', long, value_name = "N", default_value = "50")]
    lines: NonZeroUsize,
    /// Print the rows as they are: one JSON document a line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Default for How {
    fn default() -> How {
        How { follow: false, lines: NonZeroUsize::new(50).expect("50 is not zero"), json: false }
    }
}

impl How {
    /// Every row of a job as JSON lines.
    pub(crate) fn raw() -> How {
        How { json: true, lines: NonZeroUsize::MAX, ..How::default() }
    }
}

/// Runs `logs`.
pub(crate) fn run(global: &Global, args: &LogsArgs) -> Outcome {
    if let Some(job) = &args.job {
        return of_job(global, job, &args.how);
    }
    if args.daemon {
        return of_daemon(global, &args.how);
    }
    let place = Place::find(global)?;
    let Some(reader) = place.reader()? else {
        return Ok(output::note(&format!("no transcripts yet in {}", place.state_dir))?);
    };
    let agent = args.agent.as_deref().map(|name| place.known_agent(&reader, name)).transpose()?;
    let heads = newest_jobs(&reader, agent.as_deref())?;
    let mut view = View::new(&args.how);
    view.agent_width = heads.iter().map(|head| head.agent.chars().count()).max();
    let ends = view.print_newest(&place, &reader, &heads)?;
    if ends.is_empty() && !args.how.follow {
        output::note("no transcripts yet")?;
    }
    match args.how.follow {
        true => follow_fleet(&place, &reader, agent.as_deref(), view, &heads, &ends),
        false => Ok(()),
    }
}

/// Prints the daemon's lines, also those of logs that were set aside.
fn of_daemon(global: &Global, how: &How) -> Outcome {
    let place = Place::find(global)?;
    let path = place.state_dir.join("logs").join(DAEMON_LOG);
    let failed = |error: std::io::Error| {
        Failure::new(Code::Usage, anyhow::Error::new(error).context(format!("cannot read {path}")))
    };
    if !how.follow && !path.exists() {
        return Ok(output::note(&format!("no daemon has written {path} yet"))?);
    }
    let (mut tail, lines) = LogTail::last(&path, how.lines.get()).map_err(failed)?;
    let print =
        |lines: Vec<String>| lines.iter().try_for_each(|line| output::line(output::harmless(line)));
    print(lines)?;
    if !how.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(LOG_LOOK_EVERY);
        print(tail.more().map_err(failed)?)?;
    }
}

/// Prints one job's lines.
pub(crate) fn of_job(global: &Global, id: &str, how: &How) -> Outcome {
    let place = Place::find(global)?;
    let reader = place.reader_for("job", id)?;
    let job = reader.find_job(id)?;
    let path = place.log_path(&reader, &job.head)?;
    let mut view = View::new(how);
    let start = match &path {
        Some(path) if path.is_file() => {
            let page = tail(path, view.rows_wanted()).map_err(anyhow::Error::from)?;
            view.print_page(&job.head, &page)?;
            page.end
        }
        _ if how.follow && !job.head.status.is_final() => 0,
        _ => {
            return Err(Failure::message(Code::NotFound, why_no_transcript(&place, &job.head.id)?));
        }
    };
    match path {
        Some(path) if how.follow => {
            let mut follower = Follower::new();
            follower.add(&path, Start::Offset(start));
            follow_job(&reader, &job.head, &mut follower, &mut view)
        }
        _ => Ok(()),
    }
}

/// Lists the jobs of something, newest first, and says whether there will be no more.
type Jobs<'j> = dyn Fn(&Reader) -> Outcome<(Vec<JobHead>, bool)> + 'j;

/// Prints the lines of several jobs in order of time, each with its name.
pub(crate) fn of_run(place: &Place, how: &How, jobs: &Jobs<'_>) -> Outcome {
    let Some(reader) = place.reader()? else { return Ok(()) };
    let (heads, is_over) = jobs(&reader)?;
    let mut view = View::new(how);
    view.agent_width = heads.iter().map(|head| head.agent.chars().count()).max();
    let ends = view.print_newest(place, &reader, &heads)?;
    if ends.is_empty() && (is_over || !how.follow) {
        output::note("no transcripts yet")?;
    }
    if is_over || !how.follow {
        return Ok(());
    }
    let mut follower = Follower::new();
    let mut followed: Vec<JobHead> = Vec::new();
    let mut known: HashSet<JobId> = HashSet::new();
    loop {
        // Asked before the lines are read: what ended jobs wrote is then all there.
        let (heads, is_over) = jobs(&reader)?;
        for head in heads.iter().rev().filter(|head| known.insert(head.id.clone())) {
            let start = ends.get(&head.id).map_or(Start::Beginning, |end| Start::Offset(*end));
            follow(place, &reader, head, start, &mut follower, &mut followed)?;
        }
        let patience = if is_over { LAST_LINES } else { LOOK_EVERY };
        while let Some(update) = follower.next(patience).map_err(anyhow::Error::from)? {
            view.print_update(&followed[file_of(&update)], &update)?;
        }
        if is_over {
            return Ok(());
        }
    }
}

fn file_of(update: &Update) -> usize {
    let (Update::Record { file, .. } | Update::Fault { file, .. } | Update::Restarted { file, .. }) =
        update;
    *file
}

/// Says where a job's transcript went, as far as that is known.
fn why_no_transcript(place: &Place, job: &JobId) -> Outcome<String> {
    let dir = place.dir()?;
    let name = dir.log_of(job).file_name().unwrap_or_default().to_owned();
    let trashed = dir.trashed_job(job).join(name);
    Ok(match trashed.is_file() {
        true => format!(
            "the transcript of job {job} was put away, as `retention` in the config says: {trashed}"
        ),
        false => format!("job {job} has no transcript: none was written, or its file is gone"),
    })
}

fn follow_job(
    reader: &Reader,
    head: &JobHead,
    follower: &mut Follower,
    view: &mut View,
) -> Outcome {
    loop {
        // Asked before the lines are read: what an ended job wrote is then all there.
        let ended = reader.job(&head.id)?.is_none_or(|job| job.head.status.is_final());
        let patience = if ended { LAST_LINES } else { LOOK_EVERY };
        while let Some(update) = follower.next(patience).map_err(anyhow::Error::from)? {
            view.print_update(head, &update)?;
        }
        if ended {
            return view.unfinished(head, true).iter().try_for_each(|line| view.print(line));
        }
    }
}

/// Prints what is written from now on: by the jobs that are there, and by those that come.
fn follow_fleet(
    place: &Place,
    reader: &Reader,
    agent: Option<&str>,
    mut view: View,
    there: &[JobHead],
    ends: &HashMap<JobId, u64>,
) -> Outcome {
    let mut follower = Follower::new();
    let mut followed: Vec<JobHead> = Vec::new();
    let mut known: HashSet<JobId> = there.iter().map(|head| head.id.clone()).collect();
    for head in there {
        let start = ends.get(&head.id).map_or(Start::End, |end| Start::Offset(*end));
        if !head.status.is_final() || ends.contains_key(&head.id) {
            follow(place, reader, head, start, &mut follower, &mut followed)?;
        }
    }
    loop {
        for head in newest_jobs(reader, agent)? {
            if known.insert(head.id.clone()) {
                follow(place, reader, &head, Start::Beginning, &mut follower, &mut followed)?;
            }
        }
        while let Some(update) = follower.next(LOOK_EVERY).map_err(anyhow::Error::from)? {
            view.print_update(&followed[file_of(&update)], &update)?;
        }
    }
}

fn follow(
    place: &Place,
    reader: &Reader,
    head: &JobHead,
    start: Start,
    follower: &mut Follower,
    followed: &mut Vec<JobHead>,
) -> Outcome {
    if let Some(path) = place.log_path(reader, head)? {
        follower.add(&path, start);
        followed.push(head.clone());
    }
    Ok(())
}

fn newest_jobs(reader: &Reader, agent: Option<&str>) -> Outcome<Vec<JobHead>> {
    let filter = JobFilter { agent: agent.map(str::to_owned), ..JobFilter::default() };
    Ok(reader.jobs(&filter, None, JOBS_LOOKED_AT_MAX)?)
}

/// What has been printed, and how.
struct View {
    how: How,
    zone: TimeZone,
    /// How wide the names of agents are, where lines begin with them.
    agent_width: Option<usize>,
    /// The day of the last line; another day is announced.
    day: Date,
    /// What each job has told so far.
    told: HashMap<JobId, Telling>,
}

/// One line that is to be printed.
struct Line {
    at: Option<Timestamp>,
    agent: String,
    what: What,
}

enum What {
    Row(Row),
    Json(String),
}

impl View {
    fn new(how: &How) -> View {
        let zone = TimeZone::system();
        let day = place::now().to_zoned(zone.clone()).date();
        View { how: how.clone(), zone, agent_width: None, day, told: HashMap::new() }
    }

    /// Returns how many rows make the lines that are wanted: a call and its result are one line.
    fn rows_wanted(&self) -> usize {
        let lines = self.how.lines.get();
        if self.how.json { lines } else { lines.saturating_mul(2) }
    }

    /// Prints the newest lines over several jobs in order of time; returns where each ended.
    fn print_newest(
        &mut self,
        place: &Place,
        reader: &Reader,
        heads: &[JobHead],
    ) -> Outcome<HashMap<JobId, u64>> {
        let wanted = self.how.lines.get();
        let mut lines: Vec<Line> = Vec::new();
        let mut ends = HashMap::new();
        for head in heads {
            if lines.len() >= wanted {
                break;
            }
            let Some(path) = place.log_path(reader, head)?.filter(|path| path.is_file()) else {
                continue;
            };
            let page = tail(&path, self.rows_wanted()).map_err(anyhow::Error::from)?;
            ends.insert(head.id.clone(), page.end);
            self.tell_faults(&page.faults, &path)?;
            lines.extend(page.records.iter().filter_map(|record| self.line(head, record)));
        }
        // Stable: rows of one job stay in the order in which they were written.
        lines.sort_by_key(|line| line.at);
        self.print_last(lines)?;
        Ok(ends)
    }

    fn print_page(&mut self, head: &JobHead, page: &Page) -> Outcome {
        let mut lines: Vec<Line> =
            page.records.iter().filter_map(|record| self.line(head, record)).collect();
        if !self.how.follow {
            lines.extend(self.unfinished(head, head.status.is_final()));
        }
        self.print_last(lines)?;
        self.tell_faults(&page.faults, &Utf8PathBuf::from("the transcript"))
    }

    fn print_last(&mut self, lines: Vec<Line>) -> Outcome {
        let skip = lines.len().saturating_sub(self.how.lines.get());
        lines.into_iter().skip(skip).try_for_each(|line| self.print(&line))
    }

    fn print_update(&mut self, head: &JobHead, update: &Update) -> Outcome {
        match update {
            Update::Record { record, .. } => match self.line(head, record) {
                Some(line) => self.print(&line),
                None => Ok(()),
            },
            Update::Fault { fault, .. } => {
                self.tell_faults(&[*fault], &Utf8PathBuf::from("the transcript"))
            }
            Update::Restarted { .. } => {
                self.told.remove(&head.id);
                Ok(output::note("the transcript was replaced; reading it from its start")?)
            }
        }
    }

    /// Returns the calls of a job that have no result, or not yet.
    fn unfinished(&mut self, head: &JobHead, ended: bool) -> Vec<Line> {
        let why = if ended { "no result" } else { "no result yet" };
        let told = self.told.get_mut(&head.id).map(|told| told.unfinished(why));
        let line = |row: Row| Line { at: row.at, agent: head.agent.clone(), what: What::Row(row) };
        told.into_iter().flatten().map(line).collect()
    }

    /// Returns the line that a row becomes, if it becomes one now.
    fn line(&mut self, head: &JobHead, record: &Record) -> Option<Line> {
        let text = record.text.as_bytes();
        let (at, what) = match self.how.json {
            true => (Row::read(text).at, What::Json(record.text.clone())),
            false => {
                let told = self.told.entry(head.id.clone()).or_insert_with(Telling::new);
                let row = told.row(text)?;
                (row.at, What::Row(row))
            }
        };
        Some(Line { at, agent: head.agent.clone(), what })
    }

    fn print(&mut self, line: &Line) -> Outcome {
        let row = match &line.what {
            What::Json(text) => return Ok(output::json_line(text)?),
            What::Row(row) => row,
        };
        if let Some(day) = row.at.map(|at| at.to_zoned(self.zone.clone()).date())
            && day != self.day
        {
            self.day = day;
            output::line(Text::styled(Style::new().dimmed(), &format!("{day}")))?;
        }
        let shown = row.show(&self.zone);
        match self.agent_width {
            None => output::line(shown)?,
            Some(width) => {
                let agent = format!("{:<width$} ", output::one_line(&line.agent));
                output::line(Text::from(agent).then(shown))?;
            }
        }
        Ok(())
    }

    /// Says what was skipped, on stderr, so that nothing looks whole that is not.
    fn tell_faults(&self, faults: &[Fault], path: &camino::Utf8Path) -> Outcome {
        for fault in faults {
            let what = match fault.kind {
                heeler_transcript::FaultKind::TornTail => "an unfinished last line",
                heeler_transcript::FaultKind::Nul => "NUL bytes",
                heeler_transcript::FaultKind::NotUtf8 => "bytes that are not text",
                heeler_transcript::FaultKind::NotAnObject => "a damaged line",
                heeler_transcript::FaultKind::TooLong => "a line that is too long",
            };
            output::note(&format!(
                "skipped {what} at byte {} of {path} ({} bytes)",
                fault.offset, fault.len
            ))?;
        }
        Ok(())
    }
}
