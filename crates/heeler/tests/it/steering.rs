//! A daemon and the commands that steer it, as a user types them.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use heeler_model::JobStatus;
use heeler_store::{StateDir, Store, StoreReader};
use heeler_transcript::LockFile;
use rustix::process::{Pid, Signal};
use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, at};
use crate::terminal::Terminal;
use crate::trigger::{fleet, scripted, wait_for};

/// A fleet whose daemon is stopped with the test.
struct Steered(Fleet);

impl std::ops::Deref for Steered {
    type Target = Fleet;
    fn deref(&self) -> &Fleet {
        &self.0
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        // There may be none.
        self.0.run(&["stop", "--force", "-q"]);
    }
}

/// An agent that works until there is a file `go`, and one that is done at once.
fn steered() -> Steered {
    let work = scripted("{say: Working.}, {run: 'until test -e go; do sleep 0.01; done'}");
    let work = format!("{work}\nschedules: {{nightly: {{cron: '0 3 * * *', prompt: Work.}}}}");
    Steered(fleet(&[("worker", &work), ("quick", &scripted("{say: Done.}"))]))
}

#[test]
fn a_daemon_in_the_background_keeps_its_log_once_and_each_agent_has_its_own() {
    let fleet = steered();
    fleet.start();
    let job = fleet.run(&["trigger", "quick", "--detach", "-q"]).ok();
    wait_for("the job's end", || {
        let log = std::fs::read_to_string(fleet.state_dir().join("logs/quick.log")).ok()?;
        log.contains(&format!("{} completed", job.trim())).then_some(())
    });
    fleet.run(&["stop"]).ok();
    let log = fleet.run(&["logs", "--daemon", "-n", "100"]).ok();
    let count = |word: &str| log.lines().filter(|line| line.contains(word)).count();
    assert_eq!((count(" ready "), count(" stopped")), (1, 1), "{log}");
}

impl Steered {
    fn start(&self) -> u64 {
        self.json(&["start", "-d", "--json"])["pid"].as_u64().unwrap()
    }

    /// Starts a job that runs until `go`.
    fn busy(&self) -> String {
        let id = self.run(&["trigger", "worker", "--detach", "-q"]).ok();
        self.wait_until_said("Working.");
        id.trim().to_owned()
    }

    fn status_of(&self, job: &str) -> JobStatus {
        let jobs = self.jobs();
        jobs.iter().find(|known| known.head.id.as_str() == job).unwrap().head.status
    }

