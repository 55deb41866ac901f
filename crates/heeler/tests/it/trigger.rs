//! Jobs from the command line: what is shown, how it ends, and what survives a kill.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::fleet::QueuedJobRecord;
use heeler_model::{Job, JobStatus};
use heeler_store::{JobFilter, StateDir, StoreReader};
use heeler_testkit::WAIT_MAX;
use rustix::process::{Pid, Signal};

use crate::fleet::{Fleet, Ran};
use crate::processes::signal_if;

/// A fleet of these agents, each with its keys.
pub(crate) fn fleet(agents: &[(&str, &str)]) -> Fleet {
    let fleet = Fleet::empty();
    fleet.configure(agents);
    fleet
}

pub(crate) fn scripted(steps: &str) -> String {
    format!("runtime: scripted\nscript: [{steps}]")
}

/// A scripted agent that may start `coder`.
pub(crate) fn coordinator(steps: &str) -> String {
    format!("{}\nspawn: {{agents: [coder]}}", scripted(steps))
}

#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let begun = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        rest_after_look(begun.elapsed());
    }
}

/// Rests between two looks: longer after a look that took long. Looks open databases and start
/// programs, and must leave the processors to what is waited for.
pub(crate) fn rest_after_look(look: Duration) {
    let shortest = Duration::from_millis(5);
    std::thread::sleep((look * 3).clamp(shortest, 20 * shortest));
}

impl Fleet {
    /// Another fleet of the same user, with these agents.
    pub(crate) fn another_with(&self, agents: &[(&str, &str)]) -> Fleet {
        let fleet = self.another();
        fleet.configure(agents);
        fleet
    }

    /// Writes a config with these agents, each with its keys.
    pub(crate) fn configure(&self, agents: &[(&str, &str)]) {
        let list = |(name, keys): &(&str, &str)| {
            let keys = keys.trim().replace('\n', "\n    ");
            format!("  - name: {name}\n    {keys}\n")
        };
        let list: String = agents.iter().map(list).collect();
        self.write("heeler.yaml", &format!("agents:\n{list}"));
    }

    pub(crate) fn jobs(&self) -> Vec<Job> {
        let Ok(dir) = StateDir::open(&self.state_dir()) else { return Vec::new() };
        let Ok(reader) = StoreReader::open(&dir) else { return Vec::new() };
        let heads = reader.jobs(&JobFilter::default(), None, 100).unwrap();
        heads.iter().map(|head| reader.job(&head.id).unwrap().unwrap()).collect()
    }

    /// Waits until the newest job's transcript says this, and returns the job.
    #[track_caller]
    pub(crate) fn wait_until_said(&self, text: &str) -> Job {
        wait_for(text, || {
            let job = self.jobs().into_iter().next()?;
            let log =
                std::fs::read_to_string(self.file(&format!(".heeler/jobs/{}.jsonl", job.head.id)));
            log.is_ok_and(|log| log.contains(text)).then_some(job)
        })
    }

    #[track_caller]
    pub(crate) fn wait_until_ended(&self) -> Job {
        wait_for("the job's end", || {
            self.jobs().into_iter().next().filter(|job| job.head.status.is_final())
        })
    }

    pub(crate) fn start(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The processes of this fleet whose arguments have this word.
    pub(crate) fn processes(&self, word: &str) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| self.is_ours(*pid, word)).collect()
    }

    /// Says whether a process is of this fleet, and its arguments have this word.
    fn is_ours(&self, pid: i32, word: &str) -> bool {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        arguments.contains(self.path().to_str().unwrap())
            && arguments.split(' ').any(|part| part == word)
    }

    #[track_caller]
    pub(crate) fn kill(&self, word: &str) {
        let pids = wait_for(word, || Some(self.processes(word)).filter(|pids| !pids.is_empty()));
        // One of several may have ended by itself, such as the command that started a daemon.
        let killed = pids.into_iter().filter(|pid| self.signal(*pid, word, Signal::KILL)).count();
        assert!(killed > 0, "{word}");
    }

    /// Sends a signal if the process is still the one that was found.
    pub(crate) fn signal(&self, pid: i32, word: &str, signal: Signal) -> bool {
        signal_if(Pid::from_raw(pid).unwrap(), signal, || self.is_ours(pid, word))
    }
}

