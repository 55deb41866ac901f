//! Job lists of one state of the database, as data or as JSON. Start at [`JobListSnapshot`].

use heeler_model::{AgentSessionId, ExitReason, JobId, JobStatus, parse_iso};
use heeler_store::{DatabaseError, JobCursor, JobFilter, JobListText, StoreReader};
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::jobs::{JobLife, JobListQuery, JobPage};
use crate::{FleetReader, QueryError};

/// Length of a time with milliseconds: `2026-11-15T00:48:57.120Z`.
const TIME_BYTES: usize = 24;

impl FleetReader {
    /// Calls `read` with lists that all show the same state of the database.
    pub fn with_job_lists<T>(
        &self,
        read: impl FnOnce(&mut JobListSnapshot<'_>) -> T,
    ) -> Result<T, QueryError> {
        let reader = self.reader()?;
        let mut lists = JobListSnapshot { records: self, reader: &reader, totals: Vec::new() };
        Ok(reader.in_snapshot(|| read(&mut lists))?)
    }
}

/// Job lists of one state of the database.
#[derive(Debug)]
pub struct JobListSnapshot<'r> {
    records: &'r FleetReader,
    reader: &'r StoreReader,
    /// Totals that were read already; they are the same for all pages of a list.
    totals: Vec<(JobFilter, i64)>,
}

