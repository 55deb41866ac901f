//! Reading sessions: the end of a long one, and the list of many.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::recorder::PRIOR_COUNTS_KEY;
use heeler_model::{AgentSessionId, Session, SessionStatus};
use heeler_store::history::load_history;
use heeler_store::{DatabaseError, SessionFilter, StateDir, Store, StoreReader};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use uuid::Uuid;

use crate::{Bench, Figure, Goal, median, process};

const LOG_BYTES: u64 = 1_000_000_000;
/// A turn: a prompt, a tool call, its result, an answer; and how many of them a run has.
const TURNS_PER_RUN: u64 = 20;
const TEXT_BYTES: usize = 1_500;
const SESSIONS: u64 = 10_000;
const FORKED_BYTES: u64 = 100_000_000;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    vec![last_messages(bench), newest_sessions(bench), fork(bench)]
}

fn last_messages(bench: &Bench) -> Figure {
    let log = bench.folder.join("1gb-session.jsonl");
    long_session(&log, LOG_BYTES);
    let ours = median(200, || {
        // It is its own agent's file as well: what the agent remembers is looked up too.
        let page = load_history(&log, Some(&log), None, 50).expect("the log is there");
        assert!(page.messages.len() == 50 && page.messages.iter().all(|it| it.in_context));
    });
    let theirs = bench.node("tail.mjs", &[log.as_str(), "50", "1"]);
    Figure {
        what: "last 50 messages of a 1 GB session".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_millis(5).into()),
        alternative: Some(("node reads and parses".to_owned(), theirs.into())),
    }
}

/// A session of so many bytes; made once.
fn long_session(path: &Utf8PathBuf, size: u64) {
    if std::fs::metadata(path).is_ok_and(|file| file.len() >= size) {
        return;
    }
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).expect("disk has space"));
    let text = "x".repeat(TEXT_BYTES);
    let (mut bytes, mut entry, mut messages, mut turn) = (0, 0_u128, 0_u64, 0_u64);
    let mut write = |row: serde_json::Value| {
        let line = format!("{row}\n");
        out.write_all(line.as_bytes()).expect("disk has space");
        bytes += line.len() as u64;
        bytes
    };
    loop {
        if turn.is_multiple_of(TURNS_PER_RUN) {
            write(json!({"type": "system", "subtype": "session", "uuid": Uuid::nil(),
                PRIOR_COUNTS_KEY: {"messages": messages, "tokens": 1, "last": null}}));
        }
        turn += 1;
        messages += 3;
        let id = format!("msg_{turn}");
        let call =
            json!([{"type": "tool_use", "id": id, "name": "Bash", "input": {"command": text}}]);
        let gave = json!([{"type": "tool_result", "tool_use_id": id, "content": text}]);
        let said = json!([{"type": "text", "text": text}]);
        for (kind, name, content) in [
            ("user", None, json!(text)),
            ("assistant", Some(format!("{id}a")), call),
            ("user", None, gave),
            ("assistant", Some(format!("{id}b")), said),
        ] {
            let parent = (entry > 0).then(|| Uuid::from_u128(entry));
            entry += 1;
            write(json!({"type": kind, "uuid": Uuid::from_u128(entry), "parentUuid": parent,
                "isSidechain": false, "timestamp": "2026-11-15T00:00:00.000Z",
                "message": {"role": kind, "id": name, "content": content}}));
        }
        if write(json!({"type": "result", "subtype": "success", "uuid": Uuid::nil()})) >= size {
            break;
        }
    }
    out.flush().expect("disk has space");
}