/// A child that was not waited for keeps its number.
fn interrupt(child: &Child) {
    rustix::process::kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[track_caller]
pub(crate) fn ended(child: Child) -> Ran {
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
fn a_job_is_run_shown_and_recorded() {
    let fleet = fleet(&[(
        "coder",
        &scripted("{say: Looking.}, {run: 'echo found'}, {cost: 0.25}, {say: Done.}"),
    )]);
    let ran = fleet.run(&["trigger", "coder", "-p", "Look."]);
    assert_eq!(ran.stdout, "Looking.\nDone.\n", "the agent's words, and nothing else");
    let job = fleet.wait_until_ended();
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let session = session.as_str().unwrap();
    let told = ran.stderr.clone();
    assert!(told.starts_with(&format!("coder: {}\n", job.head.id)), "{told}");
    assert!(told.contains("  ✓ Bash echo found"), "{told}");
    assert!(
        told.contains("✓ completed in ") && told.contains(&format!(", $0.25, {session}")),
        "{told}"
    );
    assert!(told.contains(&format!("next: heeler trigger coder --session {session} -p")), "{told}");
    assert!(!told.contains('\u{1b}'), "no colours and no cursor movement in a pipe: {told}");
    ran.ok();

    assert_eq!((job.head.status, job.prompt.as_deref()), (JobStatus::Completed, Some("Look.")));
    assert!(fleet.run(&["jobs"]).ok().contains("completed"));
    let view = fleet.read(&format!(".heeler/jobs/{}.yaml", job.head.id));
    assert!(view.contains("status: completed") && view.contains("exit_reason: success"), "{view}");
    assert!(fleet.run(&["jobs", "logs", job.head.id.as_str()]).ok().contains("Looking."));
    assert!(fleet.run(&["status"]).ok().contains("idle"));
}

#[test]
fn json_is_one_document_and_nothing_else() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    let ran = fleet.run(&["trigger", "coder", "--json"]);
    assert_eq!(ran.stderr, "");
    let told: serde_json::Value = serde_json::from_str(&ran.ok()).unwrap();
    assert_eq!((&told["success"], &told["job"]["status"]), (&true.into(), &"completed".into()));
    assert_eq!(told["job"]["runs"][0]["status"], "finished");
    let refused = fleet.run(&["trigger", "nobody", "--json"]);
    assert_eq!(refused.code, Some(4));
    let told: serde_json::Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(told["error"]["code"], "not_found");
}

#[test]
fn a_failed_job_ends_with_1_and_says_the_cure() {
    let fleet = fleet(&[("coder", &scripted("{say: Trying.}, {error: authentication}"))]);
    let ran = fleet.run(&["trigger", "coder"]);
    assert_eq!(ran.stdout, "Trying.\n");
    let told = ran.fails(1);
    assert!(told.contains("✗ failed in ") && told.contains("  fix: "), "{told}");
    let job = fleet.wait_until_ended();
    let id = job.head.id.as_str();
    assert!(told.contains(&format!("next: heeler jobs show {id}")), "{told}");
    let shown = fleet.run(&["jobs", "show", id]).ok();
    assert!(shown.contains("error class:  authentication: a retry would fail too"), "{shown}");
    let details = &fleet.json(&["jobs", "show", id, "--json"])["job"]["errorDetails"];
    assert_eq!(
        (&details["class"], &details["recoverable"]),
        (&"authentication".into(), &false.into())
    );
    assert!(details["messagesReceived"].as_u64().unwrap() > 0 && details["cure"].is_string());
    assert!(fleet.run(&["status"]).ok().contains("error"));
    let why = job.error.unwrap();
    let why = &why[..why.len().min(20)];
    for list in ["jobs", "status"] {
        let shown = fleet.run(&[list]).ok();
        assert!(shown.contains(why) && !shown.contains("Trying."), "{list} says why: {shown}");
    }
}

#[test]
fn a_failed_command_says_what_it_wrote_to_standard_error_and_where_all_of_it_is() {
    let command = "runtime: command\ncommand: 'echo working; echo no such rule >&2; exit 3'";
    let fleet = fleet(&[("make", command)]);
    let told = fleet.run(&["trigger", "make", "-p", "x"]).fails(1);
    assert!(told.contains("the command exited with code 3: no such rule"), "{told}");
    let job = fleet.wait_until_ended();
    let shown = fleet.run(&["jobs", "show", job.head.id.as_str()]).ok();
    for text in [told, shown] {
        let folder = text.split("read stderr.log in ").nth(1).expect("the cure names the file");
        let folder = folder.split(',').next().unwrap();
        let written = std::fs::read_to_string(format!("{folder}/stderr.log")).unwrap();
        assert_eq!(written, "no such rule\n");
    }
}

#[test]
fn a_job_that_ran_out_of_turns_says_how_its_session_goes_on() {
    let keys = scripted("{say: Trying.}, {run: 'true'}, {run: 'true'}") + "\nmax_turns: 1";
    let fleet = fleet(&[("coder", &keys)]);
    let told = fleet.run(&["trigger", "coder"]).fails(1);
    assert!(told.contains("next: heeler trigger coder --session sess-"), "{told}");
}

#[test]
fn quiet_prints_the_result_only() {
    let fleet = fleet(&[("coder", &scripted("{say: Working.}, {say: The answer.}"))]);
    let ran = fleet.run(&["trigger", "coder", "-q"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("The answer.\n", ""));
}

#[test]
fn a_detached_job_goes_on_and_can_be_cancelled() {
    let fleet = fleet(&[("coder", &scripted("{say: Begun.}, {run: 'sleep 300'}"))]);
    let id = fleet.run(&["trigger", "coder", "--detach"]).ok().trim().to_owned();
    fleet.wait_until_said("sleep 300");
    assert!(fleet.run(&["jobs"]).ok().contains("running"));
    let waits = fleet.json(&["trigger", "coder", "--detach", "--json"])["job"].clone();
    assert_eq!(waits["status"], "pending");
    assert_eq!(waits["waits"], "coder has reached its limit of 1 concurrent jobs");
    let waits = waits["id"].as_str().unwrap();
    assert_eq!(fleet.run(&["jobs", "cancel", waits]).ok(), format!("{waits}: cancelled\n"));
    assert_eq!(fleet.run(&["jobs", "cancel", &id]).ok(), format!("{id}: cancelled\n"));
    assert_eq!(
        fleet.run(&["cancel", &id]).ok(),
        format!("{id}: cancelled\n"),
        "it is what was asked"
    );
    assert_eq!(fleet.jobs()[0].head.status, JobStatus::Cancelled);
    assert!(fleet.processes("runner").is_empty() && fleet.processes("play").is_empty());
    assert!(fleet.run(&["jobs", "cancel", "job-none"]).fails(4).contains("there is no job"));
}

#[test]
fn a_run_cannot_steer_itself() {
    let heeler = env!("CARGO_BIN_EXE_heeler");
    // A beginning of its own id will do.
    let command = format!(
        "{heeler} jobs cancel --now job- 2>&1; env -i HOME=$HOME HEELER_TRUST=all {heeler} jobs cancel --now job- 2>&1; echo still here"
    );
    let fleet = fleet(&[("self", &format!("runtime: command\ncommand: '{command}'"))]);
    let said = fleet.run(&["trigger", "self"]).ok();
    assert_eq!(said.matches("a process of the run itself").count(), 1, "{said}");
    // Without its capability it is not even the run.
    assert_eq!(said.matches("neither a person nor a run").count(), 1, "{said}");
    assert!(said.contains("still here"), "{said}");
}

#[test]
fn a_finished_job_cannot_be_cancelled() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    fleet.run(&["trigger", "coder"]).ok();
    let id = fleet.wait_until_ended().head.id;
    let told = fleet.run(&["jobs", "cancel", id.as_str()]).fails(5);
    assert!(told.contains("has ended already: completed"), "{told}");
}

#[test]
fn a_job_whose_start_was_cut_off_is_cancelled_all_the_same() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    fleet.run(&["trigger", "coder"]).ok();
    let mut job = fleet.wait_until_ended();
    let dir = StateDir::open(&fleet.state_dir()).unwrap();
    let mut run = StoreReader::open(&dir).unwrap().runs_of_job(&job.head.id).unwrap().remove(0);
    // As a daemon leaves it that is killed before it starts the runner.
    job.head.id = "job-2026-11-15-cutoff".parse().unwrap();
    job.head.status = JobStatus::Running;
    (job.version, run.version) = (1, 1);
    run.id = heeler_model::RunId::mint(crate::fleet::at(0), [7; 10]);
    run.job_id = job.head.id.clone();
    (run.committed, run.status) = (false, "created".to_owned());
    let store = heeler_store::Store::open(&dir, "test", crate::fleet::at(0)).unwrap().store;
    let id = job.head.id.clone();
    let asked = QueuedJobRecord {
        job: id.clone(),
        priority: 0,
        requested_at: crate::fleet::at(0),
        not_before: None,
        expires_at: None,
        request_json: r#"{"agent":"coder"}"#.to_owned(),
        reason: String::new(),
    };
    store
        .write::<(), heeler_store::DatabaseError, _>(move |tx| {
            tx.insert_job(&job)?;
            tx.enqueue(&asked)?;
            tx.insert_run(&run)
        })
        .unwrap();
    drop(store);
    assert_eq!(fleet.run(&["jobs", "cancel", id.as_str()]).ok(), format!("{id}: cancelled\n"));
}