    fn wait_without_daemon(&self) {
        wait_for("the daemon's end", || {
            // Not by `status`, which talks to the daemon and so keeps it from being idle.
            let lock = StateDir::open(&self.state_dir()).unwrap().lock();
            LockFile::probe(&lock).unwrap().is_none().then_some(())
        });
    }
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_daemon_goes_to_the_background_is_alone_and_stops() {
    let fleet = steered();
    let pid = fleet.start();
    let status = fleet.json(&["status", "--json"]);
    assert_eq!(status["daemon"]["pid"], pid);
    assert_eq!(status["daemon"]["mode"], "permanent");
    assert_eq!(status["daemon"]["faults"], json!([]));
    assert!(fleet.run(&["status"]).ok().contains(&format!("daemon {pid} up ")));
    for again in [&["start"][..], &["start", "-d"]] {
        let said = fleet.run(again).fails(5);
        assert!(said.contains(&format!("`heeler start`, process {pid}, since ")), "{said}");
    }
    assert_eq!(fleet.run(&["stop"]).ok(), "stopped\n");
    assert!(fleet.run(&["status"]).ok().contains("no daemon"));
    assert!(!fleet.file(".heeler/daemon.json").exists());
    let log = fleet.read(".heeler/logs/heeler.log");
    assert_eq!(log.matches(&format!(" ready  pid={pid} ")).count(), 1, "{log}");
}

#[test]
fn what_makes_no_sense_without_a_daemon_says_that_there_is_none() {
    let fleet = steered();
    for command in ["stop", "reload", "restart"] {
        let said = fleet.run(&[command]).fails(3);
        assert!(said.contains("no daemon runs in "), "{said}");
        let is_told_to_start = said.contains("try: heeler start");
        assert_eq!(is_told_to_start, command != "stop", "{said}");
        let told = fleet.run(&[command, "--json"]);
        let told: Json = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(told["error"]["code"], "no_daemon");
    }
}

#[test]
fn a_daemon_that_was_killed_is_no_daemon() {
    let fleet = steered();
    let pid = fleet.start();
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    fleet.wait_without_daemon();
    assert!(fleet.file(".heeler/daemon.json").exists(), "it could not remove it");
    fleet.run(&["reload"]).fails(3);
    assert!(fleet.run(&["status"]).ok().contains("no daemon"));
    fleet.start();
}

#[test]
fn a_change_without_a_daemon_starts_one_that_ends_when_idle() {
    let fleet = steered();
    let said = fleet.run(&["schedule", "disable", "worker", "nightly"]).ok();
    assert_eq!(said, "worker/nightly is disabled\n");
    fleet.wait_without_daemon();
    let list = fleet.json(&["schedule", "list", "--json"]);
    let schedule = &list["schedules"][0];
    assert_eq!(schedule["enabled"], false);
    assert_eq!(schedule["override"]["enabled"], false);
    assert!(schedule["override"]["at"].is_string() && schedule["override"]["by"].is_string());
    fleet.run(&["schedule", "disable", "worker", "nope"]).fails(4);
    fleet.run(&["schedule", "set", "worker", "nightly", "soon"]).fails(2);
}

#[test]
fn commands_that_come_at_once_find_one_daemon() {
    let fleet = steered();
    let changes: Vec<Child> = (0..6)
        .map(|n| {
            let change = if n % 2 == 0 { "disable" } else { "enable" };
            Fleet::start(&fleet, &["agent", change, "quick"])
        })
        .collect();
    for change in changes {
        let done = change.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn a_permanent_daemon_takes_over_from_one_that_would_end() {
    let fleet = steered();
    let job = fleet.busy();
    let passing = fleet.json(&["status", "--json"])["daemon"].clone();
    assert_eq!(passing["mode"], "until_idle");
    let pid = fleet.start();
    assert_ne!(passing["pid"], pid);
    assert_eq!(fleet.status_of(&job), JobStatus::Running);
    fleet.write("go", "");
    fleet.wait_until_ended();
    assert_eq!(fleet.json(&["status", "--json"])["daemon"]["pid"], pid);
}

#[test]
fn a_restart_keeps_what_runs() {
    let fleet = steered();
    let pid = fleet.start();
    let job = fleet.busy();
    let said = fleet.run(&["restart"]).ok();
    assert!(said.contains("1 running job kept"), "{said}");
    assert_ne!(fleet.json(&["status", "--json"])["daemon"]["pid"], pid);
    assert_eq!(fleet.status_of(&job), JobStatus::Running);
    fleet.write("go", "");
    fleet.wait_until_ended();
    assert_eq!(fleet.status_of(&job), JobStatus::Completed);
    let dir = StateDir::open(&fleet.state_dir()).unwrap();
    let runs = StoreReader::open(&dir).unwrap().runs_of_job(&job.parse().unwrap()).unwrap();
    assert_eq!(runs.len(), 1, "it ran once: {runs:?}");
}

#[test]
fn a_restart_with_a_faulty_config_stops_nothing() {
    let fleet = steered();
    let pid = fleet.start();
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &format!("{config}\nnonsense: [\n"));
    fleet.run(&["restart"]).fails(2);
    assert_eq!(fleet.json(&["status", "--json"])["daemon"]["pid"], pid);
}

#[test]
fn a_stop_waits_for_jobs_and_can_be_left_or_forced() {
    let fleet = steered();
    fleet.start();
    let job = fleet.busy();
    let mut stop = Fleet::start(&fleet, &["stop"]);
    let mut said = BufReader::new(stop.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert_eq!(first, "waiting for 1 job (Ctrl-C to stop waiting):");
    signal(&stop, Signal::INT);
    assert_eq!(stop.wait().unwrap().code(), Some(130));
    let rest: Vec<String> = said.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains("heeler stop --keep-jobs")), "{rest:?}");
    let status = fleet.run(&["status"]).ok();
    let stopping = "\nstopping, waiting for 1 job; to end it now and keep them running: heeler stop --keep-jobs\n";
    assert!(status.contains(stopping) && !status.contains("\nNext\n"), "{status}");
    assert_eq!(fleet.json(&["status", "--json"])["daemon"]["stopping"], true);
    // It goes on stopping: nothing new starts.
    let refused = fleet.run(&["trigger", "quick"]).fails(5);
    assert!(refused.contains("stopping"), "{refused}");
    fleet.run(&["stop", "--force"]).ok();
    assert_eq!(fleet.status_of(&job), JobStatus::Cancelled);
    fleet.run(&["status"]).ok().contains("no daemon");
}

#[test]
fn a_stop_with_a_timeout_cancels_what_has_not_ended_by_then() {
    let fleet = steered();
    fleet.start();
    let job = fleet.busy();
    let told = fleet.json(&["stop", "--timeout", "1s", "--json"]);
    assert_eq!(told["message"], "stopped; jobs that were cancelled: 1");
    assert_eq!(fleet.status_of(&job), JobStatus::Cancelled);
    let said = fleet.run(&["stop", "--force", "--keep-jobs"]).fails(2);
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn a_stop_that_keeps_jobs_leaves_them_to_the_next_daemon() {
    let fleet = steered();
    fleet.start();
    let job = fleet.busy();
    let said = fleet.run(&["stop", "--keep-jobs"]).ok();
    assert!(said.contains("jobs that continue: 1"), "{said}");
    assert_eq!(fleet.status_of(&job), JobStatus::Running);
    fleet.start();
    fleet.write("go", "");
    fleet.wait_until_ended();
    assert_eq!(fleet.status_of(&job), JobStatus::Completed);
}

#[test]
fn a_reload_says_what_is_different_and_keeps_a_config_that_works() {
    let fleet = steered();
    fleet.start();
    assert_eq!(fleet.run(&["reload"]).ok(), "config reread; nothing has changed\n");
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &config.replace("0 3 * * *", "0 4 * * *"));
    let changes = fleet.json(&["reload", "--json"]);
    let change = changes["changes"][0].as_str().unwrap();
    assert!(change.contains("nightly") && change.contains("0 4 * * *"), "{change}");
    fleet.write("heeler.yaml", &format!("{config}\nnonsense: [\n"));
    let said = fleet.run(&["reload"]).fails(2);
    assert!(said.contains("the old config stays in use"), "{said}");
    assert!(said.contains("heeler.yaml:"), "{said}");
    fleet.run(&["agent", "disable", "quick"]).ok();
}

#[test]
fn in_the_foreground_a_daemon_logs_and_heeds_signals() {
    let fleet = steered();
    let mut daemon = Fleet::start(&fleet, &["start", "--json"]);
    let mut log = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let mut wait = |text: &str| {
        let line = log.by_ref().map(Result::unwrap).find(|line| line.contains(text));
        let line = line.unwrap_or_else(|| panic!("the log ended before {text:?}"));
        serde_json::from_str::<Json>(&line).unwrap()
    };
    let ready = wait("\"ready\"");
    assert_eq!(ready["pid"], daemon.id());
    assert!(ready["timestamp"].is_string());
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &config.replace("0 3 * * *", "0 4 * * *"));
    signal(&daemon, Signal::HUP);
    assert!(wait("0 4 * * *")["change"].as_str().unwrap().contains("nightly"));
    let job = fleet.busy();
    fleet.write("heeler.yaml", &config);
    signal(&daemon, Signal::HUP);
    wait("not loaded, because it changed while");
    signal(&daemon, Signal::TERM);
    wait("stopped");
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    let kept = fleet.read(".heeler/logs/heeler.log");
    assert_eq!(kept.matches(" ready ").count(), 1, "it is kept too, once: {kept}");
    assert_eq!(fleet.status_of(&job), JobStatus::Running, "what runs is left to the next daemon");
}

