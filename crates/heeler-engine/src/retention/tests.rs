//! Files of ended jobs before and after retention.

use heeler_model::{Job, JobStatus, TriggerType};
use heeler_store::{RunRecord, StoreWriteError};
use heeler_transcript::{TranscriptWriter, TranscriptWriterOptions};

use super::*;
use crate::tests::EngineFixture;

const HOUR: i64 = 3600;

struct RetentionFixture {
    place: EngineFixture,
}

impl RetentionFixture {
    fn new() -> RetentionFixture {
        RetentionFixture { place: EngineFixture::new("success") }
    }

    /// Stores a job that ended this many hours after the epoch, with all files of a job.
    fn job(&self, hours: i64, status: JobStatus) -> JobId {
        let at = Timestamp::from_second(hours * HOUR).unwrap();
        let id = JobId::mint(at, hours.unsigned_abs());
        let mut job = Job::new_pending(id.clone(), "a", TriggerType::Manual, at);
        job.head.status = status;
        job.head.finished_at = status.is_final().then_some(at);
        let run = RunRecord {
            id: RunId::mint(at, [7; 10]),
            job_id: id.clone(),
            attempt: 1,
            host: "here".to_owned(),
            epoch: 1,
            status: "finished".to_owned(),
            created_at: at,
            started_at: Some(at),
            finished_at: Some(at),
            committed: status.is_final(),
            version: 0,
            result_key: None,
        };
        let dir = &self.place.fleet.dir;
        fs::create_dir_all(dir.run(run.id)).unwrap();
        fs::write(dir.run(run.id).join("spec.json"), "{}").unwrap();
        fs::write(dir.job_transcript(&id), "{\"n\":1}\n").unwrap();
        fs::write(dir.jobs().join(format!("{id}.jsonl.torn-1")), "x").unwrap();
        fs::write(dir.job_yaml(&id), "id: x\n").unwrap();
        fs::create_dir_all(dir.jobs().join(id.as_str())).unwrap();
        fs::write(dir.job_output(&id), "text").unwrap();
        let written: Result<(), StoreWriteError<DatabaseError>> =
            self.place.store().write(move |tx| {
                tx.insert_job(&job)?;
                tx.insert_run(&run)
            });
        written.unwrap();
        id
    }

    fn put_away(&self, jobs: Option<&str>, count: Option<u32>, hours: i64) -> RetentionReport {
        let retention = RetentionPolicy {
            jobs: jobs.map(|period| period.parse().unwrap()),
            count: count.and_then(std::num::NonZeroU32::new),
        };
        let now = Timestamp::from_second(hours * HOUR).unwrap();
        apply_retention(&self.place.fleet.dir, &self.place.reader(), &retention, now).unwrap()
    }

    /// Names of a job's files in the trash.
    fn trashed(&self, job: &JobId) -> Vec<String> {
        let mut names = list_names(&self.place.fleet.dir.trashed_job(job)).unwrap_or_default();
        names.sort();
        names
    }

    /// Number of a job's files that were not moved.
    fn files(&self, job: &JobId) -> usize {
        let files = list_job_files(&self.place.fleet.dir, &self.place.reader()).unwrap();
        files.get(job).map_or(0, Vec::len)
    }
}

#[test]
fn files_of_jobs_that_ended_long_ago_go_to_the_trash_with_a_tombstone() {
    let rig = RetentionFixture::new();
    let (old, new) = (rig.job(1, JobStatus::Completed), rig.job(9, JobStatus::Failed));
    assert_eq!(rig.put_away(Some("5h"), None, 10).jobs, std::slice::from_ref(&old));
    assert_eq!((rig.files(&old), rig.files(&new)), (0, 4));
    let run = rig.place.reader().runs_of_job(&old).unwrap().remove(0).id;
    let mut expected = vec![
        old.to_string(),
        format!("{old}.jsonl"),
        format!("{old}.jsonl.torn-1"),
        run.to_string(),
        TOMBSTONE.to_owned(),
    ];
    expected.sort();
    assert_eq!(rig.trashed(&old), expected);
    let dir = &rig.place.fleet.dir;
    let tombstone = fs::read_to_string(dir.trashed_job(&old).join(TOMBSTONE)).unwrap();
    assert!(tombstone.contains("\"reason\": \"it ended more than 5h ago\""), "{tombstone}");
    // The row and its view stay.
    assert_eq!(rig.place.job(&old).head.status, JobStatus::Completed);
    assert!(dir.job_yaml(&old).exists());
    assert_eq!(rig.put_away(Some("5h"), None, 10), RetentionReport::default());
}

