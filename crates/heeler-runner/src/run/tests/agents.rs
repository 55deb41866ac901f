//! Agents of every kind, good and bad.

use std::os::unix::fs::PermissionsExt as _;

use heeler_model::ExitReason;
use heeler_model::run::RunEnd;
use heeler_transcript::LockFile;

use crate::command::SINGLE_LINE_MESSAGES_MAX;

use super::*;

#[test]
fn all_that_a_command_prints_is_kept_if_it_is_to_be_without_secrets() {
    let script = "echo one; printf 'two\\n\\nfour'";
    assert_eq!(command_fixture(script).run().output, None);
    assert_eq!(command_fixture(script).keeping().run().output.as_deref(), Some("one\ntwo\n\nfour"));
    assert_eq!(command_fixture("true").keeping().run().output, None);
    let mut trial = command_fixture("echo the key is hunter2-hunter2; exit 3").keeping();
    trial.brief.secrets.push("hunter2-hunter2".to_owned());
    let failed = trial.run();
    assert_eq!(failed.exit_code, Some(3));
    assert_eq!(failed.output.as_deref(), Some("the key is [secret]"));
}

#[test]
fn the_last_words_of_an_agent_are_kept_if_they_are_to_be() {
    let trial = stream_fixture("say first; say last; result ok").keeping();
    assert_eq!(trial.run().output.as_deref(), Some("ok"));
    let cut_short = stream_fixture("say first; say last").keeping().run();
    assert_eq!(cut_short.output.as_deref(), Some("last"));
}

#[test]
fn a_command_leaves_its_rows_in_both_logs_and_a_result() {
    let trial = command_fixture("cat; echo; echo two");
    let result = trial.run();
    assert_eq!((result.end, result.exit_reason), (RunEnd::Finished, ExitReason::Success));
    assert_eq!((result.exit_code, result.summary.as_deref()), (Some(0), Some("two")));
    let stored = std::fs::read(trial.dir().join("result.json")).unwrap();
    assert_eq!(serde_json::from_slice::<RunResult>(&stored).unwrap(), result);

    let rows = trial.job_rows();
    assert_eq!(
        (&rows[0]["subtype"], &rows[0]["content"]),
        (&json!("session"), &json!("a fresh session"))
    );
    assert_eq!(rows[1]["subtype"], "user_input");
    assert_eq!(trial.said(), ["do it", "two"]);
    // Every row of the job has its counterpart in the session, in the same order.
    let session = RunFixture::rows(&trial.session_log());
    let uuids = |rows: &[Json]| rows.iter().map(|row| row["uuid"].clone()).collect::<Vec<_>>();
    assert_eq!(uuids(&rows), uuids(&session));
    let end = result.session.unwrap();
    assert_eq!((end.log, end.resumable), (trial.session_log(), false));
}

#[test]
fn what_a_run_leaves_is_private_and_its_socket_is_gone() {
    let trial = command_fixture("echo oh >&2");
    let running = trial.start();
    let socket = running.started.socket.clone();
    running.finish();
    assert!(!socket.exists());
    assert_eq!(std::fs::read_to_string(trial.dir().join("stderr.log")).unwrap(), "oh\n");
    let mut folders = vec![trial.folder.state.clone()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let (found, path) = (entry.metadata().unwrap(), entry.path());
            let mode = found.permissions().mode() & 0o777;
            let by_test = ["spec.json", "work", "runs", "jobs"].contains(&entry.file_name())
                || *path == trial.dir();
            assert!(
                by_test || mode == if found.is_dir() { 0o700 } else { 0o600 },
                "{path} {mode:o}"
            );
            if found.is_dir() {
                folders.push(path.to_owned());
            }
        }
    }
}

#[test]
fn a_run_that_has_a_result_is_left_alone() {
    let trial = command_fixture("echo once >> ran");
    let first = trial.run();
    assert_eq!(trial.run(), first);
    let ran = trial.spec.working_directory.join("ran");
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "once\n");
}

#[test]
fn a_run_that_was_cut_off_is_not_run_again() {
    let trial = command_fixture("touch ran");
    let started = trial.folder.started();
    files::write_started(&trial.dir(), &started).unwrap();
    assert!(matches!(trial.try_run(), Err(RunnerError::CutOff { .. })));
    assert!(!trial.spec.working_directory.join("ran").exists());
}