#[test]
fn ctrl_c_waits_for_jobs_and_a_second_one_leaves_them() {
    let fleet = steered();
    let mut terminal = Terminal::start(&fleet, "start");
    terminal.wait_for("ready");
    let job = fleet.busy();
    terminal.type_in("\u{3}");
    terminal.wait_for("Ctrl-C again leaves");
    terminal.type_in("\u{3}");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert_eq!(fleet.status_of(&job), JobStatus::Running);
}

#[test]
fn the_first_process_of_a_container_passes_signals_on_and_ends_with_its_daemon() {
    let fleet = steered();
    let mut init = Fleet::start(&fleet, &["start", "--as-init"]);
    let daemon =
        wait_for("a daemon", || fleet.json(&["status", "--json"])["daemon"]["pid"].as_u64());
    assert_ne!(daemon, u64::from(init.id()), "the daemon is its child");
    signal(&init, Signal::TERM);
    assert_eq!(init.wait().unwrap().code(), Some(0));
    assert!(fleet.run(&["status"]).ok().contains("no daemon"));
    fleet.write("heeler.yaml", "nonsense: [\n");
    let mut init = Fleet::start(&fleet, &["start", "--as-init"]);
    assert_eq!(init.wait().unwrap().code(), Some(2), "it ends as its daemon did");
}