#[test]
fn no_files_go_to_the_trash_through_a_link() {
    let rig = RetentionFixture::new();
    let job = rig.job(1, JobStatus::Completed);
    let dir = &rig.place.fleet.dir;
    let outside = rig.place.root.join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(dir.trash().join("jobs")).unwrap();
    std::os::unix::fs::symlink(&outside, dir.trashed_job(&job)).unwrap();
    let reader = rig.place.reader();
    let files = list_job_files(dir, &reader).unwrap();
    let said = trash_job_files(dir, &reader, &job, &files[&job], "old", Timestamp::UNIX_EPOCH);
    assert!(matches!(said, Err(RetentionError::Name(NameError::Symlink { .. }))), "{said:?}");
    assert_eq!(rig.files(&job), 4);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn only_so_many_of_the_newest_are_kept() {
    let rig = RetentionFixture::new();
    let jobs: Vec<JobId> = (1..=4).map(|hour| rig.job(hour, JobStatus::Completed)).collect();
    assert_eq!(rig.put_away(None, Some(3), 10).jobs, jobs[..1]);
    assert_eq!(rig.put_away(None, Some(2), 10).jobs, jobs[1..2]);
    assert_eq!(rig.put_away(None, None, 1_000_000), RetentionReport::default());
}

#[test]
fn jobs_that_have_not_ended_and_logs_with_a_writer_are_left_alone() {
    let rig = RetentionFixture::new();
    let pending = rig.job(1, JobStatus::Pending);
    let running = rig.job(2, JobStatus::Running);
    let written = rig.job(3, JobStatus::Completed);
    let log = rig.place.fleet.dir.job_transcript(&written);
    let writer = TranscriptWriter::open(&log, TranscriptWriterOptions::default()).unwrap();
    assert_eq!(rig.put_away(Some("1h"), None, 100), RetentionReport::default());
    assert_eq!([pending, running].map(|job| rig.files(&job)), [4, 4]);
    writer.writer.close().unwrap();
    assert_eq!(rig.put_away(Some("1h"), None, 100).jobs, [written]);
}

#[test]
fn a_pass_that_was_cut_off_is_completed_by_the_next() {
    // A killed pass may have moved any number of files, from none to all.
    for moved in 0..=4 {
        let rig = RetentionFixture::new();
        let job = rig.job(1, JobStatus::Completed);
        let dir = &rig.place.fleet.dir;
        let trash = dir.trashed_job(&job);
        create_folder(&OsDisk, &trash).unwrap();
        let files = list_job_files(dir, &rig.place.reader()).unwrap();
        files[&job].iter().take(moved).for_each(|path| move_into(&trash, path).unwrap());
        rig.put_away(Some("1h"), None, 100);
        assert_eq!(
            (rig.files(&job), list_names(&trash).unwrap().len()),
            (0, if moved == 4 { 4 } else { 5 })
        );
    }
}

#[test]
fn a_job_that_was_resumed_after_its_files_went_loses_none() {
    let rig = RetentionFixture::new();
    let job = rig.job(1, JobStatus::Completed);
    rig.put_away(Some("1h"), None, 100);
    let log = rig.place.fleet.dir.job_transcript(&job);
    fs::write(&log, "{\"n\":2}\n").unwrap();
    rig.put_away(Some("1h"), None, 100);
    let trash = rig.place.fleet.dir.trashed_job(&job);
    let read = |name: String| fs::read_to_string(trash.join(name)).unwrap();
    assert_eq!(read(format!("{job}.jsonl")), "{\"n\":1}\n");
    assert_eq!(read(format!("{job}.jsonl.2")), "{\"n\":2}\n");
}

#[test]
fn a_pass_takes_so_many_jobs_and_says_that_more_are_left() {
    let rig = RetentionFixture::new();
    let jobs: Vec<JobId> = (1..=3).map(|hour| rig.job(hour, JobStatus::Completed)).collect();
    let retention = RetentionPolicy { jobs: Some("1h".parse().unwrap()), count: None };
    let now = Timestamp::from_second(100 * HOUR).unwrap();
    let pass = || run_pass(&rig.place.fleet.dir, &rig.place.reader(), &retention, now, 2).unwrap();
    assert_eq!(pass(), RetentionReport { jobs: jobs[..2].to_vec(), has_more: true });
    assert_eq!(pass(), RetentionReport { jobs: jobs[2..].to_vec(), has_more: false });
}
