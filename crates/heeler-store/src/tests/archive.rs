//! Backups, archives and the way back.

use std::io::Write as _;

use camino::Utf8Path;
use heeler_model::AgentState;

use super::*;
use crate::db::StateDatabase;
use crate::{
    JobFilter, RestoreError, RestoreReport, StoreWriteError, backup_daily, backup_to_file, backups,
    restore_from_file,
};
use heeler_transcript::LockFile;

fn filled(place: &TempStateDir) -> Store {
    let store = place.store();
    insert_jobs(
        &store,
        vec![job(1, "coder", JobStatus::Completed), job(2, "coder", JobStatus::Failed)],
    );
    commit(&store, |tx| {
        tx.put_agent("coder", &AgentState::default())?;
        tx.put_session(&session(1, "coder"))
    });
    store.publish_views(now()).unwrap();
    let project = place.root.join("agent-sessions/projects/-p");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(project.join("s.jsonl"), "{\"a\":1}\n{\"a\":2}\n{\"torn").unwrap();
    std::fs::write(place.dir.job_transcript(&job_id(1)), "{\"n\":1}\n").unwrap();
    place.write("logs/coder.log", "a log\n");
    place.write("jobs/.x.jsonl.idx", "a cache");
    store
}

const LOG: &str = "agent-sessions/projects/-p/s.jsonl";

fn archive(place: &TempStateDir, name: &str) -> Utf8PathBuf {
    let file = place.root.parent().unwrap().join(name);
    let mut told = (0, 0);
    let report =
        backup_to_file(&place.dir, &file, now(), &mut |done, total| told = (done, total)).unwrap();
    assert_eq!(told.0, told.1);
    assert_eq!(report.manifest.jobs, 2);
    assert!(report.skipped.is_empty(), "{report:?}");
    file
}

fn restore(place: &TempStateDir, file: &Utf8Path) -> Result<RestoreReport, RestoreError> {
    restore_from_file(&place.dir, file, later(100), &mut |_, _| {})
}

/// Lists the records, and the content of the files.
fn shown(place: &TempStateDir) -> String {
    let reader = place.reader();
    let jobs = reader.jobs(&JobFilter::default(), None, 100).unwrap();
    let sessions = reader.sessions(&crate::SessionFilter::default(), None, 100).unwrap();
    format!("{jobs:?}\n{sessions:?}\n{:?}", reader.agents().unwrap())
}

#[test]
fn what_was_backed_up_comes_back_in_both_formats() {
    for name in ["fleet.tar", "fleet.tar.gz", "fleet.tgz"] {
        let place = place();
        let store = filled(&place);
        let before = shown(&place);
        let file = archive(&place, name);
        insert_jobs(&store, vec![job(3, "other", JobStatus::Running)]);
        store.publish_views(now()).unwrap();
        drop(store);
        std::fs::remove_file(place.root.join(LOG)).unwrap();
        std::fs::remove_file(place.dir.job_transcript(&job_id(1))).unwrap();
        let report = restore(&place, &file).unwrap();
        assert_eq!(shown(&place), before, "{name}");
        assert_eq!(place.read(LOG), "{\"a\":1}\n{\"a\":2}\n", "whole lines only");
        assert_eq!(report.restored.len(), 2, "{report:?}");
        assert!(report.conflict_copies.is_empty());
        let opened = Store::open(&place.dir, "test", later(200)).unwrap();
        assert_eq!(opened.hand_edits, crate::HandEdits::default());
        assert!(!commit(&opened.store, |tx| tx.recount()));
        let safety = StateDatabase::open_read_only(&report.safety_backup.unwrap()).unwrap();
        assert!(safety.job(&job_id(3)).unwrap().is_some(), "the safety backup has it");
    }
}

#[test]
fn a_new_directory_can_be_made_from_an_archive() {
    let place = place();
    let store = filled(&place);
    let before = shown(&place);
    let file = archive(&place, "fleet.tar");
    drop(store);
    let elsewhere = super::place();
    let report = restore(&elsewhere, &file).unwrap();
    assert_eq!(report.safety_backup, None);
    assert_eq!(shown(&elsewhere), before);
    assert_eq!(elsewhere.read("logs/coder.log"), "a log\n");
    assert!(!elsewhere.has("jobs/.x.jsonl.idx"), "caches are not archived");
    drop(elsewhere.store());
    assert_eq!(elsewhere.read("state.yaml"), place.read("state.yaml"));
}