#[test]
fn the_status_is_drawn_anew_until_ctrl_c() {
    let fleet = steered();
    let said = fleet.run(&["status", "--watch"]).fails(2);
    assert!(said.contains("needs a terminal"), "{said}");
    let mut terminal = Terminal::start(&fleet, "status --watch");
    terminal.wait_for("\u{1b}[H");
    terminal.wait_for("no daemon");
    fleet.start();
    terminal.wait_for("\u{1b}[H");
    terminal.wait_for("daemon ");
    terminal.wait_for(" up ");
    terminal.type_in("\u{3}");
    let (code, _) = terminal.end();
    assert_eq!(code, Some(130));
    let mut terminal = Terminal::shell(&fleet, "heeler status --watch && stty -a");
    terminal.wait_for("\u{1b}[H");
    terminal.type_in("xq");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains(" icanon") && rest.contains(" echo "), "it is put back: {rest}");
}

#[test]
fn without_a_daemon_nothing_looks_alive() {
    const WARNING: &str =
        "no daemon is running, so schedules and queued jobs do not start: heeler start -d\n";
    let fleet = steered();
    fleet.start();
    let next = |fleet: &Steered| {
        let agent = fleet.json(&["agent", "show", "worker", "--json"])["agent"].clone();
        let schedule = fleet.json(&["schedule", "list", "--json"])["schedules"][0].clone();
        let status = fleet.json(&["status", "worker", "--json"])["agents"][0].clone();
        [
            agent["nextTriggerAt"].clone(),
            schedule["nextRunAt"].clone(),
            status["nextTriggerAt"].clone(),
            status["schedules"][0]["nextRunAt"].clone(),
        ]
    };
    // A daemon that is ready may not have planned yet.
    wait_for("the plan", || next(&fleet).iter().all(Json::is_string).then_some(()));
    fleet.busy();
    let waiting = fleet.run(&["trigger", "worker", "--detach", "-q"]).ok();
    fleet.run(&["stop", "--keep-jobs"]).ok();
    assert!(next(&fleet).iter().all(Json::is_null), "{:?}", next(&fleet));
    for list in [&["status"][..], &["status", "-q"], &["agent", "list"], &["schedule", "list"]] {
        let said = fleet.run(list).ok();
        assert!(said.starts_with(WARNING), "{said}");
    }
    let status = fleet.run(&["status"]).ok();
    assert!(
        status.contains("\nWaiting; no daemon is running to start them: heeler start -d\n"),
        "{status}"
    );
    assert!(!status.contains("\nNext\n"), "{status}");
    let shown = fleet.run(&["jobs", "show", waiting.trim()]).ok();
    assert!(shown.contains("no daemon is running to start it: heeler start -d"), "{shown}");
    // It ends with the daemon that the test stops at its end.
    fleet.start();
}

