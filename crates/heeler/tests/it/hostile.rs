//! A cloned repository ships its own config and state, and agents write what they like: none of it
//! may reach the terminal, hang the program or lead it astray.

use std::path::Path;
use std::process::Command;

use heeler_model::{
    AgentState, ApprovalMode, Job, JobStatus, ScheduleState, Session, SessionMode, SessionStatus,
    TriggerType,
};
use heeler_store::{DatabaseError, StateDir, Store};
use heeler_transcript::{TranscriptWriter, TranscriptWriterOptions};

use crate::fleet::{Fleet, Ran, at, job};
use crate::terminal::Terminal;

/// What steers terminals: colour, cursor, title (ended in two ways), C1, bell, bidi overrides.
const EVIL: &str = "a\x1b[45mb\x1b[2Jc\x1b]0;title\x07d\x1b]8;;x\x1b\\e\u{9b}31mf\u{9d}g\u{7}h\u{8}\
                    i\u{7f}j\rk\u{202e}l\u{202a}m\u{2066}n\u{2069}o\x1bP1$tq\x1b\\r";

/// The only escape sequences that are ours: styles.
fn without_styles(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (codes, rest) = part.split_once('m').unwrap_or((part, ""));
        assert!(codes.bytes().all(|b| b.is_ascii_digit() || b == b';'), "{part:?}");
        assert_ne!(codes, "45", "a stranger's colour: {part:?}");
        plain.push_str(rest);
    }
    plain
}

#[track_caller]
fn assert_harmless(what: &str, text: &str) {
    let steers = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(steers), "{what}: {text:?}");
}

/// Runs a command as in a pipe and as on a terminal; nothing that it prints may steer one.
#[track_caller]
fn check(fleet: &Fleet, args: &[&str]) -> String {
    let piped = fleet.run(args);
    assert_harmless(&format!("{args:?} stdout"), &piped.stdout);
    assert_harmless(&format!("{args:?} stderr"), &piped.stderr);
    let mut command = fleet.command(args);
    let coloured = Ran::from(command.env("CLICOLOR_FORCE", "1").output().unwrap());
    assert_harmless(&format!("{args:?} styled stdout"), &without_styles(&coloured.stdout));
    assert_harmless(&format!("{args:?} styled stderr"), &without_styles(&coloured.stderr));
    piped.stdout + piped.stderr.as_str()
}

fn evil() -> Option<String> {
    Some(EVIL.to_owned())
}

fn evil_job(minutes: i64, status: JobStatus) -> Job {
    let mut job = job(EVIL, minutes);
    job.head.status = status;
    job.head.schedule = (minutes % 2 == 0).then(|| EVIL.to_owned());
    job.head.trigger_type = TriggerType::from_word(EVIL);
    job.head.summary = evil();
    job.head.session_id = "session-of-agent".parse().ok();
    (job.prompt, job.error, job.origin) = (evil(), evil(), evil());
    job.skill = EVIL.to_owned();
    job
}

fn evil_session() -> Session {
    Session {
        agent_session_id: "session-of-agent".parse().ok(),
        mode: SessionMode::ALL[0],
        approvals: ApprovalMode::ALL[0],
        status: SessionStatus::Active,
        channel_id: evil(),
        message_count: 1,
        token_estimate: 1,
        job_count: 1,
        working_directory: Some(EVIL.into()),
        runtime: EVIL.to_owned(),
        log_path: Some(EVIL.into()),
        origin: evil(),
        ..Session::new("sess-a1b2c3d4".parse().unwrap(), EVIL, at(0))
    }
}