#[test]
fn a_living_writer_is_told_of_a_restore_before_its_next_change() {
    let place = place();
    let store = filled(&place);
    let file = archive(&place, "fleet.tar");
    insert_jobs(&store, vec![job(3, "coder", JobStatus::Running)]);
    let reader = place.reader();
    let report = restore(&place, &file).unwrap();
    let refused = store.write(|tx| tx.insert_job(&job(4, "coder", JobStatus::Pending)));
    assert!(matches!(refused, Err(StoreWriteError::Restored)), "{refused:?}");
    assert!(reader.job(&job_id(3)).unwrap().is_none(), "open readers see the restored state");
    assert_eq!(store.accept_restore().unwrap(), report.epoch);
    insert_jobs(&store, vec![job(4, "coder", JobStatus::Pending)]);
    store.publish_views(now()).unwrap();
    assert!(place.reader().integrity_faults().unwrap().is_empty());
    assert!(!commit(&store, |tx| tx.recount()));
}

#[test]
fn no_writer_starts_or_goes_on_while_a_restore_is_under_way() {
    let place = place();
    let store = filled(&place);
    let holder = heeler_transcript::LockHolder::this_process("restore", now());
    let wait = std::time::Duration::ZERO;
    let lock = LockFile::acquire(&place.dir.restore_lock(), &holder, wait).unwrap();
    assert!(store.accept_restore().is_err());
    drop(store);
    let error = Store::open(&place.dir, "test", now()).unwrap_err();
    assert!(error.to_string().contains("a restore"), "{error}");
    let file = place.root.join("none.tar");
    assert!(matches!(restore(&place, &file), Err(RestoreError::Lock(_))));
    drop(lock);
    place.store();
}

#[test]
fn transcripts_are_never_shortened_and_differing_copies_are_kept_beside() {
    let place = place();
    let store = filled(&place);
    let file = archive(&place, "fleet.tar");
    drop(store);
    let longer = format!("{}{}", "{\"a\":1}\n{\"a\":2}\n", "{\"a\":3}\n");
    place.write(LOG, &longer);
    std::fs::write(place.dir.job_transcript(&job_id(1)), "{\"other\":1}\n").unwrap();
    let report = restore(&place, &file).unwrap();
    assert_eq!(place.read(LOG), longer);
    assert_eq!(
        std::fs::read_to_string(place.dir.job_transcript(&job_id(1))).unwrap(),
        "{\"other\":1}\n"
    );
    let [beside] = report.conflict_copies.as_slice() else { panic!("{report:?}") };
    assert_eq!(std::fs::read_to_string(beside).unwrap(), "{\"n\":1}\n");
}

#[track_caller]
fn refused_without_change(place: &TempStateDir, file: &Utf8Path, context: &str) {
    let before = shown(place);
    let error = restore(place, file).unwrap_err();
    assert!(matches!(error, RestoreError::BadArchive { .. }), "{context}: {error}");
    assert_eq!(shown(place), before, "{context}");
    assert_eq!(place.reader().epoch().unwrap(), 1, "{context}");
    assert!(backups(&place.dir).unwrap().is_empty(), "{context}");
    let temps = place.root.read_dir_utf8().unwrap().map(Result::unwrap);
    let temps: Vec<_> = temps.filter(|entry| entry.file_name().starts_with(".heeler")).collect();
    assert!(temps.is_empty(), "{context}: {temps:?}");
}

#[test]
fn a_damaged_archive_changes_nothing_wherever_the_damage_is() {
    let place = place();
    let store = filled(&place);
    for name in ["fleet.tar", "fleet.tgz"] {
        let file = archive(&place, name);
        let good = std::fs::read(&file).unwrap();
        let step = good.len() / 25;
        for offset in (0..good.len()).step_by(step) {
            let mut bytes = good.clone();
            bytes[offset] ^= 0x55;
            std::fs::write(&file, &bytes).unwrap();
            // Padding and header fields that mean nothing to us may be damaged without harm.
            if restore_would_work(&place, &file) {
                continue;
            }
            refused_without_change(&place, &file, &format!("{name} byte {offset}"));
        }
        for length in [0, 100, good.len() / 2, good.len() - 2000] {
            std::fs::write(&file, &good[..length]).unwrap();
            refused_without_change(&place, &file, &format!("{name} cut at {length}"));
        }
    }
    drop(store);
}

