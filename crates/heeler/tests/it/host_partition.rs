//! Agents of a host that loses contact with the database: with `on_partition: stop` they end by themselves and their
//! jobs continue on another host, one agent at a time; with `keep` they work on.
//!
//! Each agent notes the time since the start of the machine, which all hosts of these tests share.

use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::RunRecord;
use heeler_testkit::{NetworkState, PostgresCluster, PostgresRelay};
use rustix::process::{Pid, Signal};
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::host_runs::{rows, stop, trigger, wait_for_copy};
use crate::hosts::{cluster, json_of, wait_for_leader};
use crate::processes::signal_if;
use crate::trigger::wait_for;

/// Length of leases here. The leader gives a run up after 13.8 seconds without a sign of life.
const LEASE: [&str; 2] = ["--run-lease", "8s"];

/// Leases that no pause of a busy machine exceeds.
const LONG_LEASE: [&str; 2] = ["--run-lease", "10m"];

/// An agent for any host that ends without contact, one of beta that works on, and one that ends and may not
/// continue elsewhere. Each notes the time until it finds its file.
fn herd(url: &str) -> Herd {
    let work = |name: &str| {
        format!(
            "[{{run: 'echo $HEELER_RUN >> {name}-ran; while :; do cut -d\" \" -f1 /proc/uptime >> {name}; \
             [ -e {name}-done ] && exit 0; sleep 0.1; done'}}, {{say: Done.}}]"
        )
    };
    Herd::of(&format!(
        "store: {url}\nweb: {{enabled: false}}\nagents:
  - {{name: mover, host: {{labels: []}}, on_partition: stop, session: {{auto_resume: true}},
     runtime: scripted, script: {}}}
  - {{name: keeper, host: beta, runtime: scripted, script: {}}}
  - {{name: ender, host: beta, on_partition: stop, runtime: scripted, script: {}}}
",
        work("mover"),
        work("keeper"),
        work("ender")
    ))
}