impl JobListSnapshot<'_> {
    /// Returns a page of a list, newest first.
    pub fn page(&mut self, wanted: &JobListQuery) -> Result<JobPage, QueryError> {
        let (filter, before) = self.bounds(wanted)?;
        let limit = wanted.limit;
        // One extra entry shows if there is a next page.
        let mut lines =
            self.reader.job_list_rows(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = self.total(filter)?;
        let has_more = lines.len() > limit;
        lines.truncate(limit);
        let next = lines.last().filter(|_| has_more).map(|last| last.head.id.to_string());
        let jobs = self.records.job_summaries(self.reader, lines)?;
        Ok(JobPage { jobs, total, limit, next })
    }

    /// Appends a page as JSON: the same text as that of [`JobListSnapshot::page`], without copies of
    /// each field.
    pub fn write_page(
        &mut self,
        wanted: &JobListQuery,
        json: &mut Vec<u8>,
    ) -> Result<(), QueryError> {
        // Jobs before that time end the list, so each time must be parsed anyway.
        if wanted.since.is_some() {
            return Ok(serde_json::to_writer(json, &self.page(wanted)?)?);
        }
        let (filter, before) = self.bounds(wanted)?;
        let (records, reader, limit) = (self.records, self.reader, wanted.limit);
        let (mut count, mut last) = (0, None);
        json.extend_from_slice(br#"{"jobs":["#);
        let one_more = limit.saturating_add(1);
        reader.visit_job_list(&filter, before.as_ref(), one_more, |line| {
            count += 1;
            if count > limit {
                return Ok(());
            }
            if count > 1 {
                json.push(b',');
            }
            let life = JobLife::look_up((&line.id, line.status), reader, records.dir())?;
            serde_json::to_writer(&mut *json, &JobSummaryText::new(&line, life)?)?;
            last = Some(line.id);
            Ok::<_, QueryError>(())
        })?;
        json.push(b']');
        let next = last.filter(|_| count > limit);
        let end = JobPageEnd { total: self.total(filter)?, limit, next };
        // The end is an object of its own, whose brace becomes the comma.
        let at = json.len();
        serde_json::to_writer(&mut *json, &end)?;
        json[at] = b',';
        Ok(())
    }

    /// Returns the filter of a list, and the position of its page.
    fn bounds(&self, wanted: &JobListQuery) -> Result<(JobFilter, Option<JobCursor>), QueryError> {
        let JobListQuery { agent, status, since, host, before, .. } = wanted;
        let resolve = |name| self.records.resolve_agent_name(self.reader, name);
        let agent = agent.as_deref().map(resolve).transpose()?;
        let before = before.as_deref().map(|id| job_cursor(self.reader, id)).transpose()?;
        if let Some(host) = host {
            check_host(self.reader, host)?;
        }
        let host = host.clone();
        Ok((JobFilter { agent, status: *status, since: *since, host }, before))
    }

    fn total(&mut self, filter: JobFilter) -> Result<i64, QueryError> {
        if let Some((_, total)) = self.totals.iter().find(|(known, _)| *known == filter) {
            return Ok(*total);
        }
        let total = self.reader.count_jobs(&filter)?;
        self.totals.push((filter, total));
        Ok(total)
    }
}

/// Refuses a name that no host has. The jobs of a host that was removed can still be listed.
fn check_host(reader: &StoreReader, name: &str) -> Result<(), QueryError> {
    if reader.hosts()?.iter().any(|host| host.name == name) {
        return Ok(());
    }
    let filter = JobFilter { host: Some(name.to_owned()), ..JobFilter::default() };
    match reader.jobs(&filter, None, 1)?.is_empty() {
        true => {
            let message = format!("there is no host `{name}`");
            Err(QueryError::not_found(message, "heeler host list"))
        }
        false => Ok(()),
    }
}

/// Returns the list position of a job without reading its prompt.
fn job_cursor(reader: &StoreReader, id: &str) -> Result<JobCursor, QueryError> {
    // A complete id is found without reading the prompt; a prefix needs the full search.
    let cursor = id.parse().ok().map(|id| reader.job_cursor(&id)).transpose()?.flatten();
    match cursor {
        Some(cursor) => Ok(cursor),
        None => Ok(JobCursor::after(&reader.find_job(id)?.head)),
    }
}

/// Fields of a [`JobPage`] after its jobs.
#[derive(Serialize)]
struct JobPageEnd {
    total: i64,
    limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<JobId>,
}

/// [`JobSummary`](crate::jobs::JobSummary) in the text of its row. Both have the same fields in the
/// same order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSummaryText<'r> {
    id: &'r JobId,
    agent: &'r str,
    schedule: Option<&'r str>,
    status: JobStatus,
    dead: bool,
    pulling: bool,
    trigger_type: &'r str,
    asked_at: RowTime,
    started_at: Option<RowTime>,
    finished_at: Option<RowTime>,
    duration_seconds: Option<f64>,
    exit_reason: Option<ExitReason>,
    cost_usd: Option<f64>,
    session_id: Option<&'r AgentSessionId>,
    summary: Option<&'r str>,
    title: Option<&'r str>,
    denied: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'r str>,
}

impl<'r> JobSummaryText<'r> {
    fn new(line: &'r JobListText<'r>, life: JobLife) -> Result<JobSummaryText<'r>, DatabaseError> {
        let time = |text: &str| {
            RowTime::new(text).ok_or_else(|| DatabaseError::BadRow {
                table: "executions",
                row: line.id.to_string(),
                reason: format!("`{text}` is not a time"),
            })
        };
        Ok(JobSummaryText {
            id: &line.id,
            agent: line.agent,
            schedule: line.schedule,
            status: line.status,
            dead: life.is_dead,
            pulling: life.is_pulling,
            trigger_type: line.trigger_type,
            asked_at: time(line.asked_at)?,
            started_at: line.began_at.map(time).transpose()?,
            finished_at: line.finished_at.map(time).transpose()?,
            duration_seconds: line.duration_ms.map(|ms| ms as f64 / 1_000.0),
            exit_reason: line.exit_reason,
            cost_usd: line.cost_usd,
            session_id: line.session_id.as_ref(),
            summary: line.summary,
            title: line.title,
            denied: line.denied,
            host: line.host,
        })
    }
}

/// Time of a row, for JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RowTime {
    /// ASCII text of this length.
    Text([u8; TIME_BYTES], usize),
    Parsed(Timestamp),
}