/// Restores into another directory, to see whether the archive is good.
fn restore_would_work(place: &TempStateDir, file: &Utf8Path) -> bool {
    let elsewhere = super::place();
    let works = restore(&elsewhere, file).is_ok();
    if works {
        assert_eq!(shown(&elsewhere), shown(place), "what is accepted is right");
    }
    works
}

fn tar_with(entries: &[(&str, &[u8])], path: &Utf8Path) {
    let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        // Written past the library's own checks.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap().flush().unwrap();
}

#[test]
fn paths_that_leave_the_directory_are_refused() {
    let place = place();
    let store = filled(&place);
    let file = place.root.parent().unwrap().join("evil.tar");
    for name in [
        "../evil",
        "jobs/../../evil",
        "/etc/evil",
        "heeler.lock",
        "jobs/.hidden",
        "backups/x.db",
        "jobsx/a",
        "jobs//a",
    ] {
        tar_with(&[(name, b"evil")], &file);
        refused_without_change(&place, &file, name);
    }
    drop(store);
}

#[test]
fn a_failed_backup_leaves_no_file() {
    let place = place();
    let store = filled(&place);
    let folder = place.root.parent().unwrap().join("out");
    std::fs::create_dir(&folder).unwrap();
    // The final name is taken by a folder, so the last step fails.
    let file = folder.join("fleet.tar");
    std::fs::create_dir(&file).unwrap();
    backup_to_file(&place.dir, &file, now(), &mut |_, _| {}).unwrap_err();
    assert_eq!(folder.read_dir_utf8().unwrap().count(), 1);
    drop(store);
}

#[test]
fn a_damaged_database_is_set_aside_and_restored() {
    let place = place();
    let store = filled(&place);
    let before = shown(&place);
    let file = archive(&place, "fleet.tar");
    drop(store);
    std::fs::write(
        place.dir.database(),
        "not a database at all, but long enough to be read".repeat(99),
    )
    .unwrap();
    let report = restore(&place, &file).unwrap();
    assert!(report.damaged.is_some_and(|path| path.exists()));
    assert_eq!(shown(&place), before);
}

#[test]
fn one_backup_a_day_is_taken_and_seven_are_kept() {
    let place = place();
    let store = filled(&place);
    for day in 0..10 {
        assert!(store.backup_daily(later(day * 86_400)).unwrap().is_some());
        assert!(backup_daily(&place.dir, later(day * 86_400 + 60)).unwrap().is_none());
    }
    let kept = backups(&place.dir).unwrap();
    assert_eq!(kept.len(), 7);
    assert!(kept[0].file_name().unwrap().starts_with("heeler-2026-11-18T"), "{kept:?}");
    let newest = StateDatabase::open_read_only(&kept[6]).unwrap();
    assert!(newest.job(&job_id(1)).unwrap().is_some());
    assert!(!place.has(&format!("backups/{}-wal", kept[6].file_name().unwrap())));
}

/// A tar file that ends after the header of its one entry, which has this type and size.
fn tar_of_header(kind: tar::EntryType, name: &str, size: u64, path: &Utf8Path) {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o600);
    header.set_cksum();
    std::fs::write(path, header.as_bytes()).unwrap();
}

