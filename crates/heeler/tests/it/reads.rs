//! Lists, transcripts and search.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use heeler_model::{JobStatus, TriggerType};
use heeler_transcript::{TranscriptWriter, TranscriptWriterOptions};

use crate::fleet::{Fleet, job};

#[test]
fn jobs_page_newest_first_and_count_all() {
    let fleet = Fleet::new().with_jobs((0..50).map(|n| job("coder", n)).collect());
    let first = fleet.json(&["jobs", "--json", "--limit", "20"]);
    assert_eq!((&first["total"], &first["limit"]), (&50.into(), &20.into()));
    let mut seen = Vec::new();
    let mut page = first;
    loop {
        let jobs = page["jobs"].as_array().unwrap().clone();
        let Some(last) = jobs.last() else { break };
        let before = last["id"].as_str().unwrap().to_owned();
        seen.extend(jobs.iter().map(|job| job["summary"].as_str().unwrap().to_owned()));
        page = fleet.json(&["jobs", "--json", "--limit", "20", "--before", &before]);
    }
    let all: Vec<String> = (0..50).rev().map(|n| format!("did thing {n}")).collect();
    assert_eq!(seen, all);
}

/// A person copies the command, so it must work in a shell and lead somewhere.
#[test]
fn the_command_for_older_jobs_works_and_is_missing_on_the_last_page() {
    let fleet = Fleet::new().with_jobs((0..3).map(|n| job("coder", n)).collect());
    let first = fleet.run(&["jobs", "--limit", "2", "--since", "2020-01-01 00:00"]);
    let (_, command) = first.stderr.trim_end().split_once("older: ").unwrap();
    let mut shell = std::process::Command::new("sh");
    let program = fleet.program();
    shell.args(["-c", &command.replacen("heeler", program.to_str().unwrap(), 1)]);
    let prepared = fleet.command(&[]);
    shell.current_dir(fleet.path()).env_clear();
    shell.envs(prepared.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let last = crate::fleet::Ran::from(shell.output().unwrap());
    assert!(!last.stderr.contains("older: "), "{}", last.stderr);
    let list = last.ok();
    assert!(list.contains("did thing 0") && !list.contains("did thing 1"), "{list}");
}

#[test]
fn a_job_in_json_has_the_documented_keys() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let jobs = fleet.json(&["jobs", "--json"]);
    let keys: Vec<&String> = jobs["jobs"][0].as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 17);
    for key in [
        "id",
        "agent",
        "schedule",
        "status",
        "triggerType",
        "askedAt",
        "startedAt",
        "finishedAt",
        "durationSeconds",
        "exitReason",
        "summary",
        "pulling",
    ] {
        assert!(keys.iter().any(|known| *known == key), "{key}");
    }
    assert_eq!(jobs["jobs"][0]["durationSeconds"], 60.0);
}

#[test]
fn a_job_that_another_asked_for_names_it() {
    let mut spawned = job("coder", 1);
    spawned.head.trigger_type = heeler_model::TriggerType::Spawned;
    spawned.trigger_id = "job-2026-11-15-k3v9q1".to_owned();
    let id = spawned.head.id.to_string();
    let fleet = Fleet::new().with_jobs(vec![spawned]);
    assert_eq!(
        fleet.json(&["jobs", "show", &id, "--json"])["job"]["parent"],
        "job-2026-11-15-k3v9q1"
    );
    let shown = fleet.run(&["jobs", "show", &id]).ok();
    assert!(shown.contains("parent:       job-2026-11-15-k3v9q1\n"), "{shown}");
}

