//! Tests of lock files.

use std::time::Duration;

use super::*;
use heeler_transcript::{LockError, LockFile, LockHolder};

fn lock_path(place: &TempStateDir) -> Utf8PathBuf {
    place.root.join("some.lock")
}

fn acquire(path: &camino::Utf8Path, command: &str) -> Result<LockFile, LockError> {
    LockFile::acquire(path, &LockHolder::this_process(command, now()), Duration::ZERO)
}

#[test]
fn a_second_holder_is_refused_and_told_who_holds_it() {
    let place = place();
    let path = lock_path(&place);
    let held = acquire(&path, "start").unwrap();
    let error = acquire(&path, "doctor").unwrap_err();
    let LockError::Held { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(holder.as_ref(), Some(&LockHolder::this_process("start", now())));
    assert_eq!(LockFile::probe(&path).unwrap().unwrap().holder, *holder);
    drop(held);
    assert_eq!(LockFile::probe(&path).unwrap(), None);
    acquire(&path, "doctor").unwrap();
}

#[test]
fn an_unlinked_lock_file_is_noticed_by_its_holder() {
    let place = place();
    let path = lock_path(&place);
    let held = acquire(&path, "start").unwrap();
    assert!(held.is_intact());
    std::fs::remove_file(&path).unwrap();
    assert!(!held.is_intact());
    let newer = acquire(&path, "start").unwrap();
    assert!(newer.is_intact() && !held.is_intact());
}

#[test]
fn a_lock_file_replaced_while_it_is_taken_is_taken_anew() {
    let place = place();
    let path = lock_path(&place);
    // A thread replaces the file again and again; the holder of the lock must have the current
    // file.
    for _ in 0..50 {
        let replacer = {
            let path = path.clone();
            std::thread::spawn(move || {
                let other = path.with_extension("other");
                std::fs::write(&other, "").unwrap();
                std::fs::rename(&other, &path).unwrap();
            })
        };
        let lock = acquire(&path, "start");
        replacer.join().unwrap();
        // Taken after the replacement, or noticed by the holder: never two intact holders.
        let second = acquire(&path, "second");
        let intact = [lock.ok(), second.ok()].into_iter().flatten().filter(LockFile::is_intact);
        assert_eq!(intact.count(), 1);
    }
}

#[test]
fn no_lock_file_means_that_nobody_holds_it() {
    let place = place();
    assert_eq!(LockFile::probe(&lock_path(&place)).unwrap(), None);
}