#[test]
fn a_runner_that_does_not_answer_is_killed_when_its_job_is_to_end_at_once() {
    let fleet = fleet(&[("coder", &scripted("{say: Begun.}, {run: 'sleep 300'}"))]);
    let id = fleet.run(&["trigger", "coder", "--detach"]).ok().trim().to_owned();
    fleet.wait_until_said("sleep 300");
    let runner = fleet.processes("runner")[0];
    assert!(fleet.signal(runner, "runner", Signal::STOP));
    assert_eq!(fleet.run(&["jobs", "cancel", "--now", &id]).ok(), format!("{id}: cancelled\n"));
    assert!(fleet.processes("runner").is_empty() && fleet.processes("play").is_empty());
    assert!(fleet.run(&["jobs"]).ok().contains("cancelled"));
}

#[test]
fn a_job_that_cannot_be_settled_now_is_tried_again_and_the_reason_told() {
    let fleet = fleet(&[("coder", &scripted("{say: Begun.}, {run: 'sleep 300'}"))]);
    let id = fleet.run(&["trigger", "coder", "--detach"]).ok().trim().to_owned();
    fleet.wait_until_said("sleep 300");
    fleet.kill("start");
    fleet.kill("runner");
    wait_for("the runner's end", || fleet.processes("runner").is_empty().then_some(()));
    let log = fleet.file(&format!(".heeler/jobs/{id}.jsonl"));
    std::fs::rename(&log, fleet.file("aside")).unwrap();
    std::fs::create_dir(&log).unwrap();
    let told = fleet.run(&["jobs", "cancel", &id]).fails(1);
    assert!(told.contains("cannot be settled yet: `heeler runner --settle"), "{told}");
    std::fs::remove_dir(&log).unwrap();
    std::fs::rename(fleet.file("aside"), &log).unwrap();
    assert_eq!(fleet.run(&["jobs", "cancel", &id]).ok(), format!("{id}: cancelled\n"));
}