/// A fleet with such text wherever text can be; the store is open, under such a name.
fn evil_fleet() -> (Fleet, Store) {
    let fleet = Fleet::new();
    let mut jobs = [evil_job(1, JobStatus::Running), evil_job(2, JobStatus::Failed)];
    jobs[1].head.started_at = jiff::Timestamp::now();
    let dir = StateDir::create(&fleet.state_dir()).unwrap();
    let store = Store::open(&dir, EVIL, at(0)).unwrap().store;
    let agent = AgentState {
        next_schedule: evil(),
        container_id: evil(),
        error_message: evil(),
        schedules: [(EVIL.to_owned(), ScheduleState { last_error: evil(), ..Default::default() })]
            .into_iter()
            .collect(),
        ..AgentState::default()
    };
    let insert = store.write(move |tx| -> Result<(), DatabaseError> {
        jobs.iter().try_for_each(|job| tx.insert_job(job))?;
        tx.put_session(&evil_session())?;
        tx.put_agent(EVIL, &agent)
    });
    insert.unwrap();
    let row = serde_json::json!({
        "type": EVIL, "subtype": EVIL, "content": [{ "type": EVIL }, { "type": "text", "text": EVIL }],
    });
    let id = evil_job(1, JobStatus::Running).head.id;
    for name in [id.as_str(), &EVIL.replace('/', "")] {
        let path = fleet.state_dir().join(format!("jobs/{name}.jsonl"));
        let mut log =
            TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap().writer;
        for kind in [EVIL, "assistant", "tool_use", "tool_result", "error", "result"] {
            let mut row = row.clone();
            row["type"] = kind.into();
            for key in ["message", "tool_name", "input", "result", "subtype"] {
                row[key] = EVIL.into();
            }
            log.append(row.to_string().as_bytes()).unwrap();
        }
        log.append(row.to_string().as_bytes()).unwrap();
    }
    fleet.write(&format!(".heeler/jobs/{EVIL}.yaml"), EVIL);
    (fleet, store)
}

#[test]
fn no_text_of_strangers_steers_the_terminal() {
    let (fleet, store) = evil_fleet();
    let id = evil_job(1, JobStatus::Running).head.id;
    let id = id.as_str();
    assert!(check(&fleet, &["status"]).contains("in use by"));
    assert!(check(&fleet, &["jobs"]).contains("ab\\u{1b}"));
    assert!(check(&fleet, &["jobs", "show", id]).contains("ab\\u{1b}"));
    assert!(check(&fleet, &["jobs", "logs", id]).contains("ab\\u{1b}"));
    check(&fleet, &["job", id, "--logs"]);
    check(&fleet, &["jobs", "show", EVIL]);
    check(&fleet, &["jobs", "--agent", EVIL]);
    check(&fleet, &["jobs", "--before", EVIL]);
    assert!(check(&fleet, &["logs"]).contains("ab\\u{1b}"));
    check(&fleet, &["logs", EVIL]);
    assert!(check(&fleet, &["session", "list"]).contains("ab\\u{1b}"));
    check(&fleet, &["session", "list", "--limit", "1"]);
    assert!(check(&fleet, &["search", "title"]).contains("ab\\u{1b}"));
    check(&fleet, &["search", EVIL]);
    check(&fleet, &["status", EVIL]);
    check(&fleet, &["backup", "refused/b.tar"]);
    check(&fleet, &["doctor"]);
    drop(store);
    check(&fleet, &["doctor"]);
    check(&fleet, &["doctor", "--fix"]);
    check(&fleet, &["doctor", "--rebuild", "--yes"]);
    check(&fleet, &["status"]);
    check(&fleet, &["import", "herdctl", "."]);
}

#[test]
fn no_json_of_strangers_steers_the_terminal() {
    let (fleet, store) = evil_fleet();
    drop(store);
    let quoted = serde_json::to_string(EVIL).unwrap();
    fleet.write("heeler.yaml", &format!("fleet: {{name: b, description: {quoted}}}\n"));
    let id = evil_job(1, JobStatus::Running).head.id;
    let id = id.as_str();
    let commands = [
        "status --json",
        "jobs --json",
        &format!("jobs show {id} --json"),
        &format!("jobs logs {id} --json"),
        "logs --json",
        "session list --json",
        "session show sess-a1b2c3d4 --json",
        "session show sess-a1b2c3d4 --history --json",
        "search title --json",
        "approvals list --json",
        "costs --json",
        "schedule list --json",
        "workflow runs --json",
        "doctor --json",
        "config show --json",
        "config validate --json",
    ];
    let mut shown = 0;
    for command in commands {
        let (_code, seen) = Terminal::start(&fleet, command).end();
        assert!(seen.contains(['{', '[']), "{command}: {seen:?}");
        // A terminal ends its lines in this way.
        assert_harmless(command, &without_styles(&seen.replace("\r\n", "\n")));
        shown += usize::from(seen.contains("\\u009b31m"));
    }
    assert!(shown >= 6, "the text is shown in {shown} replies only");
}