#[test]
fn jobs_filter_by_agent_status_and_time() {
    let mut failed = job("coder", 5);
    failed.head.status = JobStatus::Failed;
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1), failed, job("writer", 3)]);
    let count = |args: &[&str]| {
        let args: Vec<&str> = ["jobs", "--json"].iter().chain(args).copied().collect();
        let page = fleet.json(&args);
        assert_eq!(page["total"], page["jobs"].as_array().unwrap().len());
        page["total"].as_i64().unwrap()
    };
    assert_eq!(count(&[]), 3);
    assert_eq!(count(&["--agent", "coder"]), 2);
    assert_eq!(count(&["-a", "coder", "-S", "failed"]), 1);
    assert_eq!(count(&["--status", "cancelled"]), 0);
    assert_eq!(count(&["--since", "1m"]), 0);
    assert_eq!(count(&["--since", "2020-01-01"]), 3);
    fleet.run(&["jobs", "--status", "runing"]).fails(2);
    assert!(fleet.run(&["jobs", "--since", "soon"]).fails(2).contains("neither an age nor a date"));
}

#[test]
fn the_table_is_aligned_and_plain_in_a_pipe() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1), job("a-much-longer-name", 2)]);
    let text = fleet.run(&["jobs"]).ok();
    assert!(!text.contains('\x1b'), "{text}");
    let column = |line: &str| line.find("completed").or(line.find("STATUS")).unwrap();
    let columns: Vec<usize> = text.lines().map(column).collect();
    assert_eq!(columns.len(), 3);
    assert!(columns.iter().all(|at| *at == columns[0]), "{text}");
}

#[test]
fn a_list_tells_what_started_a_job_from_whose_settings_it_had() {
    let (mut timed, mut by_hand) = (job("coder", 1), job("coder", 2));
    timed.head.trigger_type = TriggerType::Schedule;
    (timed.head.schedule, by_hand.head.schedule) = (Some("nightly".into()), Some("nightly".into()));
    let fleet = Fleet::new().with_jobs(vec![timed, by_hand, job("coder", 3)]);
    let list = fleet.run(&["jobs"]).ok();
    let words = list.lines().skip(1).map(|line| line.split("  ").nth(3).unwrap().trim());
    assert_eq!(words.collect::<Vec<_>>(), ["manual", "manual (nightly)", "nightly"], "{list}");
}

#[test]
fn a_long_prompt_is_cut_where_a_job_is_shown_and_whole_in_json() {
    let (mut long, mut tall, mut short) = (job("coder", 1), job("coder", 2), job("coder", 3));
    long.prompt = Some("é".repeat(5_000));
    tall.prompt = Some("line\n".repeat(500));
    short.prompt = Some("line\n".repeat(20));
    let jobs = vec![long.clone(), tall.clone(), short.clone()];
    let fleet = Fleet::new().with_jobs(jobs);
    for (job, most) in [(&long, "3,000 more chars"), (&tall, "2,401 more chars")] {
        let id = job.head.id.as_str();
        let shown = fleet.run(&["jobs", "show", id]).ok();
        assert!(shown.contains(&format!("({most}: heeler jobs show {id} --json)")), "{shown}");
        assert!(shown.lines().count() < 40 && shown.chars().count() < 3_000, "{shown}");
        assert_eq!(
            fleet.json(&["jobs", "show", id, "--json"])["job"]["prompt"],
            *job.prompt.as_ref().unwrap()
        );
    }
    let shown = fleet.run(&["jobs", "show", short.head.id.as_str()]).ok();
    assert!(!shown.contains("more chars"), "{shown}");
}

#[test]
fn one_job_is_shown_by_a_unique_beginning_of_its_id() {
    let one = job("coder", 1);
    let fleet = Fleet::new().with_jobs(vec![one.clone(), job("coder", 2)]);
    let id = one.head.id.as_str();
    assert!(fleet.run(&["jobs", "show", id]).ok().contains("did thing 1"));
    assert_eq!(fleet.json(&["job", id, "--json"])["job"]["prompt"], "Do the thing.");
    assert!(fleet.run(&["jobs", "show", "job-"]).fails(2).contains("may be any of"));
    assert!(fleet.run(&["jobs", "show", "job-1999"]).fails(4).contains("there is no job"));
    let error: serde_json::Value =
        serde_json::from_str(&fleet.run(&["jobs", "show", "nope", "--json"]).stdout).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
}