fn lines(herd: &Herd, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(herd.fleet.file(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the first and last time at which an agent worked on a host.
#[track_caller]
fn worked(herd: &Herd, name: &str) -> (f64, f64) {
    let times: Vec<f64> = lines(herd, name).iter().map(|line| line.parse().unwrap()).collect();
    (times[0], *times.last().unwrap())
}

/// Lets an agent end on a host, or end as soon as it has begun.
fn let_end(herd: &Herd, name: &str) {
    std::fs::write(herd.fleet.file(&format!("{name}-done")), "").unwrap();
}

#[track_caller]
fn wait_for_work(herd: &Herd, name: &str) {
    wait_for(&format!("work of {name}"), || (!lines(herd, name).is_empty()).then_some(()));
}

/// Starts two hosts, of which the first leads, and a job of an agent for any host on the second.
#[track_caller]
fn begin_on_beta(first: &Herd, second: &Herd, lease: &[&str]) -> (Life, Life, JobId) {
    let (mut alpha, _) = first.begin(&[&["--host", "alpha"][..], lease].concat());
    wait_for_leader(first, "alpha");
    let (beta, _) = second.begin(&[&["--host", "beta"][..], lease].concat());
    json_of(first, &["host", "drain", "alpha"]);
    let job = trigger(first, &mut alpha, "mover");
    wait_for_work(second, "mover");
    json_of(first, &["host", "drain", "alpha", "--undo"]);
    (alpha, beta, job)
}

fn runs(herd: &Herd, job: &JobId) -> Vec<RunRecord> {
    herd.reader().runs_of_job(job).unwrap()
}

/// Waits until the result of a run is listed as refused by its host.
#[track_caller]
fn wait_for_refusal(herd: &Herd, run: RunId) -> Json {
    wait_for("the refusal", || {
        let shown = json_of(herd, &["host", "show", "beta"]);
        let refused = shown["refused"].as_array().unwrap().clone();
        refused.into_iter().find(|refused| refused["run"] == run.to_string())
    })
}

/// Checks that a job went from beta to alpha, and that never two agents worked on it.
#[track_caller]
fn check_move(first: &Herd, second: &Herd, job: &JobId) {
    let ended = first.ends(job);
    assert_eq!(ended.head.status, JobStatus::Completed, "{ended:?}");
    let runs = runs(first, job);
    let hosts: Vec<&str> = runs.iter().map(|run| run.host.as_str()).collect();
    assert_eq!(hosts, ["beta", "alpha"]);
    assert_eq!(first.reader().run_term(runs[0].id).unwrap(), 1);
    assert_eq!((lines(first, "mover-ran").len(), lines(second, "mover-ran").len()), (1, 1));
    let (before, after) = (worked(second, "mover"), worked(first, "mover"));
    assert!(before.1 < after.0, "two agents worked at once: {before:?}, {after:?}");
    wait_for("the end of the runner", || second.runners().is_empty().then_some(()));
}

/// Checks that both hosts get the rows of both runs, once and in order. What only beta has of the first run is kept there
/// under another name.
#[track_caller]
fn check_rows(first: &Herd, second: &Herd, job: &JobId) {
    wait_for_copy(first, second, job);
    let said = r#""content":"Done.""#;
    assert_eq!(rows(first, job).matches(said).count(), 1, "{}", rows(first, job));
    let folder = second.dir().root().join("jobs").join(job.as_str());
    let mut aside = folder.read_dir_utf8().unwrap().flatten();
    let aside = aside.find(|entry| entry.file_name().starts_with("unshared-")).unwrap();
    let kept = std::fs::read_to_string(aside.path()).unwrap();
    assert!(kept.contains("had no contact with the database for"), "{kept}");
}

#[test]
fn an_agent_of_a_killed_daemon_ends_by_itself_and_its_job_continues_elsewhere() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster.url("fleet")), herd(&cluster.url("fleet")));
    let (mut alpha, mut beta, job) = begin_on_beta(&first, &second, &LEASE);
    // It may not continue elsewhere: its host is named, and it has no consent to start again.
    let ender = trigger(&first, &mut alpha, "ender");
    wait_for_work(&second, "ender");
    let_end(&first, "mover");
    beta.kill();
    check_move(&first, &second, &job);
    let ended = first.ends(&ender);
    assert_eq!(ended.head.status, JobStatus::Failed);
    let error = ended.error.unwrap();
    assert!(error.contains("gave no sign of life for longer than its lease"), "{error}");

    // The host returns. Its results are refused and listed, and it works again.
    let (beta, _) = second.begin(&LEASE);
    wait_for_refusal(&first, runs(&first, &job)[0].id);
    wait_for_refusal(&first, runs(&first, &ender)[0].id);
    check_rows(&first, &second, &job);
    assert_eq!(runs(&first, &job).len(), 2);
    let_end(&second, "ender");
    let ender = trigger(&first, &mut alpha, "ender");
    assert_eq!(first.ends(&ender).head.status, JobStatus::Completed);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn an_agent_of_a_paused_daemon_ends_by_itself_and_one_with_keep_works_on() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster.url("fleet")), herd(&cluster.url("fleet")));
    let (mut alpha, beta, job) = begin_on_beta(&first, &second, &LEASE);
    let kept = trigger(&first, &mut alpha, "keeper");
    wait_for_work(&second, "keeper");
    let_end(&first, "mover");
    let pid = Pid::from_child(&beta.child);
    assert!(signal_if(pid, Signal::STOP, || true));
    check_move_beside(&first, &second, &job);
    // Long after the end of the other one.
    let (_, ended_at) = worked(&first, "mover");
    wait_for("work of keeper", || (worked(&second, "keeper").1 > ended_at).then_some(()));
    assert_eq!(first.job(&kept).head.status, JobStatus::Running);
    signal_if(pid, Signal::CONT, || true);
    wait_for_refusal(&first, runs(&first, &job)[0].id);
    check_rows(&first, &second, &job);
    let_end(&second, "keeper");
    assert_eq!(first.ends(&kept).head.status, JobStatus::Completed);
    assert_eq!(runs(&first, &kept).len(), 1);
    wait_for_copy(&second, &first, &kept);
    stop(&second, beta);
    stop(&first, alpha);
}