#[test]
fn no_config_of_strangers_steers_the_terminal() {
    let fleet = Fleet::empty();
    let quoted = serde_json::to_string(EVIL).unwrap();
    fleet.write(".env", &format!("{EVIL}\nGOOD={EVIL}\n"));
    // Raw in the file, where YAML refuses it, and escaped, where it is legal.
    for yaml in [
        format!("fleet: {{name: '{EVIL}'}}\n"),
        format!("fleet: {{description: {quoted}}}\nagents: [{quoted}]\n"),
        format!("{quoted}: 1\nagents: [{{name: {quoted}, description: '${{GOOD}}'}}]\n"),
        format!("fleet: {{name: b, description: {quoted}}}\n"),
        "fleet: {name: a\u{202e}b\u{9b}31m}\n".to_owned(),
    ] {
        fleet.write("heeler.yaml", &yaml);
        check(&fleet, &["config", "validate"]);
        check(&fleet, &["config", "show"]);
        check(&fleet, &["config", "edit", EVIL]);
        check(&fleet, &["status"]);
    }
}

#[test]
fn completion_offers_no_text_of_strangers() {
    let (fleet, store) = evil_fleet();
    for shell in ["bash", "zsh", "fish"] {
        for words in
            [&["logs", ""][..], &["jobs", "show", ""], &["session", "list", "--before", ""]]
        {
            let mut command = fleet.command(&["--", "heeler"]);
            command.args(words).env("COMPLETE", shell);
            command.env("_CLAP_COMPLETE_INDEX", words.len().to_string());
            command.env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
            command.env("_CLAP_COMPLETE_SPACE", "true");
            let ran = Ran::from(command.output().unwrap());
            assert!(!ran.stdout.is_empty(), "{shell} {words:?}: {}", ran.stderr);
            assert_harmless(shell, &ran.stdout);
        }
    }
    drop(store);
}

/// Makes a pipe that nobody writes to: reading it plainly would wait for ever.
fn pipe(fleet: &Fleet, name: &str) {
    drop(std::fs::remove_file(fleet.file(name)));
    assert!(Command::new("mkfifo").arg(fleet.file(name)).status().unwrap().success());
}

#[test]
fn pipes_and_devices_are_refused_as_config() {
    let fleet = Fleet::new();
    fleet.write("heeler.yaml", "agents: [pipe.yaml, /dev/zero, large.yaml, folder]\n");
    pipe(&fleet, "pipe.yaml");
    fleet.write("large.yaml", &"#".repeat((1 << 20) + 1));
    fleet.write("folder/x", "");
    let told = fleet.run(&["config", "validate"]).fails(2);
    assert_eq!(told.matches("it is not a regular file").count(), 3, "{told}");
    assert!(told.contains("it is larger than 1048576 bytes"), "{told}");
    fleet.run(&["status"]).ok();
    fleet.run(&["init", "agent", "more"]).ok();

    let fleet = Fleet::new();
    pipe(&fleet, ".env");
    assert!(fleet.run(&["status"]).fails(2).contains("it is not a regular file"));
    std::fs::remove_file(fleet.file(".env")).unwrap();
    pipe(&fleet, ".heeler/schema/agent.schema.json");
    fleet.run(&["config", "validate"]).ok();

    let fleet = Fleet::empty();
    pipe(&fleet, ".gitignore");
    fleet.run(&["init"]).fails(1);
}

#[test]
fn a_linked_gitignore_is_left_alone() {
    let fleet = Fleet::empty();
    fleet.write("elsewhere", "mine\n");
    std::os::unix::fs::symlink("elsewhere", fleet.file(".gitignore")).unwrap();
    let ran = fleet.run(&["init"]);
    assert!(ran.stderr.contains(".gitignore is a link"), "{}", ran.stderr);
    ran.ok();
    assert_eq!(fleet.read("elsewhere"), "mine\n");
}

/// Gives a file to another user; only root can.
fn give_away(path: &Path) -> bool {
    std::os::unix::fs::chown(path, Some(65534), None).is_ok()
}