#[test]
fn a_running_job_without_a_process_is_shown_as_dead() {
    let mut stuck = job("coder", 1);
    stuck.head.status = JobStatus::Running;
    let fleet = Fleet::new().with_jobs(vec![stuck]);
    assert!(fleet.run(&["jobs"]).ok().contains(" dead "));
    assert_eq!(fleet.json(&["jobs", "--json"])["jobs"][0]["dead"], true);
    assert!(fleet.run(&["status"]).ok().contains("dead"));
}

fn log(fleet: &Fleet, job: &heeler_model::Job) -> TranscriptWriter {
    let path = fleet.state_dir().join(format!("jobs/{}.jsonl", job.head.id));
    TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap().writer
}

#[test]
fn logs_print_the_newest_lines_and_end() {
    let job = job("coder", 1);
    let fleet = Fleet::new().with_jobs(vec![job.clone()]);
    let mut log = log(&fleet, &job);
    for n in 0..10 {
        let row = format!(
            r#"{{"type":"assistant","content":"line {n}","timestamp":"2024-01-19T10:00:0{n}Z"}}"#
        );
        log.append(row.as_bytes()).unwrap();
    }
    let id = job.head.id.as_str();
    assert_eq!(
        fleet.run(&["jobs", "logs", id, "-n", "2"]).ok(),
        "2024-01-19\n10:00:08 agent       line 8\n10:00:09 agent       line 9\n"
    );
    assert_eq!(
        fleet.run(&["logs", "-n", "1"]).ok(),
        "2024-01-19\ncoder 10:00:09 agent       line 9\n"
    );
    assert_eq!(fleet.run(&["logs", "coder", "--json"]).ok().lines().count(), 10);
    assert!(fleet.run(&["logs", "nobody"]).fails(4).contains("there is no agent `nobody`"));
}

#[test]
fn a_torn_line_is_reported_and_never_shown() {
    let job = job("coder", 1);
    let fleet = Fleet::new().with_jobs(vec![job.clone()]);
    let path = fleet.state_dir().join(format!("jobs/{}.jsonl", job.head.id));
    std::fs::write(
        &path,
        "{\"type\":\"assistant\",\"content\":\"whole\"}\n\0\0\0\n{\"type\":\"assist",
    )
    .unwrap();
    let ran = fleet.run(&["jobs", "logs", job.head.id.as_str()]);
    assert!(ran.stderr.contains("skipped NUL bytes"), "{}", ran.stderr);
    assert!(ran.stderr.contains("skipped an unfinished last line"), "{}", ran.stderr);
    assert_eq!(ran.ok(), "--:--:-- agent       whole\n");
}