/// Forks a session in its middle, by the command, with a daemon that runs.
fn fork(bench: &Bench) -> Figure {
    let folder = bench.folder.join("fork");
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).expect("disk has space");
    let config = "agents:\n  - {name: coder, runtime: scripted, script: [{say: Hi.}]}\n";
    std::fs::write(folder.join("heeler.yaml"), config).expect("disk has space");
    let folder = folder.canonicalize_utf8().expect("it was made above");
    let id: AgentSessionId = Uuid::from_u128(7).to_string().parse().expect("a UUID is an id");
    let dir = StateDir::create(&folder.join(".heeler")).expect("disk has space");
    let relative = StateDir::session_log_relative(&folder, &id);
    let log = dir.root().join(&relative);
    std::fs::create_dir_all(log.parent().expect("it has one")).expect("disk has space");
    long_session(&log, FORKED_BYTES);
    let own = folder.join("home/scripted/projects").join(heeler_model::project_slug(&folder));
    std::fs::create_dir_all(&own).expect("disk has space");
    std::fs::copy(&log, own.join(format!("{id}.jsonl"))).expect("disk has space");
    let total = load_history(&log, None, None, 1).expect("the log is there").total;
    let at = Timestamp::from_second(1_700_000_000).expect("a legal time");
    let session = Session {
        agent_session_id: Some(id),
        status: SessionStatus::Paused,
        runtime: "scripted".to_owned(),
        message_count: total as i64,
        working_directory: Some(folder.clone()),
        log_path: Some(relative),
        ..Session::new("sess-00000007".parse().expect("it has the form"), "coder", at)
    };
    let store = Store::open(&dir, "bench", at).expect("the store opens").store;
    store.write::<_, DatabaseError, _>(move |tx| tx.put_session(&session)).expect("it is inserted");
    drop(store);
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heeler"));
        command.args(args).current_dir(&folder).env("HEELER_HOME", folder.join("home"));
        command.env("HEELER_NO_WEB", "1").env("HEELER_TRUST", "all");
        let output = command.output().expect("it was built");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["start", "-d"]);
    let middle = (total / 2).to_string();
    let ours = median(9, || run(&["session", "fork", "sess-00000007", "-m", &middle, "-q"]));
    run(&["stop"]);
    let theirs = bench.node("fork.mjs", &[log.as_str()]);
    Figure {
        what: "fork of a 100 MB session, cold process".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_millis(150).into()),
        alternative: Some(("node reads, parses, writes".to_owned(), theirs.into())),
    }
}

fn newest_sessions(bench: &Bench) -> Figure {
    let folder = bench.folder.join("10k-sessions");
    let files = fleet(&folder);
    let args = ["session", "list", "--limit", "50"];
    let ours = process(50, env!("CARGO_BIN_EXE_heeler"), &args, &folder);
    let theirs = bench.node("session-files.mjs", &[files.as_str(), "50"]);
    Figure {
        what: "newest 50 of 10k sessions, cold process".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_millis(20).into()),
        alternative: Some(("node parses 10k JSON files".to_owned(), theirs.into())),
    }
}

/// Makes a fleet with so many sessions, and their files as the originals keep them; returns the
/// folder of those.
fn fleet(folder: &Utf8PathBuf) -> Utf8PathBuf {
    let files = folder.join("files");
    std::fs::create_dir_all(&files).expect("disk has space");
    std::fs::write(folder.join("heeler.yaml"), "agents: []\n").expect("disk has space");
    let dir = StateDir::create(&folder.join(".heeler")).expect("disk has space");
    let there = StoreReader::open(&dir).ok();
    let there = there.and_then(|db| db.count_sessions(&SessionFilter::default()).ok());
    if there == Some(SESSIONS as i64) {
        return files;
    }
    let start = Timestamp::from_second(1_700_000_000).expect("a legal time");
    let sessions: Vec<Session> = (0..SESSIONS).map(|number| session(number, start)).collect();
    for session in &sessions {
        let text = serde_json::to_string_pretty(session).expect("a session is JSON");
        std::fs::write(files.join(format!("{}.json", session.id)), text).expect("disk has space");
    }
    let store = Store::open(&dir, "bench", start).expect("the store opens").store;
    let written = store.write(move |tx| -> Result<(), DatabaseError> {
        sessions.iter().try_for_each(|session| tx.put_session(session).map(|_| ()))
    });
    written.expect("sessions are inserted");
    files
}

fn session(number: u64, start: Timestamp) -> Session {
    let at = start + SignedDuration::from_mins(number as i64);
    let id = format!("sess-{number:08x}").parse().expect("it looks like one");
    let mut session = Session::new(id, &format!("agent-{}", number % 10), at);
    let own = Uuid::from_u128(u128::from(number) + 1).to_string();
    session.agent_session_id = Some(own.parse().expect("it looks like one"));
    session.status = SessionStatus::Paused;
    session.message_count = 40;
    session.working_directory = Some("/home/me/work/project".into());
    session.runtime = "sdk".to_owned();
    session
}
