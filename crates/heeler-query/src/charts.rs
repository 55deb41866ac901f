//! Time series: jobs per hour, cost per day, durations of the most recent jobs.
//!
//! Each series has a fixed maximum length. Counts use ranges of an index.

use std::sync::PoisonError;

use heeler_model::JobStatus;
use heeler_store::{JobFilter, StoreReader};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// Number of hours in the job chart.
pub const CHART_HOURS: usize = 24;

/// Number of days in the cost chart.
pub const CHART_DAYS: usize = 14;

/// Number of jobs in the duration chart.
pub const CHART_DURATIONS_MAX: usize = 60;

/// Time for which charts are cached, because counting the jobs of a busy day is expensive.
pub const CHARTS_CACHE_TTL: SignedDuration = SignedDuration::from_secs(5);

/// Time for which the count of a past hour is cached once all of its jobs have ended. Only
/// importing or removing jobs changes it.
pub const HOUR_CACHE_TTL: SignedDuration = SignedDuration::from_mins(10);

/// Cached charts.
pub(crate) struct CachedCharts {
    at: Timestamp,
    zone: TimeZone,
    charts: FleetCharts,
    finished_hours: Vec<CachedHour>,
}

/// Cached count of an hour in which all jobs have ended, and the time of counting.
struct CachedHour {
    hour: HourlyJobCounts,
    at: Timestamp,
}

/// Time series of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetCharts {
    /// Jobs by the hour of their creation, oldest first; the last hour is still in progress.
    pub hours: Vec<HourlyJobCounts>,
    /// Cost by day, oldest first; the last day is still in progress.
    pub days: Vec<DailyCost>,
    /// Most recently ended jobs, oldest first.
    pub durations: Vec<JobDuration>,
}

/// Jobs created in one hour.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HourlyJobCounts {
    /// Start of the hour.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Number of completed jobs.
    pub completed: i64,
    /// Number of failed jobs.
    pub failed: i64,
    /// Number of cancelled, running and queued jobs.
    pub others: i64,
}

impl HourlyJobCounts {
    /// Returns the number of all jobs.
    pub fn total(&self) -> i64 {
        self.completed + self.failed + self.others
    }
}

/// Cost of one day.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DailyCost {
    /// Day in the fleet's time zone.
    #[schema(value_type = String, format = Date)]
    pub day: Date,
    /// Money spent, in US dollars.
    pub cost_usd: f64,
}

/// Duration of a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobDuration {
    /// Job ID.
    pub id: String,
    /// Name of the agent.
    pub agent: String,
    /// Final status.
    #[schema(value_type = String)]
    pub status: JobStatus,
    /// Total duration of its runs, in seconds.
    pub seconds: f64,
}

impl FleetReader {
    /// Returns the charts, at most [`CHARTS_CACHE_TTL`] old; days are in `zone`.
    pub fn charts(&self, now: Timestamp, zone: &TimeZone) -> Result<FleetCharts, QueryError> {
        // The lock is held while the charts are computed, so that concurrent requests share one
        // result.
        let mut cache = self.charts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = &*cache
            && cached.zone == *zone
            // A clock that was set back makes the cache look newer than now, which is no valid age.
            && (SignedDuration::ZERO..CHARTS_CACHE_TTL).contains(&now.duration_since(cached.at))
        {
            return Ok(cached.charts.clone());
        }
        let reader = self.reader()?;
        let mut finished_hours = cache.take().map_or_else(Vec::new, |cached| cached.finished_hours);
        finished_hours.retain(|it| {
            (SignedDuration::ZERO..HOUR_CACHE_TTL).contains(&now.duration_since(it.at))
        });
        let charts = FleetCharts {
            hours: hourly_job_counts(&reader, now, &mut finished_hours)?,
            days: load_daily_costs(&reader, None, CHART_DAYS, now, zone)?,
            durations: recent_durations(&reader)?,
        };
        *cache = Some(CachedCharts {
            at: now,
            zone: zone.clone(),
            charts: charts.clone(),
            finished_hours,
        });
        Ok(charts)
    }

