//! What keeps a fleet within its limits, whoever asks: agents that start jobs, money, the queue, and a
//! person who stops it.

use heeler_model::{JobStatus, TriggerType};
use heeler_store::{StateDir, StoreReader};

use crate::fleet::Fleet;
use crate::trigger::{ended, fleet, scripted, wait_for};

const HEELER: &str = env!("CARGO_BIN_EXE_heeler");

/// A fleet whose daemon is stopped with the test.
struct Limited(Fleet);

impl std::ops::Deref for Limited {
    type Target = Fleet;
    fn deref(&self) -> &Fleet {
        &self.0
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // There may be none.
        self.0.run(&["stop", "--force", "-q"]);
    }
}

fn limited(agents: &[(&str, &str)]) -> Limited {
    Limited(fleet(agents))
}

/// An agent that works until there is a file `go`.
fn slow() -> String {
    scripted("{say: Working.}, {run: 'until test -e go; do sleep 0.01; done'}, {say: Done.}")
}

fn statuses(fleet: &Fleet, agent: &str) -> Vec<JobStatus> {
    let jobs = fleet.jobs().into_iter().filter(|job| job.head.agent == agent);
    jobs.map(|job| job.head.status).collect()
}

#[test]
fn jobs_start_jobs_no_deeper_and_no_more_than_they_may() {
    let again = format!("{HEELER} trigger again --detach -q 2>&1");
    let again = format!(
        "runtime: command\ncommand: '{again}'\ninstances: {{max_concurrent: 9}}\nspawn: {{max_depth: 2, agents: [again]}}"
    );
    let many = format!("for i in 1 2 3 4; do {HEELER} trigger leaf -q --detach 2>&1; done; true");
    let many =
        format!("runtime: command\ncommand: '{many}'\nspawn: {{max_jobs: 2, agents: [leaf]}}");
    let leaf = "runtime: command\ncommand: 'true'\ninstances: {max_concurrent: 9}";
    let fleet = limited(&[("again", &again), ("many", &many), ("leaf", leaf)]);
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "again"]).ok();
    wait_for("the last level", || {
        let all = statuses(&fleet, "again");
        (all.len() == 3 && all.iter().all(|status| status.is_final())).then_some(())
    });
    let spawned =
        fleet.jobs().into_iter().filter(|it| it.head.trigger_type == TriggerType::Spawned);
    assert!(spawned.clone().all(|job| job.trigger_id.starts_with("job-")));
    assert_eq!(spawned.count(), 2);

    let said = fleet.run(&["trigger", "many"]).ok();
    assert_eq!(said.matches("the maximum").count(), 2, "{said}");
    assert_eq!(statuses(&fleet, "leaf").len(), 2);
}

#[test]
fn an_agent_that_looks_like_another_run_acts_as_its_own() {
    // To whoever looks at arguments alone, `sh runner FOLDER` is the runner of that folder's run.
    let thief = "runtime: command\ncommand: 'sh runner .heeler/runs/$(ls .heeler/runs | head -1)'\n\
                 spawn: {agents: [leaf]}";
    let leaf = "runtime: command\ncommand: 'true'";
    let fleet = limited(&[("victim", &slow()), ("thief", thief), ("leaf", leaf)]);
    fleet.write("runner", &format!("{HEELER} trigger leaf --detach -q\n"));
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "victim", "--detach"]).ok();
    fleet.wait_until_said("Working.");
    fleet.run(&["trigger", "thief"]).ok();
    let job_of = |agent: &str| fleet.jobs().into_iter().find(|job| job.head.agent == agent);
    let (leaf, thief) = (job_of("leaf").unwrap(), job_of("thief").unwrap());
    assert_eq!(leaf.head.trigger_type, TriggerType::Spawned);
    assert_eq!(leaf.trigger_id, thief.head.id.to_string());
}

#[test]
fn a_job_whose_run_holds_all_the_money_is_told_how_to_leave_some_for_those_it_starts() {
    let start = format!("{HEELER} trigger leaf --detach > said 2>&1; true");
    let chief = |more: &str| {
        format!("{}\nspawn: {{agents: [leaf]}}\n{more}", scripted(&format!("{{run: '{start}'}}")))
    };
    let limits = "budget: {day: 1, job: 1}";
    // An agent with a larger budget could not be started.
    let leaf = format!("{}\nbudget: {{day: 1}}", scripted("{say: Hi.}"));
    let fleet = limited(&[("chief", &chief(limits)), ("leaf", &leaf)]);
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &format!("budget: {{day: 1}}\n{config}"));
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "chief"]).ok();
    assert_eq!(statuses(&fleet, "leaf"), []);
    let said = fleet.read("said");
    assert!(
        said.contains("waiting might never end") && said.contains("`budget.job` of chief"),
        "{said}"
    );
    let config = fleet.read("heeler.yaml").replace(limits, "budget: {day: 1, job: 0.5}");
    fleet.write("heeler.yaml", &config);
    fleet.run(&["reload"]).ok();
    fleet.run(&["trigger", "chief"]).ok();
    assert_eq!(statuses(&fleet, "leaf").len(), 1, "some is left");
}

