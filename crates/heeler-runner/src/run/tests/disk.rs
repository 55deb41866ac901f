//! A disk that is full: before the start, in between, to the end. And one that hangs.

use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use heeler_model::ExitReason;
use heeler_model::run::RunEnd;
use heeler_testkit::DiskHook;

use super::*;
use crate::settle_run;

/// A disk that takes no bytes while it is full, and counts how often it was tried; and on which the
/// runner hangs until it is let go, as if it had been stopped.
#[derive(Debug, Default)]
pub(super) struct BadDisk {
    pub(super) writes: Mutex<()>,
    /// How many writes hang.
    hung: AtomicUsize,
    syncs: Mutex<()>,
    full: AtomicBool,
    /// Full after so many more writes; 0 for never.
    after: AtomicUsize,
    refused: AtomicUsize,
    /// How long a sync takes, if it is to be only that.
    slow: Duration,
}

impl BadDisk {
    fn filled_after(writes: usize) -> Arc<HookedDisk<BadDisk>> {
        Arc::new(HookedDisk(BadDisk { after: writes.into(), ..BadDisk::default() }))
    }
}

impl DiskHook for BadDisk {
    fn before_write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.hung.fetch_add(1, Ordering::SeqCst);
        let _free = self.writes.lock().unwrap();
        self.hung.fetch_sub(1, Ordering::SeqCst);
        if self.after.load(Ordering::SeqCst) > 0 && self.after.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.full.store(true, Ordering::SeqCst);
        }
        if !self.full.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        // As a real one: a part may still fit.
        if bytes.len() > 10 {
            OsDisk.write(file, &bytes[..10])?;
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let _free = self.syncs.lock().unwrap();
        if self.slow > Duration::ZERO {
            std::thread::sleep(self.slow);
            return Ok(());
        }
        OsDisk.sync(file)
    }
}

#[test]
fn a_session_is_held_until_its_log_is_complete() {
    let disk = Arc::new(HookedDisk::<BadDisk>::default());
    let first = command_fixture("until [ -e go ]; do sleep 0.01; done; exit 3").disk(disk.clone());
    let running = first.start();
    let hung = disk.syncs.lock().unwrap();
    first.touch("go");
    // The last row is there, and is not synced.
    first.wait_row("\"cure\"");
    let mut second = command_fixture("true");
    second.spec.home = first.spec.home.clone();
    assert_eq!(second.run().end, RunEnd::SessionBusy);
    drop(hung);
    assert_eq!(class(&running.finish()), Some(ErrorClass::AgentFailed));
    let mut third = command_fixture("true");
    third.spec.home = first.spec.home.clone();
    assert_eq!(third.run().exit_reason, ExitReason::Success);
}

#[test]
fn a_full_disk_stops_the_agent_and_nothing_is_lost_when_it_has_space_again() {
    let disk = Arc::new(HookedDisk::<BadDisk>::default());
    let trial = command_fixture("seq 1 100; until [ -e go ]; do sleep 0.01; done; seq 101 2000");
    let trial = trial.disk(disk.clone());
    let running = trial.start();
    let mut told = running.subscriber();
    trial.wait_row("\"100\"");
    disk.full.store(true, Ordering::SeqCst);
    trial.touch("go");
    let trouble = told.hear("disk", "trouble");
    assert!(trouble["trouble"].is_string(), "{trouble}");
    let state = status(&mut running.client());
    assert!(state.disk_trouble.is_some());
    let rows = state.rows;
    // Several pauses go by, and not one row is added or lost.
    wait_for("retries", || disk.refused.load(Ordering::SeqCst) > 4);
    assert_eq!(status(&mut running.client()).rows, rows);
    let reason = running.client().refused(ControlOperation::message("hi".to_owned()));
    assert!(reason.contains("the disk accepts no rows"), "{reason}");
    disk.full.store(false, Ordering::SeqCst);
    let well = told.hear("disk", "null");
    assert!(well["trouble"].is_null());
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Success);
    let expect: Vec<String> = (1..=2000).map(|number| number.to_string()).collect();
    let said = trial.said();
    assert!(said.join("\n") == expect.join("\n"), "{} rows", said.len());
    assert_eq!(RunFixture::rows(&trial.session_log()).len(), trial.job_rows().len());
}

#[test]
fn at_the_time_limit_a_run_on_a_full_disk_ends_with_a_result() {
    let disk = BadDisk::filled_after(20);
    let mut trial = command_fixture("seq 1 100; : > said; sleep 1000").disk(disk.clone());
    trial.spec.limits.timeout_ms = Some(LIMIT_MS);
    let result = trial.start_late(&disk, "said").finish();
    assert_eq!((result.exit_reason, class(&result)), (ExitReason::Error, Some(ErrorClass::Disk)));
    assert!(trial.dir().join("result.json").exists());
    assert!(!trial.said().is_empty());
}

#[test]
fn an_agent_that_ends_while_the_disk_is_full_is_recorded_when_it_has_space_again() {
    let disk = BadDisk::filled_after(10);
    let trial = command_fixture("seq 1 100").disk(disk.clone());
    let running = trial.start();
    wait_for("retries", || disk.refused.load(Ordering::SeqCst) > 2);
    wait_for("the agent's end", || status(&mut running.client()).agent_pid.is_none());
    disk.full.store(false, Ordering::SeqCst);
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert_eq!(trial.said().len(), 100);
}