#[track_caller]
fn check_refused(place: &TempStateDir, file: &Utf8Path, reason: &str) {
    refused_without_change(place, file, reason);
    let error = restore(place, file).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn names_of_gigabytes_and_files_larger_than_the_disk_are_refused() {
    use tar::EntryType;
    let place = place();
    let store = filled(&place);
    let file = place.root.with_file_name("bomb.tar");
    tar_of_header(EntryType::GNULongName, "././@LongLink", 4 << 30, &file);
    check_refused(&place, &file, "a name in it has 4294967296 bytes");
    tar_of_header(EntryType::XHeader, "x", 4 << 30, &file);
    check_refused(&place, &file, "something that is not a file");
    tar_of_header(EntryType::Regular, "heeler.db", 1 << 60, &file);
    check_refused(&place, &file, "MiB are free");
    drop(store);
}

#[test]
fn a_long_name_comes_back() {
    let place = place();
    let store = filled(&place);
    let name = format!("logs/{}.log", "x".repeat(150));
    place.write(&name, "a log\n");
    let file = archive(&place, "fleet.tar");
    drop(store);
    std::fs::remove_file(place.root.join(&name)).unwrap();
    restore(&place, &file).unwrap();
    assert_eq!(place.read(&name), "a log\n");
}

#[test]
fn a_name_that_is_a_folder_of_another_is_refused() {
    let place = place();
    let store = filled(&place);
    let file = place.root.with_file_name("evil.tar");
    for [one, other] in [["jobs/a", "jobs/a/b/c"], ["jobs/a/b/c", "jobs/a"]] {
        tar_with(&[(one, b"evil"), (other, b"evil")], &file);
        check_refused(&place, &file, "`jobs/a` is a file and a folder");
    }
    drop(store);
}

#[test]
fn an_archive_whose_epoch_cannot_be_raised_is_refused() {
    for epoch in [i64::MAX, -1] {
        let source = place();
        let store = filled(&source);
        commit(&store, move |tx| tx.set_meta("epoch", &epoch.to_string()));
        let file = archive(&source, "fleet.tar");
        let place = place();
        let present = filled(&place);
        check_refused(&place, &file, "epoch");
        drop((store, present));
    }
}

#[test]
fn a_database_whose_epoch_cannot_be_raised_is_set_aside() {
    let place = place();
    let store = filled(&place);
    let file = archive(&place, "fleet.tar");
    commit(&store, |tx| tx.set_meta("epoch", &i64::MAX.to_string()));
    drop(store);
    let report = restore(&place, &file).unwrap();
    assert!(report.damaged.is_some());
}

#[test]
fn a_backup_makes_its_folder_anew() {
    let place = place();
    let store = filled(&place);
    std::fs::remove_dir_all(place.dir.backups()).unwrap();
    assert!(store.backup_daily(now()).unwrap().is_some());
}

#[test]
fn a_view_that_is_replaced_while_the_archive_is_made_is_in_it_whole() {
    for text in ["agents: {}\n".to_owned(), format!("agents: {{}}\nx: \"{}\"\n", "y".repeat(900))] {
        let place = place();
        let store = filled(&place);
        let file = place.root.parent().unwrap().join("fleet.tar");
        let mut told = false;
        backup_to_file(&place.dir, &file, now(), &mut |_, _| {
            if !told {
                place.write("state.yaml", &text);
            }
            told = true;
        })
        .unwrap();
        drop(store);
        std::fs::remove_file(place.root.join("state.yaml")).unwrap();
        restore(&place, &file).unwrap();
        assert_eq!(place.read("state.yaml"), text);
    }
}

#[test]
fn a_log_that_grows_while_the_archive_is_made_is_in_it_in_whole_lines() {
    let place = place();
    let store = filled(&place);
    let file = place.root.parent().unwrap().join("fleet.tar");
    let report = backup_to_file(&place.dir, &file, now(), &mut |_, _| {
        place.write(LOG, "{\"a\":1}\n{\"a\":2}\n{\"torn\":1}\n{\"to");
    });
    assert!(report.unwrap().skipped.is_empty());
    drop(store);
    std::fs::remove_file(place.root.join(LOG)).unwrap();
    restore(&place, &file).unwrap();
    assert_eq!(place.read(LOG), "{\"a\":1}\n{\"a\":2}\n{\"torn\":1}\n");
}

#[test]
fn what_vanishes_while_the_archive_is_made_is_listed_and_the_rest_is_in_it() {
    let place = place();
    let store = filled(&place);
    let file = place.root.parent().unwrap().join("fleet.tar");
    let report = backup_to_file(&place.dir, &file, now(), &mut |_, _| {
        drop(std::fs::remove_file(place.root.join("logs/coder.log")));
    })
    .unwrap();
    let [skipped] = report.skipped.as_slice() else { panic!("{report:?}") };
    assert!(skipped.contains("logs/coder.log: "), "{skipped}");
    drop(store);
    let before = shown(&place);
    restore(&place, &file).unwrap();
    assert_eq!(shown(&place), before);
}

#[test]
fn what_a_restore_would_refuse_is_left_out_of_the_archive_and_listed() {
    let place = place();
    let store = filled(&place);
    place.write("logs/a\\b.log", "x");
    std::os::unix::fs::symlink("/etc/hostname", place.root.join("logs/link.log")).unwrap();
    let file = place.root.parent().unwrap().join("fleet.tar");
    let report = backup_to_file(&place.dir, &file, now(), &mut |_, _| {}).unwrap();
    assert_eq!(report.skipped.len(), 2, "{report:?}");
    assert!(report.skipped[0].contains("a\\b.log: "), "{report:?}");
    assert!(report.skipped[1].contains("link.log: "), "{report:?}");
    drop(store);
    restore(&place, &file).unwrap();
}