#[test]
fn a_job_that_waits_has_not_started_and_says_why() {
    let fleet = steered();
    fleet.start();
    fleet.busy();
    let id = fleet.run(&["trigger", "worker", "--detach", "-q"]).ok();
    let job = fleet.json(&["jobs", "show", id.trim(), "--json"])["job"].clone();
    assert_eq!(job["startedAt"], Json::Null);
    assert!(job["askedAt"].is_string());
    assert!(job["waits"].as_str().unwrap().contains("reached its limit of 1"), "{job}");
    let shown = fleet.run(&["jobs", "show", id.trim()]).ok();
    assert!(shown.contains("requested:") && !shown.contains("started:"), "{shown}");
    assert!(shown.contains("waiting:") && shown.contains("reached its limit of 1"), "{shown}");
    let list = fleet.run(&["jobs", "--status", "pending"]).ok();
    assert!(list.contains("  requested "), "{list}");
    fleet.write("go", "");
    fleet.wait_until_ended();
    let job = fleet.json(&["jobs", "show", id.trim(), "--json"])["job"].clone();
    let time = |name: &str| job[name].as_str().unwrap().to_owned();
    assert!(time("askedAt") < time("startedAt"), "{job}");
    assert_eq!(job["waits"], Json::Null);
}

#[test]
fn failures_of_one_agent_are_one_line() {
    let fleet = Steered(fleet(&[
        ("fails", &scripted("{error: invalid_request}")),
        ("breaks", &scripted("{error: invalid_request}")),
    ]));
    for agent in ["fails", "breaks", "fails", "fails"] {
        fleet.run(&["trigger", agent]).fails(1);
    }
    let status = fleet.run(&["status"]).ok();
    let (_, failed) = status.split_once("\nFailed in the last 24 hours\n").unwrap();
    let rows: Vec<&str> = failed.lines().collect();
    assert_eq!(rows.len(), 2, "{status}");
    assert!(rows[0].contains("  fails ") && rows[0].contains("failed ×3  last "), "{status}");
    assert!(rows[1].contains("  breaks  failed     "), "they are aligned: {status}");
    assert_eq!(fleet.json(&["status", "--json"])["failed"].as_array().unwrap().len(), 4);
}

#[test]
fn the_status_says_what_waits_and_why() {
    let fleet = steered();
    fleet.start();
    fleet.busy();
    let waiting = fleet.run(&["trigger", "worker", "--detach", "-q"]).ok();
    let status = fleet.run(&["status"]).ok();
    let (_, waits) = status.split_once("\nWaiting\n").unwrap();
    assert!(waits.contains(waiting.trim()) && waits.contains("reached its limit of 1"), "{status}");
    assert!(status.contains("\nNext\n") && status.contains("worker  nightly"), "{status}");
    let json = fleet.json(&["status", "--json"]);
    assert_eq!(json["waiting"][0]["id"], waiting.trim());
    let since = json["daemon"]["since"].as_str().unwrap();
    assert_eq!(since.len(), "2026-11-15T12:00:00.000Z".len(), "{since}");
    assert!(json["waiting"][0]["waits"].as_str().unwrap().contains("limit"));
}

#[test]
fn what_failed_is_tried_again_as_the_same_job_or_a_new_one() {
    let steps = "{say: Looking.}, {error: invalid_request}";
    let fleet = Steered(fleet(&[("coder", &scripted(steps))]));
    fleet.run(&["trigger", "coder", "-p", "Look."]).fails(1);
    let job = fleet.jobs().remove(0).head.id.to_string();
    let resumed = fleet.json(&["jobs", "resume", &job, "--json"]);
    assert_eq!(resumed["job"]["id"], job);
    fleet.wait_until_ended();
    let retried = fleet.json(&["jobs", "retry", &job, "--json"]);
    assert_ne!(retried["job"]["id"], job);
    let retried = retried["job"]["id"].as_str().unwrap().to_owned();
    let again = wait_for("the new job", || {
        fleet.jobs().into_iter().find(|known| known.head.id.as_str() == retried)
    });
    assert_eq!(again.prompt.as_deref(), Some("Look."));
    let id = fleet.run(&["jobs", "retry", &job, "-q"]).ok();
    assert!(id.starts_with("job-") && id.split_whitespace().count() == 1, "{id}");
    fleet.run(&["jobs", "retry", "job-2020-01-01-aaaaaa"]).fails(4);
}