#[test]
fn what_an_agent_said_last_while_the_disk_was_full_is_read_however_long_that_took() {
    let disk = Arc::new(HookedDisk::<BadDisk>::default());
    let trial = stream_fixture(
        "say one; until [ -e go ]; do sleep 0.01; done; say two
        until [ -e end ]; do sleep 0.01; done; say three; result done",
    );
    let trial = trial.disk(disk.clone());
    let running = trial.start();
    trial.wait_row("one");
    disk.full.store(true, Ordering::SeqCst);
    trial.touch("go");
    wait_for("the full disk", || disk.refused.load(Ordering::SeqCst) > 0);
    // Nothing is read any more: what the agent says now stays in the pipe.
    trial.touch("end");
    wait_for("the agent's end", || status(&mut running.client()).agent_pid.is_none());
    wait_for("retries", || disk.refused.load(Ordering::SeqCst) > 7);
    disk.full.store(false, Ordering::SeqCst);
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(result.cost.usd, Some(0.5));
    assert_eq!(trial.said(), ["one", "two", "three"]);
}

#[test]
fn a_cancel_does_not_wait_for_the_disk() {
    let disk = BadDisk::filled_after(10);
    let trial = command_fixture("seq 1 100; sleep 1000").disk(disk.clone());
    let running = trial.start();
    wait_for("retries", || disk.refused.load(Ordering::SeqCst) > 2);
    running.client().ask(cancel(false));
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Cancelled);
}

#[test]
fn a_full_disk_is_no_stall() {
    let disk = BadDisk::filled_after(10);
    let mut trial = command_fixture("seq 1 100; : > said").disk(disk.clone());
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    let running = trial.start_late(&disk, "said");
    let begin = Instant::now();
    wait_for("a pause longer than the limit", || begin.elapsed() > 2 * LIMIT);
    wait_for("the agent's end", || status(&mut running.client()).agent_pid.is_none());
    disk.full.store(false, Ordering::SeqCst);
    assert_eq!(running.finish().exit_reason, ExitReason::Success);
}

#[test]
fn on_a_disk_that_is_full_before_the_start_no_agent_is_told_anything() {
    let disk = BadDisk::filled_after(1);
    let mut trial = stream_fixture("await user; touch told; result ok").disk(disk);
    trial.spec.limits.timeout_ms = Some(LIMIT_MS);
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::Disk));
    assert!(!trial.spec.working_directory.join("told").exists());
}

/// Runs an agent on a disk that is full from its nth write on, for a while; says whether it was.
fn fills_up_at(write: usize) -> bool {
    let disk = BadDisk::filled_after(write);
    let agent = "await user; echo asked >> asked; say one; use t1; used t1; say two; result done";
    let trial = stream_fixture(agent).disk(disk.clone());
    let running = trial.start();
    let over = || trial.dir().join("result.json").exists();
    wait_for("retries, or the end", || disk.refused.load(Ordering::SeqCst) > 2 || over());
    let was_full = disk.refused.load(Ordering::SeqCst) > 0;
    assert!(!(was_full && over()), "{write}: it ends only with all its rows");
    disk.after.store(0, Ordering::SeqCst);
    disk.full.store(false, Ordering::SeqCst);
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Success, "{write}: {:?}", result.error);
    assert_eq!(result.cost.usd, Some(0.5), "{write}");
    assert_eq!(trial.said(), ["one", "two"], "{write}");
    let asked = std::fs::read_to_string(trial.spec.working_directory.join("asked")).unwrap();
    assert_eq!(asked, "asked\n", "{write}: the work is paid for once");
    // Nothing is done again by whoever comes later.
    assert_eq!(settle_run(&trial.dir(), &trial.spec.home, now).unwrap(), result, "{write}");
    assert_eq!(trial.run(), result, "{write}");
    was_full
}

#[test]
fn on_a_disk_that_fills_up_at_any_write_the_agent_is_asked_once_and_nothing_is_lost() {
    let full = (1..).take_while(|&write| fills_up_at(write)).count();
    assert!(full >= 14, "a session row and a job row for each of seven, and only {full} writes");
}

#[test]
fn a_client_is_heard_in_a_flood_that_is_slow_to_record() {
    // The lines of one read, hundreds of them, take seconds to record.
    let disk =
        Arc::new(HookedDisk(BadDisk { slow: Duration::from_millis(2), ..BadDisk::default() }));
    let mut trial = command_fixture(
        "echo ready; until [ -e go ]; do sleep 0.01; done; seq -f '%0100g' 1 400; : > said",
    );
    trial.spec.sync_each_row = true;
    let trial = trial.disk(disk.clone());
    let running = trial.start();
    trial.wait_row("ready");
    let hung = disk.writes.lock().unwrap();
    trial.touch("go");
    trial.wait_file("said");
    wait_for("the first row of the flood", || disk.hung.load(Ordering::SeqCst) > 0);
    let before = trial.job_rows().len();
    let mut client = running.client();
    client.send(ControlOperation::Status);
    drop(hung);
    let ControlReplyBody::Status(state) = client.reply() else { panic!("no status") };
    assert!(state.rows < before as u64 + 100, "{} rows until it was heard", state.rows);
    assert_eq!(running.finish().exit_reason, ExitReason::Success);
    assert_eq!(trial.said().len(), 401);
}