#[test]
fn following_a_job_prints_each_line_as_it_comes_and_ends_with_the_job() {
    let mut running = job("coder", 1);
    running.head.status = JobStatus::Running;
    let fleet = Fleet::new().with_jobs(vec![running.clone()]);
    let mut log = log(&fleet, &running);
    let mut child = fleet
        .command(&["jobs", "logs", running.head.id.as_str(), "-f", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for n in 0..100 {
        log.append(format!(r#"{{"n":{n}}}"#).as_bytes()).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!(r#"{{"n":{n}}}"#));
    }
    log.append(br#"{"n":"last"}"#).unwrap();
    finish(&fleet, running);
    assert_eq!(lines.next().unwrap().unwrap(), r#"{"n":"last"}"#);
    assert!(lines.next().is_none());
    assert!(child.wait().unwrap().success());
}

#[test]
fn following_a_fleet_repeats_no_old_transcript() {
    let mut running = job("coder", 9);
    running.head.status = JobStatus::Running;
    let mut jobs: Vec<heeler_model::Job> = (0..5).map(|n| job("coder", n)).collect();
    jobs.push(running.clone());
    let fleet = Fleet::new().with_jobs(jobs.clone());
    for old in &jobs {
        let mut log = log(&fleet, old);
        (0..4).for_each(|n| log.append(format!(r#"{{"old":{n}}}"#).as_bytes()).unwrap());
    }
    let mut child =
        fleet.command(&["logs", "-f", "-n", "3", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for n in 1..4 {
        assert_eq!(lines.next().unwrap().unwrap(), format!(r#"{{"old":{n}}}"#));
    }
    let mut log = log(&fleet, &running);
    log.append(br#"{"new":1}"#).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), r#"{"new":1}"#);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_transcript_that_was_put_away_is_told_with_its_place() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let id = job("coder", 1).head.id;
    let said = fleet.run(&["jobs", "logs", id.as_str()]).fails(4);
    assert!(said.contains("none was written, or the file was deleted"), "{said}");
    let trash = fleet.state_dir().join("trash/jobs").join(id.as_str());
    std::fs::create_dir_all(&trash).unwrap();
    std::fs::write(trash.join(format!("{id}.jsonl")), "{}\n").unwrap();
    let said = fleet.run(&["jobs", "logs", id.as_str()]).fails(4);
    assert!(said.contains(&format!("trash/jobs/{id}/{id}.jsonl")), "{said}");
}

#[test]
fn the_daemons_log_is_read_and_followed_with_what_was_set_aside() {
    let fleet = Fleet::new();
    assert!(fleet.run(&["logs", "--daemon"]).ok().is_empty());
    let logs = fleet.state_dir().join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("heeler.log.1"), "one\ntwo\n").unwrap();
    std::fs::write(logs.join("heeler.log"), "three\n").unwrap();
    assert_eq!(fleet.run(&["logs", "--daemon", "-n", "2"]).ok(), "two\nthree\n");
    fleet.run(&["logs", "--daemon", "coder"]).fails(2);
    let mut child = fleet
        .command(&["logs", "--daemon", "-f", "--lines", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "three");
    std::fs::rename(logs.join("heeler.log"), logs.join("heeler.log.2")).unwrap();
    std::fs::write(logs.join("heeler.log"), "four\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "four");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_unknown_agent_is_not_found_rather_than_idle() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    assert!(fleet.run(&["jobs", "-a", "nobody"]).fails(4).contains("there is no agent `nobody`"));
    assert!(fleet.run(&["jobs", "-a", "greeter"]).ok().contains("no jobs match"));
}

#[test]
fn a_list_says_why_a_job_failed_and_how_to_go_on() {
    let mut failed = job("coder", 2);
    failed.head.status = JobStatus::Failed;
    failed.head.summary = None;
    failed.error = Some("the model said no".to_owned());
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1), failed]);
    let ran = fleet.run(&["jobs", "--agent", "coder", "--limit", "1"]);
    assert!(ran.stdout.contains("the model said no"), "{}", ran.stdout);
    assert!(ran.stderr.contains("heeler jobs --agent coder --number 1 --before"), "{}", ran.stderr);
}

#[test]
fn a_state_directory_that_is_none_is_an_error() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    fleet.run(&["-s", "nowhere", "jobs"]).fails(5);
    fleet.run(&["-s", "heeler.yaml", "jobs"]).fails(5);
    fleet.run(&["-s", "agents", "jobs"]).fails(5);
    for side in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(fleet.file(&format!(".heeler/heeler.db{side}"))));
    }
    std::fs::remove_file(fleet.file(".heeler/state.yaml")).ok();
    std::fs::rename(fleet.file(".heeler/jobs"), fleet.file(".heeler/elsewhere")).unwrap();
    std::fs::create_dir(fleet.file(".heeler/jobs")).unwrap();
    fleet.write(".heeler/jobs/x.jsonl", "{}\n");
    assert!(fleet.run(&["jobs"]).fails(1).contains("doctor --rebuild"));
}

#[test]
fn a_home_is_not_needed_to_read() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let mut command = fleet.command(&["jobs"]);
    assert!(command.env_remove("HOME").output().unwrap().status.success());
}

fn finish(fleet: &Fleet, mut job: heeler_model::Job) {
    let dir = heeler_store::StateDir::open(&fleet.state_dir()).unwrap();
    let store = heeler_store::Store::open(&dir, "test", crate::fleet::at(9)).unwrap().store;
    job.head.status = JobStatus::Completed;
    store.write(move |tx| tx.update_job(&job)).unwrap();
}

#[test]
fn search_finds_text_as_people_write_it() {
    let job = job("coder", 1);
    let fleet = Fleet::new().with_jobs(vec![job.clone()]);
    let mut log = log(&fleet, &job);
    log.append(br#"{"type":"assistant","content":"He said \"no way\"\nand left"}"#).unwrap();
    log.append(br#"{"type":"assistant","content":"Timeout in auth"}"#).unwrap();
    assert!(fleet.run(&["search", "\"no way\"\nand"]).ok().contains("no way"));
    assert!(fleet.run(&["search", "timeout"]).ok().contains("Timeout in auth"));
    assert!(
        fleet.run(&["search", "-e", "time.*auth", "--agent", "coder"]).ok().contains("Timeout")
    );
    let hit: serde_json::Value =
        serde_json::from_str(&fleet.run(&["search", "auth", "--json"]).ok()).unwrap();
    assert_eq!((&hit["id"], &hit["line"]), (&job.head.id.as_str().into(), &2.into()));
    fleet.run(&["search", "TIMEOUT"]).fails(1);
    assert!(fleet.run(&["search", "-e", "("]).fails(2).contains("cannot search"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fleet = Fleet::new().with_jobs((0..300).map(|n| job("coder", n)).collect());
    let mut child = fleet
        .command(&["jobs", "--limit", "300"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_empty_fleet_says_so() {
    let fleet = Fleet::new();
    assert!(fleet.run(&["jobs"]).ok().starts_with("no jobs yet"));
    assert!(fleet.run(&["session", "list"]).ok().starts_with("no sessions yet"));
    assert_eq!(fleet.json(&["sessions", "--json"])["total"], 0);
    assert!(fleet.run(&["status"]).ok().contains("greeter"));
    let message = Fleet::empty().run(&["jobs"]).fails(2);
    assert!(message.contains("no fleet here") && message.contains("heeler init"), "{message}");
}

#[test]
fn completion_knows_agents_and_jobs() {
    let one = job("coder", 1);
    let fleet = Fleet::new().with_jobs(vec![one.clone()]);
    let complete = |words: &[&str]| {
        let mut command = fleet.command(&["--"]);
        command
            .args(words)
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(complete(&["heeler", "logs", "gr"]).contains("greeter"));
    assert!(complete(&["heeler", "logs", "co"]).contains("coder"));
    assert!(complete(&["heeler", "jobs", "show", "job-"]).contains(one.head.id.as_str()));
    assert!(fleet.run(&["completions", "bash"]).ok().contains("COMPLETE"));
    assert!(fleet.run(&["completions", "tcsh"]).fails(2).contains("bash"));
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let fleet = Fleet::empty();
    fleet.run(&["man", "pages"]).ok();
    let page = fleet.read("pages/heeler-jobs-logs.1");
    assert!(page.contains("follow"), "{page}");
}

#[test]
fn rows_written_by_hand_reach_a_follower_of_the_fleet() {
    let mut running = job("coder", 1);
    running.head.status = JobStatus::Running;
    let fleet = Fleet::new().with_jobs(vec![running.clone()]);
    let mut log = log(&fleet, &running);
    log.append(br#"{"n":"before"}"#).unwrap();
    let mut child =
        fleet.command(&["logs", "-f", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), r#"{"n":"before"}"#);
    drop(log);
    let path = fleet.state_dir().join(format!("jobs/{}.jsonl", running.head.id));
    let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    writeln!(file, r#"{{"n":"by hand"}}"#).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), r#"{"n":"by hand"}"#);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_command_that_is_still_to_come_says_so() {
    let fleet = Fleet::empty();
    assert!(fleet.run(&["serch"]).fails(2).contains("'search'"));
    assert!(fleet.run(&["--version"]).ok().starts_with("heeler "));
}