#[test]
fn a_brief_of_another_protocol_is_refused() {
    let mut trial = command_fixture("touch ran");
    trial.brief.protocol = PROTOCOL + 1;
    assert!(matches!(trial.try_run(), Err(RunnerError::Brief { found }) if found == PROTOCOL + 1));
    assert!(!trial.spec.working_directory.join("ran").exists());
}

#[test]
fn a_busy_session_is_refused_and_told_by_whom() {
    let trial = command_fixture("touch ran");
    let holder = LockHolder::this_process("import herdctl", now());
    let locks = trial.spec.home.join("locks");
    std::fs::create_dir_all(&locks).unwrap();
    let path = locks.join(trial.spec.session.start.id().as_str());
    let held = LockFile::acquire(&path, &holder, Duration::ZERO).unwrap();
    let result = trial.run();
    assert_eq!((result.end, class(&result)), (RunEnd::SessionBusy, Some(ErrorClass::SessionBusy)));
    let message = result.error.unwrap().message;
    assert!(message.contains("`heeler import herdctl`, process"), "{message}");
    assert!(!trial.spec.working_directory.join("ran").exists());
    assert!(!trial.dir().join("started.json").exists());
    drop(held);
}

#[test]
fn the_agent_holds_the_session_too() {
    // The agent tells whether it has the lock open.
    let trial =
        command_fixture(r#"for fd in /proc/$$/fd/*; do readlink "$fd"; done | grep -c /locks/"#);
    trial.run();
    assert_eq!(trial.said(), ["1"]);
}

#[test]
fn an_agent_that_cannot_be_started_is_reported_and_not_tried_again() {
    fn missing(_: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
        let launch = |_: &SessionStart| LaunchSpec {
            program: "/nonexistent/claude".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        Ok(Box::new(SdkRuntime::new("hi".to_owned(), Box::new(launch))))
    }
    let mut trial = stream_fixture("");
    trial.means.runtime = missing;
    let result = trial.run();
    assert_eq!((result.end, class(&result)), (RunEnd::Finished, Some(ErrorClass::NotStarted)));
    let message = result.error.unwrap().message;
    assert!(message.contains("/nonexistent/claude: there is no such program"), "{message}");
    assert_eq!(trial.job_rows().last().unwrap()["type"], "error");
    let started = trial.started();
    assert!(!started.cgroup.is_some_and(|group| group.exists()), "its control group is left");
}

#[test]
fn a_missing_working_directory_is_reported() {
    let mut trial = command_fixture("true");
    trial.spec.working_directory = trial.folder.state.join("gone");
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::NotStarted));
    let message = result.error.unwrap().message;
    assert!(message.contains("working directory"), "{message}");
}

#[test]
fn a_runtime_that_refuses_its_brief_starts_nothing() {
    fn refuses(_: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
        Err("tools cannot be held back".to_owned())
    }
    let mut trial = command_fixture("touch ran");
    trial.means.runtime = refuses;
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::NotStarted));
    assert_eq!(result.error.unwrap().message, "tools cannot be held back");
    assert!(!trial.dir().join("started.json").exists());
}

#[test]
fn why_a_run_was_not_started_holds_no_secret_of_its_environment_or_its_bridge() {
    fn refuses(around: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
        let token = &around.host.brief.env["MY_TOKEN"];
        Err(format!("cannot use {token} with {}", around.host.token.secret()))
    }
    let mut trial = command_fixture("true");
    trial.brief.env.insert("MY_TOKEN".to_owned(), "canary-0123456789".to_owned());
    trial.means.runtime = refuses;
    let message = trial.run().error.unwrap().message;
    assert_eq!(message, "cannot use [secret] with [secret]");
}

#[test]
fn an_agent_that_exits_at_once_has_died() {
    let trial = stream_fixture("exit 3");
    let result = trial.run();
    assert_eq!((class(&result), result.exit_code), (Some(ErrorClass::AgentDied), Some(3)));
    assert_eq!(result.exit_reason, ExitReason::Error);
}

#[test]
fn an_agent_that_kills_itself_has_died() {
    let trial = stream_fixture("say hello; kill -9 $$");
    let result = trial.run();
    assert_eq!((class(&result), result.exit_code), (Some(ErrorClass::AgentDied), None));
    assert_eq!(trial.said(), ["hello"]);
}