#[test]
fn config_of_another_user_is_ignored_unless_it_is_named() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    fleet.write("below/here", "");
    let below = |args: &[&str]| {
        let mut command = fleet.command(args);
        Ran::from(command.current_dir(fleet.file("below")).output().unwrap())
    };
    below(&["jobs"]).ok();
    if !give_away(&fleet.file("heeler.yaml")) {
        return;
    }
    let told = below(&["jobs"]).fails(2);
    assert_eq!(told.matches("belongs to another user").count(), 1, "{told}");
    assert!(told.contains("no fleet here"), "{told}");
    assert!(!below(&["-q", "jobs"]).fails(2).contains("another user"));
    let named = below(&["-c", "../heeler.yaml", "jobs"]);
    assert!(!named.stderr.contains("another user"), "{}", named.stderr);
    named.ok();
}

#[test]
fn state_of_another_user_is_refused_unless_it_is_named() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    if !give_away(&fleet.file(".heeler")) {
        return;
    }
    assert!(fleet.run(&["jobs"]).fails(5).contains("belongs to another user"));
    fleet.run(&["-c", "heeler.yaml", "jobs"]).ok();
    fleet.run(&["--state-dir", ".heeler", "jobs"]).ok();
    std::fs::remove_file(fleet.file("heeler.yaml")).unwrap();
    assert!(fleet.run(&["jobs"]).fails(2).contains("belongs to another user"));
}

#[test]
fn a_row_nested_too_deep_is_found_all_the_same() {
    let job = job("coder", 1);
    let fleet = Fleet::new().with_jobs(vec![job.clone()]);
    let row = format!(r#"{{"needle":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let text = format!("{row}\n{{\"type\":\"needle\"}}\n");
    fleet.write(&format!(".heeler/jobs/{}.jsonl", job.head.id), &text);
    let found = fleet.run(&["search", "needle", "--json"]).ok();
    let hits: Vec<serde_json::Value> =
        found.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((hits.len(), &hits[0]["row"]), (2, &row.as_str().into()));
    assert_eq!(hits[1]["row"]["type"], "needle");
    assert!(fleet.run(&["search", "needle"]).ok().contains("needle"));
}

#[test]
fn a_transcript_is_read_only_where_transcripts_lie() {
    let fleet = Fleet::new();
    let secret = "{\"type\":\"assistant\",\"content\":\"secret\"}\n";
    fleet.write("secret.jsonl", secret);
    fleet.write("home/.heeler/sessions/one/log.jsonl", secret);
    fleet.write(".heeler/agent-sessions/log.jsonl", secret);
    std::os::unix::fs::symlink("../secret.jsonl", fleet.file(".heeler/link.jsonl")).unwrap();
    let absolute = |name: &str| fleet.file(name).to_str().unwrap().to_owned();
    let mut job = job("coder", 1);
    job.head.session_id = "session-of-agent".parse().ok();
    let fleet = &fleet;
    let mut version = None;
    let mut logs = |path: String| {
        let dir = StateDir::create(&fleet.state_dir()).unwrap();
        let store = Store::open(&dir, "test", at(0)).unwrap().store;
        let session = Session { log_path: Some(path.into()), ..evil_session() };
        let (job, known) = (job.clone(), version);
        let write = store.write(move |tx| -> Result<i64, DatabaseError> {
            if known.is_none() {
                tx.insert_job(&job)?;
            }
            tx.put_session(&Session {
                version: known.unwrap_or(session.version),
                ..session.clone()
            })
        });
        version = Some(write.unwrap());
        drop(store);
        fleet.run(&["logs", "--job", "job-"])
    };
    assert!(logs("agent-sessions/log.jsonl".to_owned()).ok().contains("secret"));
    assert!(logs(absolute("home/.heeler/sessions/one/log.jsonl")).ok().contains("secret"));
    for path in ["../secret.jsonl".to_owned(), "link.jsonl".to_owned(), absolute("secret.jsonl")] {
        assert!(logs(path).fails(4).contains("has no transcript"));
    }
    let climbing = absolute("home/.heeler/sessions") + "/../../../secret.jsonl";
    assert!(logs(climbing).fails(4).contains("has no transcript"));
}