#[test]
fn ctrl_c_cancels_gracefully() {
    let fleet = fleet(&[("coder", &scripted("{say: Begun.}, {run: 'sleep 300'}"))]);
    let trigger = fleet.start(&["trigger", "coder"]);
    fleet.wait_until_said("sleep 300");
    interrupt(&trigger);
    let told = ended(trigger).fails(130);
    assert!(told.contains("cancelling; Ctrl-C again") && told.contains("✗ cancelled in"), "{told}");
    assert_eq!(fleet.jobs()[0].head.status, JobStatus::Cancelled);
    assert!(fleet.processes("runner").is_empty());
}

#[test]
fn ctrl_c_before_the_start_starts_nothing() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    let dir = StateDir::create(&fleet.state_dir()).unwrap();
    let busy = heeler_store::Store::open(&dir, "test", crate::fleet::at(0)).unwrap();
    let trigger = fleet.start(&["trigger", "coder"]);
    wait_for("the daemon", || (!fleet.processes("start").is_empty()).then_some(()));
    interrupt(&trigger);
    let told = ended(trigger).fails(130);
    assert!(told.contains("interrupted before the daemon received the command"), "{told}");
    assert!(fleet.jobs().is_empty());
    drop(busy);
    fleet.run(&["trigger", "coder"]).ok();
}

#[test]
fn ctrl_c_twice_ends_it_at_once() {
    let stubborn = "{say: Begun.}, {hang: true, ignore_interrupt: true, ignore_term: true}";
    let fleet = fleet(&[("coder", &scripted(stubborn))]);
    let mut trigger = fleet.start(&["trigger", "coder"]);
    fleet.wait_until_said("Begun.");
    interrupt(&trigger);
    // The second one counts only once the first was taken.
    let mut told = BufReader::new(trigger.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("cancelling; Ctrl-C again") {
        assert_ne!(told.read_line(&mut said).unwrap(), 0, "{said}");
    }
    interrupt(&trigger);
    told.read_to_string(&mut said).unwrap();
    assert_eq!(trigger.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("killing it") && said.contains("✗ cancelled"), "{said}");
    assert_eq!(fleet.jobs()[0].head.status, JobStatus::Cancelled);
    assert!(fleet.processes("play").is_empty());
}

#[test]
fn killing_the_command_loses_nothing() {
    let fleet = fleet(&[(
        "coder",
        &scripted("{say: Begun.}, {run: 'until test -e go; do sleep 0.01; done'}, {say: Done.}"),
    )]);
    let mut trigger = fleet.start(&["trigger", "coder"]);
    fleet.wait_until_said("test -e go");
    trigger.kill().unwrap();
    trigger.wait().unwrap();
    fleet.write("go", "");
    let job = fleet.wait_until_ended();
    assert_eq!(
        (job.head.status, job.head.summary.as_deref()),
        (JobStatus::Completed, Some("Done."))
    );
}

#[test]
fn killing_the_daemon_loses_nothing() {
    let fleet = fleet(&[(
        "coder",
        &scripted("{say: Begun.}, {run: 'until test -e go; do sleep 0.01; done'}, {say: Done.}"),
    )]);
    let trigger = fleet.start(&["trigger", "coder"]);
    fleet.wait_until_said("test -e go");
    fleet.kill("start");
    fleet.write("go", "");
    let ran = ended(trigger);
    assert_eq!(ran.stdout, "Begun.\nDone.\n");
    assert!(ran.stderr.contains("✓ completed in"), "{}", ran.stderr);
    ran.ok();
    assert_eq!(fleet.jobs()[0].head.status, JobStatus::Completed);
}

#[test]
fn after_everything_was_killed_the_next_command_settles_the_job() {
    let fleet = fleet(&[("coder", &scripted("{say: Begun.}, {run: 'sleep 300'}"))]);
    let mut trigger = fleet.start(&["trigger", "coder"]);
    let job = fleet.wait_until_said("sleep 300");
    let id = job.head.id.as_str();
    trigger.kill().unwrap();
    trigger.wait().unwrap();
    fleet.kill("start");
    fleet.kill("runner");
    wait_for("the runner's end", || fleet.processes("runner").is_empty().then_some(()));
    assert!(fleet.run(&["jobs"]).ok().contains("dead"), "reads show the truth meanwhile");

    fleet.run(&["doctor", "--fix"]).ok();
    let job = fleet.jobs().remove(0);
    assert!(job.interrupted && job.head.status == JobStatus::Failed);
    let shown = fleet.run(&["jobs", "show", id]).ok();
    assert!(
        shown.contains("interrupted:  yes") && shown.contains("error class:  interrupted"),
        "{shown}"
    );
    assert!(fleet.processes("play").is_empty());
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0].clone();
    assert_eq!(session["status"], "paused", "it can be resumed");
}