#[test]
fn a_turn_of_the_stream_ends_the_run() {
    let mut trial = stream_fixture(r#"await user; say hello; result done; await forever"#);
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let result = trial.run();
    assert_eq!((result.exit_reason, result.exit_code), (ExitReason::Success, Some(0)));
    assert_eq!(result.summary.as_deref(), Some("done"));
    assert_eq!(result.cost.usd, Some(0.5));
    assert_eq!(trial.said()[0], "hello");
    assert!(result.session.unwrap().resumable);
}

#[test]
fn an_agent_that_is_done_and_does_not_exit_is_ended_and_has_succeeded() {
    let trial = stream_fixture("result done; trap '' TERM INT; while :; do sleep 1; done");
    let result = trial.run();
    assert_eq!((result.exit_reason, result.exit_code), (ExitReason::Success, None));
}

#[test]
fn a_grandchild_that_holds_the_output_open_does_not_keep_the_run_up() {
    let trial = command_fixture("echo one; (trap '' HUP; sleep 1000) & echo two");
    let begin = Instant::now();
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert_eq!(trial.said(), ["one", "two"]);
    assert!(begin.elapsed() < WAIT_MAX);
}

#[test]
fn garbage_is_recorded_and_harms_nothing() {
    let trial = stream_fixture(
        r#"printf 'a\0b\377c\n\n[]\nnull\n{"type":"assistant"}\n{"type":"new_thing"}\n{"type":'; printf '\n'; say fine; result ok; printf 'no newline'"#,
    );
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert!(trial.said().contains(&"fine".to_owned()));
    assert!(trial.notes("warning").len() >= 4, "{:?}", trial.job_rows());
}

#[test]
fn a_last_line_without_newline_is_a_line() {
    let trial = command_fixture("printf one; printf ' and more'");
    trial.run();
    assert_eq!(trial.said(), ["one and more"]);
}

#[test]
fn a_line_that_is_too_long_goes_to_a_file_and_leaves_a_mark() {
    let mut trial =
        command_fixture("echo short; head -c 300000 /dev/zero | tr '\\0' x; echo; echo after");
    trial.means.lines.line_bytes_max = 100_000;
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert_eq!(trial.said(), ["short", "after"]);
    let file = trial.dir().join("line-1.txt");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 300_000);
    let rows = trial.job_rows();
    let mark = format!("a line of 300000 bytes is too long to be read; it is in {file}");
    assert!(rows.iter().any(|row| row.to_string().contains(&mark)), "{rows:?}");
}

#[test]
fn a_large_line_that_is_no_message_goes_to_a_file_whole_and_without_secrets() {
    let block = r#"{\"type\":\"tool_use\",\"name\":\"'$MY_TOKEN'\"},"#.replace('\\', "");
    let mut trial = stream_fixture(&format!(
        r#"printf '{{"type":"assistant","message":{{"content":['; for n in $(seq 5000); do printf '{block}'; done; printf '0]}}}}\n'; result ok"#
    ));
    trial.brief.env.insert("MY_TOKEN".to_owned(), "canary-0123456789".to_owned());
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    let file = trial.dir().join("line-1.txt");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.starts_with(r#"{"type":"assistant""#) && kept.ends_with("0]}}"));
    assert_eq!(kept.matches("[secret]").count(), 5000);
    let warning = trial.notes("warning").remove(0);
    let said = format!("unreadable line, it has more than 4096 blocks; it is in {file}: {{");
    assert!(warning.starts_with(&said) && warning.len() < 2000, "{warning}");
}

#[test]
fn what_a_part_of_a_workflow_runs_and_complains_of_is_in_its_log_without_secrets() {
    let command = "echo out; echo oh >&2; printf 'no: hunter2-hunter2' >&2; exit 3";
    let mut trial = command_fixture(command).keeping();
    trial.brief.secrets.push("hunter2-hunter2".to_owned());
    trial.run();
    let rows = trial.job_rows();
    let of = |subtype: &str| -> Vec<&str> {
        let rows = rows.iter().filter(|row| row["subtype"] == subtype);
        rows.map(|row| row["content"].as_str().unwrap()).collect()
    };
    assert_eq!(of("command"), [command.replace("hunter2-hunter2", "[secret]")]);
    assert_eq!(of("stderr").join("\n"), "oh\nno: [secret]");
    assert_eq!(trial.said()[0], "out");
    let plain = command_fixture("echo oh >&2");
    plain.run();
    let rows = plain.job_rows();
    assert!(rows.iter().any(|row| row["subtype"] == "stderr"), "{rows:?}");
    assert!(!rows.iter().any(|row| row["subtype"] == "command"), "its config has it: {rows:?}");
}

#[test]
fn a_flood_is_recorded_whole_in_order_and_in_fewer_rows_than_it_has_lines() {
    const LINES: usize = 30_000;
    let trial = command_fixture(&format!("seq 1 {LINES}"));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success);
    let said = trial.said();
    let expect: Vec<String> = (1..=LINES).map(|number| number.to_string()).collect();
    assert!(said.join("\n") == expect.join("\n"), "{} rows", said.len());
    assert!(said[..SINGLE_LINE_MESSAGES_MAX] == expect[..SINGLE_LINE_MESSAGES_MAX]);
    assert!(said.len() < LINES / 2, "{} rows", said.len());
}

