//! A file system without inodes, on which the database can still be written.
//!
//! Each test runs again in a mount namespace of its own, with its temporary directory on a small disk.

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobRequest, JobStatus};

use super::EngineFixture;
use super::daemon::RunningDaemon;
use crate::command::{CommandReply, DaemonCommand, DaemonMode, StopMode};

/// Set in the second process of a test.
const INSIDE: &str = "HEELER_TEST_SMALL_DISK";

/// Number of files on the small disk.
const INODES: usize = 400;

/// Returns true in the mount namespace; otherwise runs the test there.
#[expect(clippy::disallowed_methods, reason = "the test runs itself again on another disk")]
fn is_on_small_disk(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let temp = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o nr_inodes={INODES},size=64m none \"$0\" && exec \"$@\"");
    let done = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &mount])
        .arg(temp.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("TMPDIR", temp.path())
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    let shown = format!("{out}{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.contains("1 passed"), "{shown}");
    false
}

/// Creates files until no more can be created.
fn fill(root: &Utf8Path) -> Vec<Utf8PathBuf> {
    let names = (0..=INODES).map(|number| root.join(format!("filler-{number}")));
    let files: Vec<Utf8PathBuf> =
        names.take_while(|name| std::fs::File::create(name).is_ok()).collect();
    assert!(!files.is_empty() && files.len() <= INODES);
    files
}

fn faults(running: &RunningDaemon) -> Vec<String> {
    match running.handle.send_and_wait(DaemonCommand::Status).unwrap() {
        CommandReply::Status(status) => status.faults,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_waits_for_space_for_its_files_and_status_says_so() {
    if !is_on_small_disk("tests::full_disk::a_job_waits_for_space_for_its_files_and_status_says_so")
    {
        return;
    }
    let place = EngineFixture::new("success");
    let config = "agents: [{name: a, runtime: command, command: x, working_directory: .}]";
    let running = place.daemon(DaemonMode::Permanent, config);
    let trigger = || {
        let wanted = Box::new(JobRequest::new("a".parse().unwrap()));
        match running.handle.send_and_wait(DaemonCommand::Trigger(wanted)).unwrap() {
            CommandReply::Job { job, .. } => job,
            other => panic!("{other:?}"),
        }
    };
    let first = trigger();
    place.wait_for(&first, JobStatus::Completed);
    let view = |job: &heeler_model::JobId| place.root.join(format!(".heeler/jobs/{job}.yaml"));
    place.wait_until(|| view(&first).exists());
    assert_eq!(faults(&running), [""; 0]);

    let files = fill(&place.root);
    let waiting = trigger();
    let has_tried = || {
        let runs = place.reader().runs_of_job(&waiting).unwrap();
        runs.first().is_some_and(|run| run.committed)
    };
    place.wait_until(has_tried);
    assert_eq!(place.job(&waiting).head.status, JobStatus::Pending);
    let told = faults(&running);
    assert!(told.len() == 1 && told[0].contains("the disk is full"), "{told:?}");
    let queue = place.reader().queue().unwrap();
    assert!(queue[0].reason.contains("no space"), "{queue:?}");
    // One that comes now waits too, and nothing is tried for it again and again.
    let later = trigger();
    place.wait_until(|| place.job(&later).head.status == JobStatus::Pending);

    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    for job in [&waiting, &later] {
        place.wait_for(job, JobStatus::Completed);
        place.wait_until(|| view(job).exists());
    }
    assert_eq!(faults(&running), [""; 0]);
    running.stop(StopMode::Wait { timeout: None });
}