#[test]
fn a_persistent_agent_goes_on_where_it_was() {
    let agent = format!("session: {{mode: persistent}}\n{}", scripted("{say: 'Turn {turn}.'}"));
    let fleet = fleet(&[("coder", &agent)]);
    fleet.run(&["trigger", "coder"]).ok();
    let told = fleet.run(&["trigger", "coder"]);
    assert!(told.stderr.contains(" is resumed"), "{}", told.stderr);
    let sessions =
        || fleet.json(&["session", "list", "--json"])["sessions"].as_array().unwrap().clone();
    assert_eq!(sessions().len(), 1);
    let first = sessions()[0]["id"].as_str().unwrap().to_owned();
    let told = fleet.run(&["trigger", "coder", "--fresh"]);
    assert!(told.stderr.contains("new session, as requested"), "{}", told.stderr);
    assert_eq!(sessions().len(), 2);
    fleet.run(&["trigger", "coder", "--session", &first[..8]]).ok();
    let resumed = sessions().into_iter().find(|session| session["id"] == *first).unwrap();
    assert_eq!(resumed["jobs"].as_array().unwrap().len(), 3);
    assert!(
        fleet
            .run(&["trigger", "coder", "--session", "sess-00000000"])
            .fails(4)
            .contains("no session")
    );
}

#[test]
fn a_message_is_found_once_though_job_session_and_fork_have_it() {
    let steps = "{say: 'Needle {turn}.'}, {run: 'echo haystack'}, {say: Done.}";
    let fleet = fleet(&[("coder", &scripted(steps))]);
    fleet.run(&["trigger", "coder", "-p", "Look for it."]).ok();
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let session = session.as_str().unwrap();
    fleet.run(&["trigger", "coder", "--session", session, "--fork"]).ok();
    let jobs = fleet.jobs();
    let hits = |text: &str| -> Vec<String> {
        let found = fleet.run(&["search", text]).ok();
        found.lines().map(|line| line.split(':').next().unwrap().to_owned()).collect()
    };
    let (fork, first) = (jobs[0].head.id.to_string(), jobs[1].head.id.to_string());
    assert_eq!(hits("Needle 1"), [first.as_str()]);
    assert_eq!(hits("Needle 2"), [fork.as_str()]);
    assert_eq!(hits("Look for it"), [first.as_str()]);
    assert_eq!(hits("Done."), [fork.as_str(), first.as_str()], "not their results too");
    assert_eq!(fleet.run(&["search", "haystack", "--limit", "1"]).ok().lines().count(), 1);

    // What only a session's log has is told by the session's name.
    std::fs::remove_file(fleet.file(&format!(".heeler/jobs/{first}.jsonl"))).unwrap();
    let found = hits("Needle 1");
    assert!(found.len() == 1 && found[0].starts_with("sess-"), "{found:?}");
}

#[test]
fn where_the_output_is_as_text_is_told_and_it_says_why_a_tool_failed() {
    let fleet = fleet(&[("coder", &scripted("{run: 'echo it broke >&2; exit 3'}"))]);
    fleet.run(&["trigger", "coder", "--output-file"]);
    let id = fleet.jobs().remove(0).head.id;
    let path = fleet.json(&["jobs", "show", id.as_str(), "--json"])["job"]["textFile"].clone();
    let path = path.as_str().unwrap();
    assert!(fleet.run(&["jobs", "show", id.as_str()]).ok().contains(path));
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("] tool failed: Exit code 3\nit broke\n"), "{text}");
}

#[test]
fn a_session_that_nobody_has_or_another_agent_has_is_refused() {
    let agent = scripted("{say: Hello.}");
    let fleet = fleet(&[("coder", &agent), ("writer", &agent)]);
    fleet.run(&["trigger", "coder"]).ok();
    let nowhere = "0b9f6c1a-5d0e-4b7e-9d3a-0c5a3c2b1a00";
    for fork in [&[][..], &["--fork"]] {
        let args = [&["trigger", "coder", "--session", nowhere][..], fork].concat();
        let told = fleet.run(&args).fails(4);
        assert!(told.contains(&format!("there is no session {nowhere}")), "{told}");
    }
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let session = session.as_str().unwrap();
    let told = fleet.run(&["trigger", "writer", "--session", session]).fails(5);
    assert!(told.contains(&format!("{session} belongs to agent coder")), "{told}");
    let sessions = fleet.json(&["session", "list", "--json"])["total"].clone();
    assert_eq!((fleet.jobs().len(), sessions), (1, 1.into()), "nothing was recorded");
}