#[test]
fn an_agent_that_floods_and_does_not_read_does_not_block() {
    // The prompt is larger than the pipe, and the agent reads it only after it has spoken more than
    // the pipe holds.
    let mut trial = command_fixture("seq -f '%0100g' 1 2000; cat | wc -c");
    trial.brief.prompt = "x".repeat(500_000);
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert_eq!(result.summary.as_deref(), Some("500000"));
}

#[test]
fn an_agent_that_never_reads_its_prompt_may_end_all_the_same() {
    let mut trial = command_fixture("echo done");
    trial.brief.prompt = "x".repeat(1_000_000);
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
}

#[test]
fn nothing_that_was_named_a_secret_is_written_anywhere() {
    const SECRET: &str = "canary-0123456789-abcdef";
    let mut trial = command_fixture(
        r#"echo "token $MY_TOKEN"; echo "err $MY_TOKEN" >&2; printf '%s' "$MY_TOKEN" | base64; head -c 200000 /dev/zero | tr '\0' x; echo "$MY_TOKEN"; echo "last $MY_TOKEN""#,
    );
    trial.means.lines.line_bytes_max = 100_000;
    trial.brief.env.insert("MY_TOKEN".to_owned(), SECRET.to_owned());
    trial.brief.prompt = format!("use {SECRET}");
    trial.spec.output_file = Some(trial.folder.state.join("jobs/job/output.log"));
    let result = trial.run();
    assert_eq!(result.summary.as_deref(), Some("last [secret]"));
    let files = files_of(&trial);
    assert!(files.len() >= 7, "{files:?}");
    for file in files {
        let text = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains(SECRET), "{file}");
        assert!(!text.contains("Y2FuYXJ5LTAxMjM0NTY3ODktYWJj"), "{file}");
    }
    let output = std::fs::read_to_string(trial.folder.state.join("jobs/job/output.log")).unwrap();
    assert!(output.contains("assistant: token [secret]"), "{output}");
}

#[test]
fn a_path_of_more_than_200_characters_works() {
    let mut trial = command_fixture("echo here");
    let deep = trial.folder.state.join("d".repeat(120)).join("e".repeat(120));
    std::fs::create_dir_all(&deep).unwrap();
    trial.spec.working_directory = deep;
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    assert!(trial.session_log().exists());
    assert_eq!(trial.said(), ["here"]);
}

#[test]
fn the_second_run_of_a_session_goes_on_in_its_log() {
    let first = stream_fixture("await user; say one; result done");
    first.run();
    let id = first.spec.session.start.id().clone();
    let second = stream_fixture("await user; say two; result done")
        .start_session(SessionStart::Resume { id });
    std::fs::create_dir_all(second.session_log().parent().unwrap()).unwrap();
    std::fs::copy(first.session_log(), second.session_log()).unwrap();
    let result = second.run();
    assert_eq!(result.session.unwrap().messages, 4);
    let rows = RunFixture::rows(&second.session_log());
    let prompts: Vec<&Json> = rows.iter().filter(|row| row["type"] == "user").collect();
    let last_of_first = rows.iter().find(|row| row["type"] == "assistant").unwrap();
    assert_eq!(prompts.len(), 2);
    assert_eq!(prompts[1]["parentUuid"], last_of_first["uuid"]);
}