#[test]
fn a_command_spends_no_money() {
    let agent = "runtime: command\ncommand: 'true'\nbudget: {day: 1}";
    let fleet = limited(&[("shell", agent)]);
    for _ in 0..3 {
        fleet.run(&["trigger", "shell"]).ok();
    }
    let reader = StoreReader::open(&StateDir::open(&fleet.state_dir()).unwrap()).unwrap();
    assert_eq!(reader.total_spend_by_agent().unwrap(), []);
    assert_eq!(reader.reservations().unwrap(), []);
}

#[test]
fn a_full_queue_refuses_only_what_would_have_to_wait() {
    let fleet = limited(&[("slow", &slow()), ("quick", &scripted("{say: Hi.}"))]);
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &format!("queue: {{max: 1}}\n{config}"));
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "slow", "--detach"]).ok();
    fleet.run(&["trigger", "slow", "--detach"]).ok();
    let said = fleet.run(&["trigger", "slow", "--detach"]).fails(5);
    assert!(
        said.contains("the queue is full (1 jobs") && said.contains("reached its limit of 1"),
        "{said}"
    );
    fleet.run(&["trigger", "quick"]).ok();
}

#[test]
fn what_waits_when_a_person_stops_the_fleet_waits_until_it_is_started() {
    let fleet = limited(&[("slow", &slow()), ("quick", &scripted("{say: Hi.}"))]);
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "slow", "--detach"]).ok();
    fleet.wait_until_said("Working.");
    let waiting = fleet.run(&["trigger", "slow", "--detach", "-q"]).ok().trim().to_owned();
    let said = fleet.run(&["stop", "--force"]).ok();
    assert!(said.contains("were cancelled: 1") && said.contains("the next start: 1"), "{said}");
    // A command that starts a daemon of its own does not go on with what was stopped.
    fleet.run(&["trigger", "quick"]).ok();
    let status = |id: &str| {
        let jobs = fleet.jobs();
        jobs.iter().find(|job| job.head.id.as_str() == id).unwrap().head.status
    };
    assert_eq!(status(&waiting), JobStatus::Pending);
    fleet.write("go", "");
    fleet.run(&["start", "-d"]).ok();
    wait_for("the one that waited", || (status(&waiting) == JobStatus::Completed).then_some(()));
}

#[test]
fn a_trigger_that_waits_tells_all_though_its_daemon_is_killed() {
    let fleet = limited(&[("slow", &slow())]);
    fleet.run(&["trigger", "slow", "--detach"]).ok();
    fleet.wait_until_said("Working.");
    let waits = fleet.start(&["trigger", "slow"]);
    wait_for("the one that waits", || (statuses(&fleet, "slow").len() == 2).then_some(()));
    // The reply follows the record. A trigger that gets no reply says so and does not wait.
    std::thread::sleep(std::time::Duration::from_millis(500));
    fleet.kill("start");
    fleet.write("go", "");
    assert_eq!(ended(waits).ok(), "Working.\nDone.\n");
}

#[test]
fn only_what_did_not_complete_is_resumed() {
    let fleet = limited(&[
        ("quick", &scripted("{say: Hi.}")),
        ("shell", "runtime: command\ncommand: 'exit 3'"),
    ]);
    fleet.run(&["trigger", "quick"]).ok();
    let done = fleet.jobs().remove(0);
    let said = fleet.run(&["jobs", "resume", done.head.id.as_str()]).fails(5);
    assert!(said.contains("has completed") && said.contains("heeler jobs retry"), "{said}");
    assert_eq!(fleet.jobs().remove(0), done, "its record is as it was");
    fleet.run(&["trigger", "shell"]).fails(1);
    let failed = fleet.jobs().into_iter().find(|job| job.head.agent == "shell").unwrap();
    let said = fleet.run(&["jobs", "resume", failed.head.id.as_str()]).fails(5);
    assert!(said.contains("no session to resume"), "{said}");
}

#[test]
fn what_a_person_types_to_a_job_that_waits_is_not_written_down_with_its_secrets() {
    let agent =
        format!("secrets: [MY_TOKEN]\n{}", scripted("{say: Hi.}, {error: invalid_request}"));
    let fleet = limited(&[("quick", &agent), ("slow", &slow())]);
    let secret = "s3cret-that-nobody-writes";
    fleet.write(".env", &format!("MY_TOKEN={secret}\n"));
    fleet.run(&["trigger", "quick", "-p", secret]).fails(1);
    let job = fleet.jobs().remove(0).head.id.to_string();
    fleet.run(&["jobs", "resume", &job, "-p", &format!("now use {secret}")]).ok();
    for name in ["heeler.db", "heeler.db-wal", "logs/heeler.log", "daemon.json"] {
        let Ok(bytes) = std::fs::read(fleet.state_dir().join(name)) else { continue };
        let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!found, "{name}");
    }
}