#[test]
fn schedules_show_what_people_changed_and_what_was_started() {
    let fleet = steered();
    fleet.start();
    fleet.run(&["schedule", "set", "worker", "nightly", "30m"]).ok();
    let shown = fleet.json(&["schedule", "show", "worker", "nightly", "--json"]);
    let schedule = &shown["schedule"];
    assert_eq!(schedule["when"], "every 30m");
    assert_eq!(schedule["configured"], "0 3 * * *");
    assert!(schedule["nextRunAt"].is_string(), "{schedule}");
    let text = fleet.run(&["schedule", "show", "worker", "nightly"]).ok();
    assert!(text.contains("in config:    0 3 * * *") && text.contains("set by "), "{text}");
    fleet.run(&["schedule", "reset", "worker", "nightly"]).ok();
    let list = fleet.run(&["schedule", "list"]).ok();
    assert!(list.contains("worker  nightly   0 3 * * *  enabled"), "{list}");
    let job = fleet.json(&["schedule", "trigger", "worker", "nightly", "--json"]);
    assert!(job["job"]["id"].is_string() && job["job"].get("waits").is_some(), "{job}");
    let said = fleet.run(&["schedule", "show", "worker", "nope"]).fails(4);
    assert!(said.contains("`worker` has no schedule `nope`; it has: nightly"), "{said}");
    for command in [&["schedule", "show", "nobody", "nightly"][..], &["schedule", "list", "nobody"]]
    {
        let said = fleet.run(command).fails(4);
        assert!(said.contains("nobody") && said.contains("heeler agent list"), "{said}");
    }
}

#[test]
fn a_schedule_that_files_start_takes_no_time() {
    let watches = format!(
        "{}\nschedules: {{sources: {{type: watch, paths: ['*.rs'], prompt: Look.}}}}",
        scripted("{say: Done.}")
    );
    let fleet = Steered(fleet(&[("watcher", &watches)]));
    let said = fleet.run(&["schedule", "set", "watcher", "sources", "30m"]).fails(5);
    assert!(said.contains("started by file changes"), "{said}");
}

#[test]
fn whoever_changes_something_is_named_by_the_kernel_and_not_by_a_variable() {
    let fleet = steered();
    let named = heeler_process::login_name(rustix::process::geteuid().as_raw());
    for (user, login) in [("ann", "bob"), ("", "bob")] {
        let mut command = fleet.command(&["schedule", "disable", "worker", "nightly"]);
        command.env("USER", user).env("LOGNAME", login);
        assert!(command.output().unwrap().status.success());
        let shown = fleet.json(&["schedule", "show", "worker", "nightly", "--json"]);
        assert_eq!(shown["schedule"]["override"]["by"], named);
    }
}

#[test]
fn agents_can_be_switched_off_and_on() {
    let fleet = steered();
    fleet.start();
    fleet.run(&["agent", "disable", "quick"]).ok();
    let shown = fleet.json(&["agent", "show", "quick", "--json"]);
    assert_eq!(shown["agent"]["enabled"], false);
    assert!(fleet.run(&["agent", "list"]).ok().contains("quick   disabled"));
    fleet.run(&["agent", "enable", "quick"]).ok();
    let shown = fleet.run(&["agent", "show", "quick"]).ok();
    assert!(shown.contains("status:       idle"), "{shown}");
    let said = fleet.run(&["agent", "show", "quik"]).fails(4);
    assert!(said.contains("heeler agent show quick"), "{said}");
    fleet.run(&["agent", "enable", "nobody"]).fails(4);
}

