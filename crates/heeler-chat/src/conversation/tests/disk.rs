//! Tests of conversations on a disk that fails for a while.

use std::fs::File;
use std::io;

use camino::Utf8Path;
use heeler_testkit::DiskHook;

use super::leaving::worker;
use super::*;

/// Failure mode of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FillableDiskFault {
    /// Writes fail.
    Full,
    /// Writes succeed, but new files cannot be created.
    NoFiles,
}

/// Disk that can be full.
#[derive(Debug, Default)]
pub(super) struct FillableDisk {
    trouble: Mutex<Option<FillableDiskFault>>,
}

impl FillableDisk {
    pub(super) fn has(&self, trouble: Option<FillableDiskFault>) {
        *self.trouble.lock().unwrap() = trouble;
    }

    fn fails_by(&self, trouble: FillableDiskFault) -> io::Result<()> {
        match *self.trouble.lock().unwrap() == Some(trouble) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl DiskHook for FillableDisk {
    fn before_create(&self, _: &Utf8Path) -> io::Result<()> {
        self.fails_by(FillableDiskFault::NoFiles)
    }

    fn before_write(&self, _: &File, _: &[u8]) -> io::Result<()> {
        self.fails_by(FillableDiskFault::Full)
    }
}

#[test]
fn words_are_sent_when_they_are_on_disk_and_not_before() {
    let mut rig = ConversationFixture::new();
    rig.disk.has(Some(FillableDiskFault::Full));
    rig.say("one");
    assert!(rig.conversation().has_unwritten_entries());
    assert_eq!(rig.stage.calls(), [""; 0]);
    rig.pass(1);
    assert_eq!(rig.stage.calls(), [""; 0]);
    rig.disk.has(None);
    rig.pass(1);
    assert_eq!(rig.stage.calls(), ["ask one", "follow job-2026-01-02-aaaa01 0"]);
    assert_eq!(rig.shown().last().unwrap(), "User one");
}

#[test]
fn a_conversation_whose_disk_takes_nothing_can_be_left() {
    let mut rig = ConversationFixture::new();
    rig.conversation().options.insights = true;
    rig.say("one");
    rig.is(1, ChatJobState::Running);
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.disk.has(Some(FillableDiskFault::Full));
    rig.said(1, 1, "Hi.");
    assert!(rig.conversation().has_unwritten_entries());
    rig.shown();
    rig.say("/exit");
    assert!(!rig.conversation().has_ended(), "the turn is waited for");
    rig.pass(5);
    assert!(rig.conversation().has_ended());
    let shown = rig.shown();
    assert!(shown[1].starts_with("The last entries could not be written."), "{shown:?}");

    rig.disk.has(None);
    rig.crash();
    rig.said(1, 1, "Hi.");
    assert_eq!(rig.shown(), ["User one", "Assistant Hi."]);
}

#[test]
fn wishes_to_leave_are_told_from_others() {
    for action in [UserAction::Exit, UserAction::HangUp, UserAction::SendLine("/q".to_owned())] {
        assert!(action.is_exit(), "{action:?}");
    }
    for action in [
        UserAction::Interrupt,
        UserAction::SendLine("/exti".to_owned()),
        UserAction::SendLine("q".to_owned()),
    ] {
        assert!(!action.is_exit(), "{action:?}");
    }
}

#[test]
fn a_fork_that_the_disk_does_not_take_leaves_no_session_behind() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.said(1, 1, "Hi.");
    rig.is(1, ChatJobState::Done);
    let before = rig.directory().list().unwrap().len();
    let transcripts = |rig: &ConversationFixture| {
        let names = std::fs::read_dir(rig.folder().join("sessions")).unwrap();
        let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".ndjson")).count()
    };
    for trouble in [FillableDiskFault::Full, FillableDiskFault::NoFiles] {
        rig.disk.has(Some(trouble));
        rig.shown();
        rig.say("/fork");
        assert!(!rig.shown().is_empty(), "it is told");
        rig.disk.has(None);
        assert_eq!(rig.directory().list().unwrap().len(), before);
        assert_eq!(transcripts(&rig), 1);
    }
    rig.say("/fork");
    assert_eq!(rig.directory().list().unwrap().len(), before + 1);
}

#[test]
fn tasks_that_could_not_be_saved_before_a_crash_are_taken_from_their_row() {
    let added = || json!({"type": "system", "subtype": "tasks_added", "content": "added: a", "tasks": ["a"]});
    for is_killed in [true, false] {
        let mut rig = ConversationFixture::new();
        rig.say("plan");
        rig.shown();
        rig.disk.has(Some(FillableDiskFault::NoFiles));
        rig.row(1, 1, added());
        assert!(rig.conversation().has_unwritten_entries());
        rig.disk.has(None);
        if is_killed {
            rig.crash();
            rig.row(1, 1, added());
        } else {
            rig.pass(1);
        }
        assert_eq!(rig.shown().last().unwrap(), "System added: a");
        rig.crash();
        rig.shown();
        rig.say("/tasks");
        assert_eq!(rig.shown(), ["  1 [ ] a"]);
    }
}