    /// Returns the cost of an agent by day.
    pub fn daily_costs(
        &self,
        agent: &str,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Result<Vec<DailyCost>, QueryError> {
        load_daily_costs(&*self.reader()?, Some(agent), CHART_DAYS, now, zone)
    }

    /// Returns the cost of the fleet on each of the last days.
    pub fn fleet_daily_costs(
        &self,
        days: usize,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Result<Vec<DailyCost>, QueryError> {
        load_daily_costs(&*self.reader()?, None, days, now, zone)
    }
}

fn hourly_job_counts(
    reader: &StoreReader,
    now: Timestamp,
    finished_hours: &mut Vec<CachedHour>,
) -> Result<Vec<HourlyJobCounts>, QueryError> {
    // Hours of UTC, so that they do not change with the time zone.
    let this = now.as_second().div_euclid(3_600) * 3_600;
    let at = |back: usize| Timestamp::from_second(this - 3_600 * back as i64).unwrap_or(now);
    let mut hours = Vec::with_capacity(CHART_HOURS);
    for back in (0..CHART_HOURS).rev() {
        let from = at(back);
        if let Some(known) = finished_hours.iter().find(|it| it.hour.from == from) {
            hours.push(known.hour.clone());
            continue;
        }
        let (hour, is_open) = count_hour(reader, from, (back > 0).then(|| at(back - 1)))?;
        // The current hour still grows, and an hour with open jobs changes when they end.
        if back > 0 && !is_open {
            finished_hours.push(CachedHour { hour: hour.clone(), at: now });
        }
        hours.push(hour);
    }
    Ok(hours)
}

/// Counts the jobs of an hour. Also returns true if some have not ended.
fn count_hour(
    reader: &StoreReader,
    from: Timestamp,
    until: Option<Timestamp>,
) -> Result<(HourlyJobCounts, bool), QueryError> {
    // Jobs are created in the future only if the clock was set back; they count in the last hour.
    let until = until.unwrap_or(Timestamp::MAX);
    let mut hour = HourlyJobCounts { from, completed: 0, failed: 0, others: 0 };
    let mut is_open = false;
    for status in JobStatus::ALL {
        // One range of the index per status, because each is a covering count.
        let count = reader.count_jobs_between(*status, from, until)?;
        is_open |= count > 0 && !status.is_final();
        match status {
            JobStatus::Completed => hour.completed += count,
            JobStatus::Failed => hour.failed += count,
            _ => hour.others += count,
        }
    }
    Ok((hour, is_open))
}

fn load_daily_costs(
    reader: &StoreReader,
    agent: Option<&str>,
    days: usize,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<Vec<DailyCost>, QueryError> {
    let today = now.to_zoned(zone.clone()).date();
    let first = today.saturating_sub((days as i64 - 1).days());
    let mut spent = reader.daily_spend_since(Some(first))?;
    spent.retain(|row| agent.is_none_or(|agent| row.agent == agent));
    let day = |back: usize| {
        let day = today.saturating_sub((back as i64).days());
        // A day without spending has no row and counts as zero.
        let micros: i64 = spent.iter().filter(|row| row.day == day).map(|row| row.micros).sum();
        DailyCost { day, cost_usd: micros as f64 / 1e6 }
    };
    Ok((0..days).rev().map(day).collect())
}

fn recent_durations(reader: &StoreReader) -> Result<Vec<JobDuration>, QueryError> {
    let mut heads = Vec::new();
    // Cancelled jobs say nothing about usual durations.
    for status in [JobStatus::Completed, JobStatus::Failed] {
        let filter = JobFilter { status: Some(status), ..JobFilter::default() };
        heads.extend(reader.jobs(&filter, None, CHART_DURATIONS_MAX)?);
    }
    heads.sort_by(|one, other| (one.started_at, &one.id).cmp(&(other.started_at, &other.id)));
    let surplus = heads.len().saturating_sub(CHART_DURATIONS_MAX);
    let took = heads.into_iter().skip(surplus).filter_map(|head| {
        let seconds = head.duration_ms? as f64 / 1_000.0;
        Some(JobDuration {
            id: head.id.to_string(),
            agent: head.agent,
            status: head.status,
            seconds,
        })
    });
    Ok(took.collect())
}