#[test]
fn costs_are_summed_up_by_agent_day_and_model() {
    let fleet = steered();
    assert_eq!(fleet.run(&["costs"]).ok(), "nothing spent\n");
    let dir = StateDir::create(&fleet.state_dir()).unwrap();
    let store = Store::open(&dir, "test", at(0)).unwrap().store;
    store
        .write(|tx| {
            tx.spend("2026-11-14".parse().unwrap(), "worker", "opus", 1_250_000)?;
            tx.spend("2026-11-15".parse().unwrap(), "worker", "haiku", 250_000)?;
            tx.spend("2026-11-15".parse().unwrap(), "quick", "opus", 500_000)
        })
        .unwrap();
    drop(store);
    expect_test::expect![[r#"
        AGENT   COST   SHARE
        worker  $1.50  75%
        quick   $0.50  25%
        total   $2.00
    "#]]
    .assert_eq(&fleet.run(&["costs"]).ok());
    let by_day = fleet.json(&["costs", "--by", "day", "--since", "2026-11-15", "--json"]);
    let expected = json!({
        "by": "day", "costs": [{ "day": "2026-11-15", "costUsd": 0.75 }], "totalUsd": 0.75,
    });
    assert_eq!(by_day, expected);
    let models = fleet.run(&["costs", "--by", "model"]).ok();
    assert!(models.starts_with("MODEL  COST   SHARE\nopus   $1.75  87%\n"), "{models}");
}

#[test]
fn the_shipped_unit_lets_jobs_run_on_without_the_daemon() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/heeler.service");
    let unit = std::fs::read_to_string(path).unwrap();
    let keys: Vec<&str> = unit.lines().filter(|line| !line.starts_with('#')).collect();
    for key in ["KillMode=process", "Delegate=yes", "OOMPolicy=continue"] {
        assert!(keys.contains(&key), "{key}");
    }
    assert!(keys.iter().any(|line| line.starts_with("ExecStart=") && line.contains(" start ")));
}

#[test]
fn a_webhook_is_called_with_a_file_and_its_job_has_it() {
    let script = format!(
        "{}\nschedules: {{push: {{type: webhook, prompt: Look.}}}}",
        scripted("{say: Done.}")
    );
    let fleet = Steered(fleet(&[("worker", &script)]));
    std::fs::write(fleet.file("event.json"), "{\"issue\": 7}").unwrap();
    let file = fleet.file("event.json").into_os_string().into_string().unwrap();
    let called = |more: &[&str]| {
        let call = ["schedule", "trigger", "worker", "push", "--payload", file.as_str()];
        fleet.json(&[&call[..], more, &["--json"]].concat())["job"]["id"].clone()
    };
    let job = called(&["--delivery", "d-1"]);
    let id = job.as_str().unwrap();
    wait_for("the job's end", || (fleet.status_of(id) == JobStatus::Completed).then_some(()));
    assert_eq!(called(&["--delivery", "d-1"]), job);
    let shown = fleet.json(&["jobs", "show", id, "--json"]);
    assert_eq!(shown["job"]["triggerType"], "webhook");
    let prompt = shown["job"]["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("Look.") && prompt.contains("\n{\"issue\": 7}\n"), "{prompt}");
    let said = fleet.run(&["schedule", "trigger", "worker", "push", "--payload", "none"]).fails(2);
    assert!(said.contains("cannot send none: No such file"), "{said}");
    std::fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
    let said = fleet.run(&["schedule", "trigger", "worker", "push", "--payload", file.as_str()]);
    assert!(said.fails(2).contains("longer than 1048576 bytes"));
}

#[test]
fn a_daemon_whose_state_directory_goes_away_says_so_and_ends_and_its_jobs_run_on() {
    let fleet = steered();
    // A daemon that is woken each second by what is due.
    let config =
        fleet.read("heeler.yaml").replace("'0 3 * * *'", "'0 3 * * *'}, often: {interval: 1s");
    fleet.write("heeler.yaml", &config);
    let daemon = Fleet::start(&fleet, &["start"]);
    wait_for("a daemon", || fleet.json(&["status", "--json"])["daemon"]["pid"].as_u64());
    fleet.wait_until_said("Working.");
    let (there, away) = (fleet.state_dir(), fleet.state_dir().with_file_name("away"));
    std::fs::rename(&there, &away).unwrap();
    let done = daemon.wait_with_output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(said.contains("was removed, moved or replaced while this daemon used"), "{said}");
    assert!(said.contains("move it back"), "{said}");
    std::fs::rename(&away, &there).unwrap();
    fleet.start();
    fleet.write("go", "");
    let jobs = wait_for("the job's end", || {
        let jobs = fleet.jobs();
        jobs.iter().all(|job| job.head.status.is_final()).then_some(jobs)
    });
    assert!(jobs.iter().any(|job| job.head.status == JobStatus::Completed), "{jobs:?}");
}

#[test]
fn what_has_a_higher_priority_starts_first() {
    let fleet = steered();
    fleet.start();
    fleet.busy();
    let ask = |priority: &str| {
        let id = fleet.run(&["trigger", "worker", "--detach", "-q", "--priority", priority]).ok();
        id.trim().to_owned()
    };
    let (low, usual, high) = (ask("-5"), ask("0"), ask("100"));
    let status = fleet.json(&["status", "--json"]);
    let queue = status["waiting"].as_array().unwrap();
    let order: Vec<&str> = queue.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(order, [&high, &usual, &low]);
    for wrong in ["101", "-101", "high"] {
        let said = fleet.run(&["trigger", "worker", "--priority", wrong]).fails(2);
        assert!(said.contains("--priority"), "{said}");
    }
}

#[test]
fn a_trigger_that_waits_tells_of_each_further_try() {
    let keys = "retry: {max: 2, backoff: 1s}";
    let script = format!("{}\n{keys}", scripted("{error: overloaded, message: Too much.}"));
    let fleet = Steered(fleet(&[("worker", &script)]));
    let done = fleet.run(&["trigger", "worker"]);
    let said = done.fails(1);
    for (number, most) in [(2, 3), (3, 3)] {
        let told = format!("failed: Too much.; will be retried ({number} of {most}), ");
        assert_eq!(said.matches(&told).count(), 1, "{said}");
    }
    assert!(!said.contains("(4 of"), "{said}");
}

#[test]
fn hooks_that_failed_are_told_of_their_job() {
    let hooks = "hooks: {after_run: [{type: shell, name: notify, command: 'echo no >&2; exit 3'}, \
                 {type: shell, command: 'true'}]}";
    let script = format!("{}\n{hooks}", scripted("{say: Done.}"));
    let fleet = Steered(fleet(&[("worker", &script)]));
    let id = fleet.run(&["trigger", "worker", "--detach", "-q"]).ok();
    let job = wait_for("the hooks' end", || {
        let told = fleet.json(&["jobs", "show", id.trim(), "--json"])["job"].clone();
        (!told["failedHooks"].as_array().unwrap().is_empty()).then_some(told)
    });
    let [hook] = &job["failedHooks"].as_array().unwrap()[..] else { panic!("{job}") };
    assert_eq!(
        (&hook["name"], &hook["givenUp"], &hook["attempts"]),
        (&json!("notify"), &json!(true), &json!(1))
    );
    assert!(hook["error"].as_str().unwrap().contains('3'), "{hook}");
    assert!(hook["eventId"].as_str().unwrap().starts_with(id.trim()), "{hook}");
    let shown = fleet.run(&["jobs", "show", id.trim()]).ok();
    assert!(shown.contains("failed hooks") && shown.contains("notify: "), "{shown}");
}

#[test]
fn who_cancelled_a_job_is_on_record() {
    let fleet = steered();
    fleet.start();
    let job = fleet.busy();
    let mut cancel = fleet.command(&["jobs", "cancel", &job]);
    assert!(cancel.env("USER", "ann").output().unwrap().status.success());
    let shown = fleet.json(&["jobs", "show", &job, "--json"]);
    let named = heeler_process::login_name(rustix::process::geteuid().as_raw());
    assert_eq!(shown["job"]["error"], format!("cancelled by {named}"));
}