#[test]
fn a_fork_is_shown_as_one_and_only_its_own_page_has_the_agents_id() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    fleet.run(&["trigger", "coder"]).ok();
    let list = || fleet.json(&["session", "list", "--json"])["sessions"].clone();
    let source = list()[0]["id"].as_str().unwrap().to_owned();
    let told = fleet.run(&["trigger", "coder", "--session", &source, "--fork"]);
    assert!(told.stderr.contains(&format!("with the history of {source}")), "{}", told.stderr);
    told.ok();
    let fork = list()[0].clone();
    assert_eq!((&fork["parent"], &fork["forkedAtMessage"]), (&source.as_str().into(), &2.into()));
    let (id, own) = (fork["id"].as_str().unwrap(), fork["agentSessionId"].as_str().unwrap());
    let shown = fleet.run(&["session", "show", id]).ok();
    assert!(shown.contains(&format!("forked from:  {source}, at message 2")), "{shown}");
    assert!(shown.contains(own), "{shown}");
    assert_eq!(fleet.json(&["session", "show", own, "--json"])["session"]["id"], id);
    let newest = fleet.jobs().remove(0).head.id;
    let job = fleet.run(&["jobs", "show", newest.as_str()]).ok();
    assert!(job.contains(&format!("session:      {id}")) && job.contains("forked from:"), "{job}");
    let list = fleet.run(&["session", "list"]).ok();
    for text in [&job, &list, &fleet.run(&["jobs", "logs", newest.as_str()]).ok()] {
        assert!(!text.contains(own), "{text}");
    }
    let log = fleet.json(&["session", "show", id, "--json"])["session"]["log"].clone();
    let log = std::fs::read_to_string(log.as_str().unwrap()).unwrap();
    assert!(log.contains(r#""forkedFrom":{"sessionId":""#), "{log}");
    assert!(fleet.run(&["session", "show", "sess-00000000"]).fails(4).contains("no session"));
}

#[test]
fn a_session_has_one_run_at_a_time_and_the_other_is_told_by_whom() {
    let keys = "session: {mode: persistent}\ninstances: {max_concurrent: 2}";
    let agent = format!(
        "{keys}\n{}",
        scripted("{say: Begun.}, {when: {prompt: stay}, do: [{run: 'sleep 300'}]}")
    );
    let fleet = fleet(&[("coder", &agent)]);
    fleet.run(&["trigger", "coder"]).ok();
    let stays = fleet.start(&["trigger", "coder", "-p", "stay"]);
    let at_work = fleet.wait_until_said("sleep 300");
    let status = fleet.run(&["status"]).ok();
    let line = status.lines().find(|line| line.starts_with("coder ")).unwrap();
    assert!(line.contains("running") && line.contains(at_work.head.id.as_str()), "{status}");
    let waits = fleet.json(&["trigger", "coder", "-p", "go", "--detach", "--json"])["job"].clone();
    let runner = fleet.processes("runner")[0];
    let told = waits["waits"].as_str().unwrap();
    assert!(told.contains("is busy: ") && told.contains(&format!("process {runner}")), "{told}");
    interrupt(&stays);
    ended(stays).fails(130);
    let waits = waits["id"].as_str().unwrap();
    let done = || fleet.jobs().into_iter().find(|job| job.head.id.as_str() == waits);
    wait_for("the one that waited", || {
        done().filter(|job| job.head.status == JobStatus::Completed)
    });
}

#[test]
fn a_reader_that_goes_away_ends_nothing() {
    let fleet = fleet(&[(
        "coder",
        &scripted("{say: One.}, {run: 'until test -e go; do sleep 0.01; done'}, {say: Two.}"),
    )]);
    let mut trigger = fleet.start(&["trigger", "coder"]);
    let mut out = BufReader::new(trigger.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "One.\n");
    drop(out);
    fleet.write("go", "");
    let told = ended(trigger);
    assert!(told.stderr.contains("the reader of the output is gone"), "{}", told.stderr);
    assert_eq!(told.code, Some(0), "the job's own outcome");
    assert_eq!(fleet.jobs()[0].head.status, JobStatus::Completed);
}

#[test]
fn what_came_of_the_job_decides_the_exit_code_whether_or_not_it_can_be_told() {
    let fleet = fleet(&[
        ("fails", &scripted("{say: Trying.}, {error: authentication}")),
        ("works", &scripted("{say: Done.}")),
    ]);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for (agent, code) in [("fails", 1), ("works", 0)] {
        let text = &["trigger", agent][..];
        let json = &["trigger", agent, "--json"][..];
        let ends: [(&[&str], Stdio, Stdio); 4] = [
            (json, unread(), Stdio::null()),
            (text, Stdio::null(), unread()),
            (text, full().into(), Stdio::null()),
            (text, Stdio::null(), full().into()),
        ];
        for (number, (flags, out, err)) in ends.into_iter().enumerate() {
            let ended = fleet.command(flags).stdout(out).stderr(err).status().unwrap();
            assert_eq!(ended.code(), Some(code), "{agent}, case {number}");
        }
    }
}

/// A pipe that nobody reads.
fn unread() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

#[test]
fn what_contradicts_itself_is_refused() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    for more in [&["--fresh"][..], &["--channel", "C1"], &[]] {
        let ran = fleet.run(&[&["trigger", "coder", "--fork"], more].concat());
        ran.fails(2);
    }
    assert_eq!(fleet.jobs().len(), 0);
}

