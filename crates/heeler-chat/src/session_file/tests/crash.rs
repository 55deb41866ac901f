//! Tests of a kill between any two writes, a failing disk and a power loss: the session opens
//! completely, and nothing is duplicated.

use std::sync::Arc;

use heeler_testkit::{SimDisk, SimulatedFault};

use super::*;

/// Scenario: a session and its initial content.
struct CrashCase {
    name: &'static str,
    /// Creates the files.
    prepare: fn(&Utf8Path),
    id: &'static str,
    older: OldFormatPolicy,
    before: &'static [&'static str],
}

const CASES: [CrashCase; 6] = [
    CrashCase {
        name: "ours",
        prepare: |root| {
            heeler_folder(root, "a.json", r#"{"schemaVersion":3,"transcript":[]}"#);
            heeler_folder(
                root,
                "a.transcript.ndjson",
                "{\"role\":\"user\",\"content\":\"x\"}\n{\"to",
            );
        },
        id: "a",
        older: OldFormatPolicy::Migrate,
        before: &["x"],
    },
    CrashCase {
        name: "version 1",
        prepare: inline,
        id: "a",
        older: OldFormatPolicy::Migrate,
        before: &["x", "y"],
    },
    CrashCase {
        name: "kept",
        prepare: inline,
        id: "a",
        older: OldFormatPolicy::Keep,
        before: &["x", "y"],
    },
    CrashCase {
        name: "an older program went on",
        prepare: |root| {
            inline(root);
            let lines =
                "{\"role\":\"user\",\"content\":\"v\"}\n{\"role\":\"user\",\"content\":\"w\"}\n";
            heeler_folder(root, "a.transcript.ndjson", lines);
        },
        id: "a",
        older: OldFormatPolicy::Migrate,
        before: &["v", "w", "x", "y"],
    },
    CrashCase {
        name: "another program's, version 1",
        prepare: |root| {
            inline(root);
            std::fs::rename(root.join("heeler"), root.join("fleet")).unwrap();
        },
        id: "a",
        older: OldFormatPolicy::Migrate,
        before: &["x", "y"],
    },
    CrashCase {
        name: "another program's, version 3, with a worker",
        prepare: |root| {
            heeler_folder(root, "a.json", r#"{"schemaVersion":3,"transcript":[]}"#);
            heeler_folder(root, "a.transcript.ndjson", "{\"role\":\"user\",\"content\":\"x\"}\n");
            heeler_folder(root, "a.workers/w.ndjson", "{\"role\":\"user\",\"content\":\"w\"}\n");
            std::fs::rename(root.join("heeler"), root.join("fleet")).unwrap();
        },
        id: "a",
        older: OldFormatPolicy::Migrate,
        before: &["x"],
    },
];

fn heeler_folder(root: &Utf8Path, name: &str, text: &str) {
    let path = root.join("heeler/sessions").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn inline(root: &Utf8Path) {
    let entries = r#"[{"role":"user","content":"x"},{"role":"user","content":"y"}]"#;
    heeler_folder(root, "a.json", &format!("{{\"keep\":1.50,\"transcript\":{entries}}}"));
}

/// Appends entries until a failure; returns the acknowledged ones. Entries that must survive a
/// power loss are marked.
fn conversation(
    root: &Utf8Path,
    disk: &Arc<SimDisk>,
    case: &CrashCase,
) -> Result<Vec<String>, Vec<String>> {
    let mut said = Vec::new();
    let directory = directory(root).with_disk(Arc::clone(disk) as _);
    let Ok(opened) = directory.open(case.id, NOW, case.older) else { return Err(said) };
    let mut session_file = opened.session_file;
    for n in 0..2 {
        if session_file.append(&ALL, &entry(&n.to_string())).is_err() {
            return Err(said);
        }
        said.push(n.to_string());
    }
    if session_file.save(|about| about.model = Some("m".to_owned())).is_err() {
        return Err(said);
    }
    disk.mark(2);
    if session_file.append(&worker("w"), &entry("from w")).is_err() || session_file.close().is_err()
    {
        return Err(said);
    }
    disk.mark(3);
    Ok(said)
}

/// Checks that the session has its initial entries, all promised ones, and a prefix of the others,
/// in order.
fn check(root: &Utf8Path, case: &CrashCase, said: &[String], context: &str) {
    // Syncing to the real disk would prove nothing here.
    let directory = directory(root).with_disk(Arc::new(SimDisk::new(root)));
    let listed = directory.list().unwrap();
    let listed = listed.iter().find(|it| it.id == case.id);
    let listed = listed.unwrap_or_else(|| panic!("{context}: it is not listed"));
    assert_eq!(listed.fault, None, "{context}");
    let opened = directory.open(case.id, NOW, case.older);
    let mut session_file = opened.unwrap_or_else(|error| panic!("{context}: {error}")).session_file;
    let found = super::said(&session_file, &ALL);
    let mut promised: Vec<String> = case.before.iter().map(|&text| text.to_owned()).collect();
    promised.extend_from_slice(said);
    assert!(found.starts_with(&promised), "{context}: {found:?}");
    let rest: Vec<&str> = found[promised.len()..].iter().map(String::as_str).collect();
    let may_be: [&[&str]; 4] = [&[], &["0"], &["1"], &["0", "1"]];
    let is_new = rest.iter().all(|text| !said.iter().any(|it| it == text));
    assert!(may_be.contains(&&rest[..]) && is_new, "{context}: {found:?}");
    assert_eq!(listed.messages, Some(found.len() as u64), "{context}");
    session_file.append(&ALL, &entry("next")).unwrap();
    session_file.close().unwrap();
    let session_file = directory.open(case.id, NOW, OldFormatPolicy::Migrate).unwrap().session_file;
    assert_eq!(
        super::said(&session_file, &ALL),
        [&found[..], &["next".to_owned()]].concat(),
        "{context}"
    );
    let json = root.join("heeler/sessions/a.json");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let inline = json["transcript"].as_array().unwrap().len();
    let expected = if case.older == OldFormatPolicy::Keep { found.len() + 1 } else { 0 };
    assert_eq!(inline, expected, "{context}");
}

/// Generates a test for each session format and each kind of failure.
macro_rules! proofs {
    ($($form:ident = $at:literal,)+) => {$(
        mod $form {
            use super::*;

            #[test]
            fn proof_a_kill_between_any_two_writes_leaves_a_session_that_opens_whole() {
                kill_at_every_write(&CASES[$at]);
            }

            #[test]
            fn proof_a_power_loss_at_any_moment_costs_nothing_that_was_saved() {
                lose_power_at_every_moment(&CASES[$at]);
            }

            #[test]
            fn proof_a_disk_that_fails_once_at_any_call_costs_nothing_and_doubles_nothing() {
                fail_at_every_call(&CASES[$at]);
            }
        }
    )+};
}

proofs! {
    ours = 0,
    version_1 = 1,
    version_1_kept = 2,
    gone_on_by_an_older_program = 3,
    foreign_version_1 = 4,
    foreign_version_3 = 5,
}

fn kill_at_every_write(case: &CrashCase) {
    for call in 0.. {
        let home = SessionHomeFixture::new();
        (case.prepare)(&home.root);
        let disk = Arc::new(SimDisk::new(&home.root));
        // Later writes do not reach the disk, as after a kill.
        disk.fail_from(call, SimulatedFault::Torn);
        let result = conversation(&home.root, &disk, case);
        let is_over = disk.calls() <= call;
        assert_eq!(result.is_ok(), is_over, "{}: call {call}", case.name);
        let context = format!("{}: killed at call {call}", case.name);
        check(&home.root, case, &result.unwrap_or_else(|said| said), &context);
        if is_over {
            assert!(call > 10, "{}: only {call} calls", case.name);
            break;
        }
    }
}

fn lose_power_at_every_moment(case: &CrashCase) {
    let home = SessionHomeFixture::new();
    (case.prepare)(&home.root);
    let disk = Arc::new(SimDisk::new(&home.root));
    conversation(&home.root, &disk, case).unwrap();
    let states = disk.crashes(&mut |crash| {
        let saved = crash.marks.contains(&2);
        let said = if saved { vec!["0".to_owned(), "1".to_owned()] } else { Vec::new() };
        let context = format!("{}: power lost after {}", case.name, crash.after);
        if crash.marks.contains(&3) {
            let session_file =
                directory(&crash.root).open(case.id, NOW, case.older).unwrap().session_file;
            let last = super::said(&session_file, &worker("w")).pop();
            assert_eq!(last.as_deref(), Some("from w"), "{context}");
        }
        check(&crash.root, case, &said, &context);
    });
    assert!(states > 10, "{}: only {states} states", case.name);
}

fn fail_at_every_call(case: &CrashCase) {
    for trouble in [SimulatedFault::Short, SimulatedFault::Torn] {
        for call in 0.. {
            let home = SessionHomeFixture::new();
            (case.prepare)(&home.root);
            let disk = Arc::new(SimDisk::new(&home.root));
            disk.fail_at(call, trouble);
            let context = format!("{}: {trouble:?} at call {call}", case.name);
            let directory = directory(&home.root).with_disk(Arc::clone(&disk) as _);
            let open = || directory.open(case.id, NOW, case.older);
            let mut session_file = open().or_else(|_| open()).unwrap().session_file;
            for n in ["0", "1"] {
                // A failed append is repeated, although its bytes may be in the file.
                if session_file.append(&ALL, &entry(n)).is_err() {
                    session_file.append(&ALL, &entry(n)).unwrap();
                }
            }
            if session_file.save(|_| ()).is_err() {
                session_file.save(|_| ()).unwrap();
            }
            drop(session_file);
            let said = ["0".to_owned(), "1".to_owned()];
            check(&home.root, case, &said, &context);
            if disk.calls() <= call {
                break;
            }
        }
    }
}

#[test]
fn proof_a_power_loss_while_a_session_begins_leaves_it_whole_or_not_at_all() {
    let home = SessionHomeFixture::new();
    let disk = Arc::new(SimDisk::new(&home.root));
    let directory = home.directory().with_disk(Arc::clone(&disk) as _);
    let mut session_file = directory.create(ConversationState::default(), NOW).unwrap();
    disk.mark(0);
    let id = session_file.id().to_owned();
    session_file.append(&ALL, &entry("0")).unwrap();
    session_file.append(&worker("w"), &entry("w")).unwrap();
    session_file.close().unwrap();
    disk.mark(1);
    let states = disk.crashes(&mut |crash| {
        let directory = super::directory(&crash.root);
        let listed = directory.list().unwrap();
        assert!(listed.iter().all(|it| it.fault.is_none()), "{listed:?}");
        assert!(!listed.is_empty() || crash.marks.is_empty(), "after {}", crash.after);
        if listed.is_empty() {
            return;
        }
        let session_file = directory.open(&id, NOW, OldFormatPolicy::Migrate).unwrap().session_file;
        let found = super::said(&session_file, &ALL);
        assert!(found == ["0"] || found.is_empty() && !crash.marks.contains(&1), "{found:?}");
        if crash.marks.contains(&1) {
            assert_eq!(super::said(&session_file, &worker("w")), ["w"], "after {}", crash.after);
        }
    });
    assert!(states > 10, "only {states} states");
}