/// Like `check_move`, while another run of beta works on.
#[track_caller]
fn check_move_beside(first: &Herd, second: &Herd, job: &JobId) {
    assert_eq!(first.ends(job).head.status, JobStatus::Completed);
    let (before, after) = (worked(second, "mover"), worked(first, "mover"));
    assert!(before.1 < after.0, "two agents worked at once: {before:?}, {after:?}");
    assert_eq!(runs(first, job).len(), 2);
}

#[test]
fn an_agent_of_a_host_that_is_cut_off_ends_and_its_late_result_is_refused() {
    let cluster = cluster();
    let relay = PostgresRelay::start(&cluster);
    let (first, second) = (herd(&cluster.url("fleet")), herd(&relay.url("fleet")));
    let (alpha, beta, job) = begin_on_beta(&first, &second, &LEASE);
    let_end(&first, "mover");
    // Connections stay open, and nothing arrives: the daemon waits for its answer.
    relay.set(NetworkState::Stalled);
    check_move(&first, &second, &job);
    relay.set(NetworkState::Connected);
    let run = runs(&first, &job)[0].id;
    let refused = wait_for_refusal(&first, run);
    assert!(refused["reason"].as_str().unwrap().contains("given"), "{refused}");
    // What the run itself has recorded on its host.
    let result = std::fs::read_to_string(second.dir().run(run).join("result.json")).unwrap();
    assert!(result.contains("had no contact with the database for"), "{result}");
    let result: Json = serde_json::from_str(&result).unwrap();
    assert_eq!(
        (&result["end"], &result["error"]["class"]),
        (&"interrupted".into(), &"interrupted".into())
    );
    check_rows(&first, &second, &job);
    assert_eq!(runs(&first, &job).len(), 2);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_restart_of_a_daemon_within_the_lease_ends_no_agent() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster.url("fleet")), herd(&cluster.url("fleet")));
    let (alpha, mut beta, job) = begin_on_beta(&first, &second, &LONG_LEASE);
    let file = second.dir().lease_file();
    let read = || std::fs::read(&file).unwrap();
    let renewed = |before: &[u8]| {
        let before = before.to_owned();
        wait_for("a renewal", || (read() != before).then_some(()));
    };
    renewed(&read());
    beta.kill();
    let left = read();
    // The next daemon has the key of the one before, and renews the lease of its runs.
    let (mut beta, _) = second.begin(&LONG_LEASE);
    renewed(&left);
    // Also after an orderly stop.
    stop(&second, beta);
    let left = read();
    (beta, _) = second.begin(&LONG_LEASE);
    renewed(&left);
    let_end(&second, "mover");
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    let runs = runs(&first, &job);
    assert_eq!((runs.len(), runs[0].host.as_str()), (1, "beta"));
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_leader_that_dies_is_given_up_by_its_successor() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster.url("fleet")), herd(&cluster.url("fleet")));
    let (mut alpha, _) = first.begin(&[&["--host", "alpha"][..], &LEASE[..]].concat());
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&[&["--host", "beta"][..], &LEASE[..]].concat());
    json_of(&first, &["host", "drain", "beta"]);
    let job = trigger(&first, &mut alpha, "mover");
    wait_for_work(&first, "mover");
    json_of(&first, &["host", "drain", "beta", "--undo"]);
    let_end(&second, "mover");
    alpha.kill();
    wait_for_leader(&second, "beta");
    assert_eq!(second.ends(&job).head.status, JobStatus::Completed);
    let (before, after) = (worked(&first, "mover"), worked(&second, "mover"));
    assert!(before.1 < after.0, "two agents worked at once: {before:?}, {after:?}");
    stop(&second, beta);
}

#[test]
fn without_several_hosts_the_key_has_no_effect() {
    let cluster: PostgresCluster = cluster();
    let herd = Herd::of(&format!(
        "store: {}\nweb: {{enabled: false}}\nagents:
  - {{name: ender, on_partition: stop, runtime: scripted, script: [{{say: Done.}}]}}\n",
        cluster.url("fleet")
    ));
    let (mut life, _) = herd.begin(&[]);
    let job = trigger(&herd, &mut life, "ender");
    assert_eq!(herd.ends(&job).head.status, JobStatus::Completed);
    assert!(!herd.dir().lease_file().exists());
    stop(&herd, life);
}