#[test]
fn the_prompt_may_come_from_standard_input() {
    let fleet = fleet(&[("coder", &scripted("{say: 'You said: {prompt}'}"))]);
    let mut command = fleet.command(&["trigger", "coder", "-p", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut trigger = command.spawn().unwrap();
    trigger.stdin.take().unwrap().write_all(b"two\nlines\n").unwrap();
    assert_eq!(ended(trigger).ok(), "You said: two\nlines\n");

    let mut trigger = command.spawn().unwrap();
    trigger.stdin.take().unwrap().write_all(b"caf\xe9").unwrap();
    let told = ended(trigger).fails(2);
    assert!(told.contains("the prompt on standard input is not UTF-8 (at byte 3)"), "{told}");
    assert_eq!(fleet.jobs().len(), 1);
}

#[test]
fn what_cannot_run_is_refused_with_the_cure_and_no_job() {
    let fleet = fleet(&[
        ("plain", ""),
        ("unasked", "claude_path: /bin/true"),
        ("boxed", "docker: {enabled: true}\nclaude_path: /bin/true"),
        ("hidden", "secrets: [DEPLOY_TOKEN]\nclaude_path: /bin/true"),
        ("lost", "working_directory: nowhere\nclaude_path: /bin/true"),
    ]);
    let mut command = fleet.command(&["trigger", "plain", "-p", "x"]);
    let told = Ran::from(command.env("PATH", "/nowhere").output().unwrap()).fails(2);
    assert!(
        told.contains("cannot find `claude` on PATH: ")
            && told.contains("claude_path")
            && !told.contains("/nowhere"),
        "{told}"
    );
    let told = fleet.run(&["trigger", "unasked"]).fails(2);
    assert!(told.contains("there is no prompt for unasked"), "{told}");
    let mut command = fleet.command(&["trigger", "boxed", "-p", "x"]);
    let told = Ran::from(command.env("DOCKER_HOST", "tcp://x:1").output().unwrap()).fails(5);
    assert!(told.contains("cannot run in its container, and never runs without it"), "{told}");
    let told = fleet.run(&["trigger", "hidden", "-p", "x"]).fails(2);
    assert!(told.contains("needs the secret DEPLOY_TOKEN"), "{told}");
    let mut command = fleet.command(&["trigger", "hidden", "-p", "x"]);
    let told = Ran::from(command.env("DEPLOY_TOKEN", "short").output().unwrap()).fails(2);
    assert!(told.contains("shorter than 8 bytes") && !told.contains("short;"), "{told}");
    let told = fleet.run(&["trigger", "lost", "-p", "x"]).fails(2);
    assert!(told.contains("nowhere: make that folder"), "{told}");
    let told = fleet.run(&["trigger", "plian", "-p", "x"]).fails(4);
    assert!(told.contains("try: heeler trigger plain"), "{told}");
    let told = fleet.run(&["trigger", "plain", "-S", "nightly"]).fails(4);
    assert!(told.contains("plain has no schedule `nightly`; it has none"), "{told}");
    assert_eq!(fleet.jobs().len(), 0);
}

#[test]
fn everything_that_a_job_leaves_is_private() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    fleet.run(&["trigger", "coder", "--output-file"]).ok();
    let job = fleet.wait_until_ended();
    assert!(fleet.read(&format!(".heeler/jobs/{}/output.log", job.head.id)).contains("Hello."));
    let mut folders =
        vec![fleet.state_dir(), Utf8PathBuf::from_path_buf(fleet.file("home/.heeler")).unwrap()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            let found = path.symlink_metadata().unwrap();
            let mode = found.permissions().mode() & 0o777;
            seen += 1;
            if found.is_dir() {
                assert_eq!(mode, 0o700, "{path}");
                folders.push(path);
            } else if found.is_file() {
                assert_eq!(mode & 0o077, 0, "{path}");
            }
        }
    }
    assert!(seen > 20, "{seen} files");
}

