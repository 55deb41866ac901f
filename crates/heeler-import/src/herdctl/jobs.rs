//! Import of herdctl's jobs: records, transcripts, readable output.

use std::cmp::Ordering;
use std::io::Cursor;

use camino::Utf8Path;
use heeler_model::{Job, JobId, JobTransition, parse_iso};
use heeler_store::staging::state_files::{self, PutOutcome};
use heeler_store::view_records::{JobViewRecord, parse_job};
use heeler_store::{LastLightExecution, PublishedView, sha256_hex};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;
use serde_json::Value;

use super::read::{check_agent, settle};
use super::{HerdctlImport, ImportPurpose, SourceFileOutcome};
use crate::import_error::ImportError;
use crate::report::ImportItemKind;
use crate::source::unsafe_name;

/// Jobs per sync and transaction.
const BATCH: usize = 1000;

/// A job with its files in place.
struct CopiedHerdctlJob {
    read: JobViewRecord,
    /// The existing row, if it has less information than the file.
    known: Option<Job>,
    sha256: String,
}

impl HerdctlImport<'_> {
    /// Imports all jobs, and transcripts without a record.
    pub(super) fn jobs(&mut self) -> Result<(), ImportError> {
        let names = self.source.names("jobs", ImportItemKind::Job, &mut self.report);
        let stems = names
            .iter()
            .filter_map(|name| name.strip_suffix(".yaml"))
            .filter(|stem| !stem.starts_with('.'))
            .collect::<Vec<_>>();
        for batch in stems.chunks(BATCH) {
            self.job_batch(batch)?;
        }
        for name in names.iter().filter(|name| name.ends_with(".jsonl")) {
            let stem = name.trim_end_matches(".jsonl");
            let id: Result<JobId, _> = stem.parse();
            match id {
                // The transcript was already copied with its record.
                Ok(id) if self.target.db().is_job_id_used(&id)? => {}
                Ok(_) => self
                    .copy_unreferenced_file(ImportItemKind::Transcript, &format!("jobs/{name}"))?,
                Err(error) => {
                    let what = format!("jobs/{name}");
                    self.report.refuse(ImportItemKind::Transcript, what, error.to_string());
                }
            }
        }
        Ok(())
    }

    fn job_batch(&mut self, stems: &[&str]) -> Result<(), ImportError> {
        let mut placed = Vec::new();
        for stem in stems {
            if let Some(job) = self.place_job(stem)? {
                placed.push(job);
            }
        }
        if placed.is_empty() {
            return Ok(());
        }
        let now = self.now;
        let (fresh, unfinished) = self.target.commit(move |tx| {
            let (mut fresh, mut unfinished) = (0_u64, 0_u64);
            for CopiedHerdctlJob { read, known, sha256 } in &placed {
                match known {
                    Some(job) => drop(tx.update_job(job)?),
                    // Another import may have inserted the job since it was read.
                    None if !tx.import_job(&read.job, &LastLightExecution::default())? => continue,
                    None => {}
                }
                fresh += 1;
                let view = PublishedView::Job(read.job.head.id.clone());
                // The copied file counts as published, so it is not written again.
                tx.adopt_view(&view, sha256, now)?;
                if read.job.interrupted && read.unfinished {
                    unfinished += 1;
                    // Its status changed with the import, so the file must be published again.
                    tx.mark_view_due(&view)?;
                }
            }
            Ok((fresh, unfinished))
        })?;
        (0..fresh).for_each(|_| self.report.count_imported(ImportItemKind::Job));
        self.interrupted += unfinished;
        Ok(())
    }

    /// Reads a job and copies its files; `None` if the job exists or is refused.
    fn place_job(&mut self, stem: &str) -> Result<Option<CopiedHerdctlJob>, ImportError> {
        let relative = format!("jobs/{stem}.yaml");
        let known = match stem.parse() {
            Ok(id) if self.purpose == ImportPurpose::Rebuild => self.target.db().job(&id)?,
            // Imported before, and possibly changed since.
            Ok(id) if self.target.db().is_job_id_used(&id)? => {
                self.report.count_existing(ImportItemKind::Job);
                if self.source.has(&format!("jobs/{stem}.jsonl")) {
                    self.report.count_existing(ImportItemKind::Transcript);
                }
                return Ok(None);
            }
            _ => None,
        };
        let read = self.source.text(&relative).and_then(|text| {
            let read = parse_job(stem, &text)?;
            if self.purpose == ImportPurpose::TakeOver {
                check_agent(&read.job.head.agent)?;
            }
            Ok((read, text))
        });
        let (mut read, text) = match read {
            Ok(read) => read,
            Err(reason) => {
                self.report.refuse(ImportItemKind::Job, relative, reason);
                return Ok(None);
            }
        };
        // The job is still being written. Ending it here would contradict its own process.
        if let (Some(pid), true) = (self.running_pid, read.unfinished) {
            let reason =
                format!("herdctl (process {pid}) is running it; import again when it has ended");
            self.report.refuse(ImportItemKind::Job, relative, reason);
            return Ok(None);
        }
        let known = match known {
            None => None,
            // In a rebuild the row comes from a backup, and the view may be newer.
            Some(row) => match overlay(row, &read.job) {
                Some(job) => Some(job),
                None => {
                    self.report.count_existing(ImportItemKind::Job);
                    return Ok(None);
                }
            },
        };
        // Transcripts are copied before the row that names them.
        if self.place_logs(stem, &read)? == SourceFileOutcome::NameTaken {
            self.report.refuse(
                ImportItemKind::Job,
                relative,
                "a different file with the name of its transcript exists",
            );
            return Ok(None);
        }
        if read.unfinished && self.purpose == ImportPurpose::TakeOver {
            settle(&mut read.job);
            // The end of a job that was cut off is not recorded anywhere else.
            read.job.head.finished_at =
                last_moment(&self.target.dir().job_transcript(&read.job.head.id));
        }
        read.job.origin.clone_from(&self.origin);
        // The record is written last: a job in `jobs/` with a record is complete.
        if !self.target.is_at(&self.source.root().join(&relative), &relative) {
            let to = self.target.path(&relative)?;
            let put = state_files::put_new(&mut Cursor::new(&text), &to)?;
            // A longer file of the same name belongs to another job.
            if matches!(put, PutOutcome::Grown | PutOutcome::NameTaken) {
                self.report.refuse(ImportItemKind::Job, relative, state_files::NAME_TAKEN);
                return Ok(None);
            }
        }
        Ok(Some(CopiedHerdctlJob { read, known, sha256: sha256_hex(text.as_bytes()) }))
    }

    /// Copies a job's files; returns the result for its transcript.
    fn place_logs(
        &mut self,
        stem: &str,
        read: &JobViewRecord,
    ) -> Result<SourceFileOutcome, ImportError> {
        let usual = format!("{stem}.jsonl");
        // The name comes from a record and becomes part of a path.
        let other = read.output_name.as_deref().filter(|name| unsafe_name(name).is_none());
        let log = [Some(usual.as_str()), other]
            .into_iter()
            .flatten()
            .find(|name| self.source.has(&format!("jobs/{name}")));
        let outcome = match log {
            Some(log) => self.copy_file(
                ImportItemKind::Transcript,
                &format!("jobs/{log}"),
                &format!("jobs/{usual}"),
            )?,
            // A job that never wrote a row has no transcript, which is no fault.
            None => SourceFileOutcome::Present,
        };
        let output = format!("jobs/{stem}/output.log");
        if self.source.has(&output) {
            state_files::create_folder(&self.target.dir().root().join(format!("jobs/{stem}")))?;
            self.copy_file(ImportItemKind::File, &output, &output)?;
        }
        Ok(outcome)
    }
}