#[test]
fn a_fork_knows_its_source_up_to_the_cut_and_leaves_it_as_it_is() {
    let source = stream_fixture("await user; say one; say two; result done");
    source.run();
    let before = std::fs::read(source.session_log()).unwrap();
    let rows = RunFixture::rows(&source.session_log());
    let one = rows.iter().position(|row| row["type"] == "assistant").unwrap();
    let at: uuid::Uuid = rows[one]["uuid"].as_str().unwrap().parse().unwrap();

    let mut fork = stream_fixture("await user; say three; result done");
    let start = SessionStart::Fork {
        source: source.spec.session.start.id().clone(),
        id: "0b9f6c1a-5d0e-4b7e-9d3a-0c5a3c2b1aff".parse().unwrap(),
        at: Some(at),
    };
    fork = fork.start_session(start);
    // The source was made in another working directory of the same fleet.
    let elsewhere = fork.spec.projects.join("-elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    let log = elsewhere.join(source.session_log().file_name().unwrap());
    std::fs::copy(source.session_log(), &log).unwrap();
    let result = fork.run();
    assert_eq!(std::fs::read(&log).unwrap(), before);
    let forked = RunFixture::rows(&fork.session_log());
    assert_eq!(forked[..=one], rows[..=one]);
    let prompt = forked[one + 1..].iter().find(|row| row["type"] == "user").unwrap();
    assert_eq!(prompt["parentUuid"], rows[one]["uuid"]);
    let told =
        forked.iter().find(|row| row["subtype"] == "session" && row["forkedFrom"].is_object());
    let from = json!({"sessionId": source.spec.session.start.id(), "messageUuid": at.to_string()});
    assert_eq!(told.unwrap()["forkedFrom"], from);
    // The prompt and the first answer of the source, the prompt and the answer of the fork.
    assert_eq!(result.session.unwrap().messages, 4);
    let started: RunStartRecord =
        serde_json::from_slice(&std::fs::read(fork.dir().join("started.json")).unwrap()).unwrap();
    assert_eq!(started.session_rows_before, one as u64 + 1);
}

/// Texts are cut in many places, and half a secret is not known for one.
#[test]
fn no_cut_leaves_half_of_a_secret_anywhere() {
    const SECRET: &str = "canary-0123456789-abcdefghijklmnopqrst";
    let mut trial = stream_fixture(
        r#"
x() { head -c "$1" /dev/zero | tr '\0' x; }
echo "$(x 1000)$MY_TOKEN$(x 1000)"
echo "{\"type\":\"mystery\",\"text\":\"$(x 980)$MY_TOKEN\"}"
echo "{\"type\":\"tool_use\",\"tool_name\":\"$(x 1000)$MY_TOKEN\",\"input\":{\"a\":\"$(x 8170)$MY_TOKEN\",\"b\":\"$(x 70000)\"}}"
may 1 "$(x 10)" | sed "s/Bash/$(x 65515)$MY_TOKEN/"
say "$(x 65520)$MY_TOKEN"
say "$(x 2020)$MY_TOKEN"
printf '%s' "$(x 190000)$MY_TOKEN"; echo
result "$(x 2020)$MY_TOKEN"
"#,
    );
    trial.brief.env.insert("MY_TOKEN".to_owned(), SECRET.to_owned());
    trial.brief.prompt = format!("{}{SECRET}", "x".repeat(65_520));
    (trial.means.lines.line_bytes_max, trial.means.lines.spill_bytes_max) = (180_000, 190_020);
    trial.spec.output_file = Some(trial.folder.state.join("jobs/job/output.log"));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(trial.notes("denied").len(), 1);
    let spilled = std::fs::read_to_string(trial.dir().join("line-1.txt")).unwrap();
    assert!(spilled == "x".repeat(190_000), "{} bytes", spilled.len());
    let files = files_of(&trial);
    assert!(files.len() >= 8, "{files:?}");
    for file in files {
        let text = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&text);
        let at = text.find("canary-0");
        assert!(at.is_none(), "{file}: {}", &text[at.unwrap_or(0)..][..60]);
    }
}

fn files_of(trial: &RunFixture) -> Vec<Utf8PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![trial.folder.state.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let kept = if entry.file_type().unwrap().is_dir() { &mut folders } else { &mut files };
            kept.push(entry.into_path());
        }
    }
    files
}

#[test]
fn a_command_without_a_session_leaves_its_rows_in_its_job_and_in_its_own_folder() {
    let mut trial = command_fixture("echo one");
    let log = trial.folder.dir.join(file::SESSION_LOG);
    trial.spec.session.is_unrecorded = true;
    trial.spec.session.log = Some(log.clone());
    let result = trial.run();
    assert_eq!((result.session, result.session_transcript), (None, None));
    assert_eq!(trial.said(), ["one"]);
    assert!(log.is_file() && !trial.spec.projects.exists());
}