#[test]
fn nobody_is_asked_where_nobody_is() {
    let fleet = fleet(&[(
        "coder",
        &scripted("{write: a.txt, text: hi, ask_permission: true}, {say: Done.}"),
    )]);
    let ran = fleet.run(&["trigger", "coder"]);
    assert!(ran.stderr.contains("✗ Write a.txt"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("1 request was denied, because there was no one to ask"),
        "{}",
        ran.stderr
    );
    ran.ok();
    assert!(!fleet.file("a.txt").exists());
}

/// What an agent says that gives back a million bytes: more than any record holds.
const LONG_ANSWER: &str =
    r#"{run: "yes 'all of it' | head -c 1048576"}, {say: "{output}", chunks: 7}"#;

#[test]
fn the_whole_of_a_long_answer_is_printed() {
    let fleet = fleet(&[("coder", &scripted(&format!("{{say: Working.}}, {LONG_ANSWER}")))]);
    let whole = "all of it\n".repeat(1 << 17)[..1 << 20].trim_end().to_owned();
    let same = |said: &str, of: &str| {
        assert!(said == format!("{whole}\n"), "{of} gave {} bytes of it", said.len());
    };
    let piped = fleet.run(&["trigger", "coder"]).ok();
    same(piped.strip_prefix("Working.\n").unwrap(), "a pipe");
    let told = fleet.json(&["trigger", "coder", "--json"]);
    same(&format!("{}\n", told["result"].as_str().unwrap()), "--json");
    assert!(told["job"]["summary"].as_str().unwrap().len() <= 2048, "the record stays short");
    // In a session that has such a text already.
    let session = told["job"]["sessionId"].as_str().unwrap();
    same(&fleet.run(&["trigger", "coder", "-q", "--session", session]).ok(), "-q");
}

#[test]
fn a_detached_job_prints_its_id_and_with_q_nothing_else() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    let ran = fleet.run(&["trigger", "coder", "--detach", "-q"]);
    let id = fleet.wait_until_ended().head.id;
    assert_eq!((ran.stdout, ran.stderr), (format!("{id}\n"), String::new()));
}

#[test]
fn what_a_run_ran_out_of_is_told_once_with_its_cure() {
    let keys = scripted("{say: Trying.}, {run: 'true'}, {run: 'true'}") + "\nmax_turns: 1";
    let fleet = fleet(&[
        ("coder", &keys),
        ("api", &scripted("{error: 529, message: 'Too much\n to do.'}")),
    ]);
    let told = fleet.run(&["trigger", "coder"]).fails(1);
    for once in ["Reached maximum number of turns", "raise `max_turns`"] {
        assert_eq!(told.matches(once).count(), 1, "{told}");
    }
    let told = fleet.run(&["trigger", "api"]).fails(1);
    assert_eq!((told.matches("Too much").count(), told.matches("fix: ").count()), (1, 1), "{told}");
}

#[test]
fn a_file_that_the_agent_hands_over_is_told_with_its_place() {
    let tool = "mcp__heeler-files__send_file";
    let steps = format!("{{call: {tool}, input: {{file_path: report.txt}}}}, {{say: Sent.}}");
    let fleet = fleet(&[("coder", &scripted(&steps))]);
    fleet.write("report.txt", &"x".repeat(2000));
    let ran = fleet.run(&["trigger", "coder"]);
    let told = ran.stderr.lines().find(|line| line.starts_with("  file ")).expect(&ran.stderr);
    assert!(told.starts_with("  file report.txt (2.00 kB) → "), "{told}");
    assert!(told.ends_with("-report.txt"), "{told}");
    assert_eq!(ran.ok(), "Sent.\n");
}

#[test]
fn verbose_says_where_things_are() {
    let fleet = fleet(&[("coder", &scripted("{say: Hello.}"))]);
    let told = fleet.run(&["trigger", "coder", "-v"]).stderr;
    let id = fleet.wait_until_ended().head.id;
    let own: Vec<&str> = told.lines().filter(|line| line.starts_with(" INFO ")).collect();
    assert_eq!(own.len(), 3, "{told}");
    assert!(own[0].contains("heeler.yaml; state directory: "), "{told}");
    assert!(own[1].ends_with(&format!("/.heeler/jobs/{id}.jsonl")), "{told}");
    assert!(own[2].contains("/.heeler/runs/"), "{told}");
}

#[test]
fn all_that_a_command_prints_is_its_result() {
    let fleet = fleet(&[("shell", "runtime: command\ncommand: echo a; echo b; sleep 0.1; echo c")]);
    assert_eq!(fleet.run(&["trigger", "shell", "-q"]).ok(), "a\nb\nc\n");
    let told = fleet.json(&["trigger", "shell", "--json"]);
    assert_eq!(told["result"], "a\nb\nc");
    let told = fleet.run(&["trigger", "shell"]).stderr;
    assert!(!told.contains("--session"), "a command goes on with nothing: {told}");
}
