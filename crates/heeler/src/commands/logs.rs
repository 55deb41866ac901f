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
use heeler_model::{JobHead, JobId};
use heeler_store::{JobFilter, Reader};
use heeler_transcript::{Fault, Follower, Record, Start, Update, tail};
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Text};
use crate::place::{self, Place};
use crate::rows::Row;

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
    let place = Place::find(global)?;
    let Some(reader) = place.reader()? else {
        return Ok(output::note(&format!("no transcripts yet in {}", place.state_dir))?);
    };
    let agent = args.agent.as_deref().map(|name| place.known_agent(&reader, name)).transpose()?;
    let heads = newest_jobs(&reader, agent.as_deref())?;
    let mut view = View::new(&args.how);
    view.agent_width = heads.iter().map(|head| head.agent.chars().count()).max().unwrap_or(0);
    let ends = view.print_newest(&place, &reader, &heads)?;
    if ends.is_empty() && !args.how.follow {
        output::note("no transcripts yet")?;
    }
    match args.how.follow {
        true => follow_fleet(&place, &reader, agent.as_deref(), view, &heads, &ends),
        false => Ok(()),
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
            let page = tail(path, how.lines.get()).map_err(anyhow::Error::from)?;
            view.print_page(None, &page.records, &page.faults)?;
            page.end
        }
        _ if how.follow && !job.head.status.is_final() => 0,
        _ => {
            let message = format!(
                "job {} has no transcript: none was written, or its file is gone",
                job.head.id
            );
            return Err(Failure::message(Code::NotFound, message));
        }
    };
    match path {
        Some(path) if how.follow => {
            let mut follower = Follower::new();
            follower.add(&path, Start::Offset(start));
            follow_job(&reader, &job.head.id, &mut follower, &mut view)
        }
        _ => Ok(()),
    }
}

fn follow_job(reader: &Reader, id: &JobId, follower: &mut Follower, view: &mut View) -> Outcome {
    loop {
        // Asked before the lines are read: what an ended job wrote is then all there.
        let ended = reader.job(id)?.is_none_or(|job| job.head.status.is_final());
        let patience = if ended { LAST_LINES } else { LOOK_EVERY };
        while let Some(update) = follower.next(patience).map_err(anyhow::Error::from)? {
            view.print_update(None, &update)?;
        }
        if ended {
            return Ok(());
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
            let (Update::Record { file, .. }
            | Update::Fault { file, .. }
            | Update::Restarted { file, .. }) = &update;
            let agent = followed[*file].agent.clone();
            view.print_update(Some(&agent), &update)?;
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
    agent_width: usize,
    /// The day of the last line; another day is announced.
    day: Date,
}

impl View {
    fn new(how: &How) -> View {
        let zone = TimeZone::system();
        let day = place::now().to_zoned(zone.clone()).date();
        View { how: how.clone(), zone, agent_width: 0, day }
    }

    /// Prints the newest lines over several jobs in order of time; returns where each ended.
    fn print_newest(
        &mut self,
        place: &Place,
        reader: &Reader,
        heads: &[JobHead],
    ) -> Outcome<HashMap<JobId, u64>> {
        let wanted = self.how.lines.get();
        let mut rows: Vec<(String, Row, Record)> = Vec::new();
        let mut ends = HashMap::new();
        for head in heads {
            if rows.len() >= wanted {
                break;
            }
            let Some(path) = place.log_path(reader, head)?.filter(|path| path.is_file()) else {
                continue;
            };
            let page = tail(&path, wanted).map_err(anyhow::Error::from)?;
            ends.insert(head.id.clone(), page.end);
            self.tell_faults(&page.faults, &path)?;
            rows.extend(
                page.records
                    .into_iter()
                    .map(|record| (head.agent.clone(), Row::read(record.text.as_bytes()), record)),
            );
        }
        // Stable: rows of one job stay in the order in which they were written.
        rows.sort_by_key(|(_, row, _)| row.at);
        let skip = rows.len().saturating_sub(wanted);
        for (agent, row, record) in rows.into_iter().skip(skip) {
            self.print_row(Some(&agent), &row, &record)?;
        }
        Ok(ends)
    }

    fn print_page(&mut self, agent: Option<&str>, records: &[Record], faults: &[Fault]) -> Outcome {
        for record in records {
            self.print_row(agent, &Row::read(record.text.as_bytes()), record)?;
        }
        self.tell_faults(faults, &Utf8PathBuf::from("the transcript"))
    }

    fn print_update(&mut self, agent: Option<&str>, update: &Update) -> Outcome {
        match update {
            Update::Record { record, .. } => {
                self.print_row(agent, &Row::read(record.text.as_bytes()), record)
            }
            Update::Fault { fault, .. } => {
                self.tell_faults(&[*fault], &Utf8PathBuf::from("the transcript"))
            }
            Update::Restarted { .. } => {
                Ok(output::note("the transcript was replaced; reading it from its start")?)
            }
        }
    }

    fn print_row(&mut self, agent: Option<&str>, row: &Row, record: &Record) -> Outcome {
        if self.how.json {
            return Ok(output::json_line(&record.text)?);
        }
        if let Some(day) = row.at.map(|at| at.to_zoned(self.zone.clone()).date())
            && day != self.day
        {
            self.day = day;
            output::line(Text::styled(Style::new().dimmed(), &format!("{day}")))?;
        }
        let line = row.show(&self.zone);
        match agent {
            None => output::line(line)?,
            Some(agent) => {
                let width = self.agent_width;
                let agent = format!("{:<width$} ", output::one_line(agent));
                output::line(Text::from(agent).then(line))?;
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
