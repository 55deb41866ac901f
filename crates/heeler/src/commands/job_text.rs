//! Texts about a job that several commands print: status, start, duration and summary.

use heeler_model::{JobStatus, job_row};
use heeler_query::jobs::JobSummary;
use jiff::Timestamp;

use crate::output::{self, SafeText};

/// Returns the time since a job started or, if it has not, since it was requested.
pub(crate) fn start_text(job: &JobSummary, now: Timestamp) -> String {
    match job.started_at {
        Some(at) => output::relative_time(at, now),
        None => format!("requested {}", output::relative_time(job.asked_at, now)),
    }
}

/// Returns a one-line summary of a job, or its error.
pub(crate) fn job_summary(job: &JobSummary) -> String {
    output::one_line(job.error.as_ref().or(job.summary.as_ref()).map_or("", String::as_str))
}

/// Characters of a title that a list shows.
const TITLE_CHARS_MAX: usize = 40;

/// Returns the title of a job for a list.
pub(crate) fn title_text(job: &JobSummary) -> String {
    output::truncate_chars(&output::one_line(job.title.as_deref().unwrap_or("")), TITLE_CHARS_MAX)
}

/// Returns the status of a job, with a mark while its image is pulled or if its agent was denied tools.
pub(crate) fn marked_status_text(job: &JobSummary) -> SafeText {
    let status = status_text(job.status, job.dead);
    let status = if job.pulling { status.append(", pulling") } else { status };
    match job.denied {
        Some(_) => status
            .append(", ")
            .append(SafeText::styled(output::status_style(JobStatus::Cancelled), "denied")),
        None => status,
    }
}

/// Returns the duration of a job, if it is known.
pub(crate) fn duration_text(job: &JobSummary) -> Option<String> {
    job.duration_seconds.map(|seconds| job_row::format_duration((seconds * 1e3).round() as i64))
}

/// Returns a status in its colour.
pub(crate) fn status_text(status: JobStatus, dead: bool) -> SafeText {
    let (word, style) = match dead {
        true => ("dead", output::status_style(JobStatus::Failed)),
        false => (status.as_str(), output::status_style(status)),
    };
    SafeText::styled(style, word)
}