/// Merges a newer view into a row; `None` if it adds nothing.
fn overlay(row: Job, view: &Job) -> Option<Job> {
    let progress = |job: &Job| {
        let head = &job.head;
        (
            head.status,
            head.exit_reason,
            head.finished_at,
            head.session_id.clone(),
            job.restart_count,
        )
    };
    // The row may come from a backup that is older than the view.
    let is_undone = row.head.status.is_final() && !view.head.status.is_final();
    // A restart makes a finished job run again, so the number of restarts is compared first.
    let is_older = match view.restart_count.cmp(&row.restart_count) {
        Ordering::Less => true,
        Ordering::Equal => is_undone,
        Ordering::Greater => false,
    };
    if is_older || progress(&row) == progress(view) {
        return None;
    }
    let mut job = row;
    job.apply(JobTransition::Import { status: view.head.status });
    job.head.exit_reason = view.head.exit_reason;
    job.head.finished_at = view.head.finished_at;
    job.head.duration_ms = view.head.duration_ms;
    job.head.session_id.clone_from(&view.head.session_id);
    job.head.summary.clone_from(&view.head.summary);
    job.head.cost_usd = view.head.cost_usd;
    job.usage.clone_from(&view.usage);
    job.error.clone_from(&view.error);
    job.interrupted = view.interrupted;
    job.restart_count = view.restart_count;
    Some(job)
}

/// Returns the time of a transcript's last row, the latest time at which the job is known to
/// have run.
fn last_moment(log: &Utf8Path) -> Option<Timestamp> {
    // Checked first, because reading a pipe would block.
    untrusted_file::open(log).ok()?;
    let page = heeler_transcript::read_tail(log, 1).ok()?;
    let row: Value = serde_json::from_str(&page.records.last()?.text).ok()?;
    parse_iso(row.get("timestamp")?.as_str()?)
}