impl RowTime {
    fn new(text: &str) -> Option<RowTime> {
        RowTime::from_canonical(text).or_else(|| Some(RowTime::Parsed(parse_iso(text)?)))
    }

    /// Takes over a time as Heeler writes it. Days after the 28th depend on the month, so those are
    /// parsed.
    fn from_canonical(text: &str) -> Option<RowTime> {
        let bytes: [u8; TIME_BYTES] = text.as_bytes().try_into().ok()?;
        let mask = b"dddd-dd-ddTdd:dd:dd.dddZ";
        let fits = |(byte, mask): (&u8, &u8)| match mask {
            b'd' => byte.is_ascii_digit(),
            _ => byte == mask,
        };
        if !bytes.iter().zip(mask).all(fits) {
            return None;
        }
        let number = |at: usize| 10 * (bytes[at] - b'0') + (bytes[at + 1] - b'0');
        let is_valid = (1..=12).contains(&number(5))
            && (1..=28).contains(&number(8))
            && number(11) < 24
            && number(14) < 60
            && number(17) < 60;
        is_valid.then(|| RowTime::trimmed(bytes))
    }

    /// Removes the zeros at the end of the fraction, as JSON has the shortest form.
    fn trimmed(mut bytes: [u8; TIME_BYTES]) -> RowTime {
        let mut end = TIME_BYTES - 1;
        while bytes[end - 1] == b'0' && end > TIME_BYTES - 4 {
            end -= 1;
        }
        if bytes[end - 1] == b'.' {
            end -= 1;
        }
        bytes[end] = b'Z';
        RowTime::Text(bytes, end + 1)
    }
}

impl Serialize for RowTime {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            RowTime::Text(bytes, length) => {
                let text = std::str::from_utf8(&bytes[..*length]);
                to.serialize_str(text.map_err(serde::ser::Error::custom)?)
            }
            RowTime::Parsed(at) => at.serialize(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::iso_millis;

    use super::*;

    #[test]
    fn a_time_of_a_row_is_the_same_text_as_the_parsed_time() {
        for text in [
            "2026-11-15T00:48:57.120Z",
            "2026-11-15T00:48:57.100Z",
            "2026-11-15T00:48:50.000Z",
            "2026-11-15T23:59:59.001Z",
            "2024-02-29T00:00:00.010Z",
            "0001-01-01T00:00:00.000Z",
            // Forms of other programs.
            "2026-11-15T00:48:57Z",
            "2026-11-15T01:48:57.5+01:00",
            "2026-11-15T00:48:57.123456Z",
        ] {
            let parsed: Timestamp = text.parse().unwrap();
            let found = serde_json::to_string(&RowTime::new(text).unwrap()).unwrap();
            assert_eq!(found, serde_json::to_string(&parsed).unwrap(), "{text}");
        }
        for text in [
            "2026-13-15T00:48:57.120Z",
            "2026-02-30T00:00:00.000Z",
            "2026-11-15T24:00:00.000Z",
            "2026-11-15T00:60:00.000Z",
            "2026-11-00T00:00:00.000Z",
            "2026-11-15T00:48:57.12\"Z",
            "yesterday",
        ] {
            assert_eq!(RowTime::new(text), None, "{text}");
        }
    }

    #[test]
    fn most_times_are_taken_over() {
        for seconds in (0..4_000_000_000_i64).step_by(99_991) {
            let at = Timestamp::from_millisecond(seconds * 1_000 + seconds % 1_000).unwrap();
            let text = iso_millis(at);
            let found = serde_json::to_string(&RowTime::new(&text).unwrap()).unwrap();
            assert_eq!(found, serde_json::to_string(&at).unwrap());
            let is_late = text[8..10].parse::<u8>().unwrap() > 28;
            assert_eq!(RowTime::from_canonical(&text).is_none(), is_late, "{text}");
        }
    }
}
