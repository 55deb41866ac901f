//! The choice of a host: by labels, limits, drained hosts and the place of a session.
//!
//! Either host may lead at any time, because a slow machine can pause the leader. So no test depends on
//! the host that leads.

use std::collections::HashSet;

use heeler_model::{JobId, JobStatus};
use heeler_testkit::PostgresCluster;
use serde_json::Value as Json;

use crate::daemon_kills::Herd;
use crate::host_runs::{stop, trigger, wait_for_runs};
use crate::hosts::{cluster, ran};
use crate::trigger::wait_for;

/// Agents by labels: one that waits at its gate, short ones, one with a session, and one without `host`.
const AGENTS: &str = "agents:
  - {name: gated, host: {labels: [gpu]}, runtime: scripted, instances: {max_concurrent: 3},
     script: [{run: 'echo $HEELER_RUN >> ran; read line < gate'}, {say: Through the gate.}]}
  - {name: brief, host: {labels: []}, runtime: scripted, instances: {max_concurrent: 3},
     script: [{run: 'echo $HEELER_RUN >> ran'}, {say: Done there.}]}
  - {name: odd, host: {labels: [tpu]}, runtime: scripted,
     script: [{run: 'echo $HEELER_RUN >> ran'}, {say: Done there.}]}
  - {name: talker, host: {labels: []}, runtime: scripted, session: {mode: persistent},
     script: [{say: Hello.}]}
  - {name: plain, runtime: scripted, script: [{say: Done here.}]}
";

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

/// Runs a command until it succeeds: a host may change its role just then.
#[track_caller]
pub(crate) fn json(herd: &Herd, args: &[&str]) -> Json {
    wait_for(&format!("{args:?}"), || {
        let output = herd.command(args[0]).args(&args[1..]).arg("--json").output().unwrap();
        let is_done = output.status.success();
        is_done.then(|| serde_json::from_slice(&output.stdout).unwrap())
    })
}

/// Waits until `jobs why` of a job says this.
#[track_caller]
pub(crate) fn wait_for_reason(herd: &Herd, job: &JobId, expected: &str) {
    wait_for(&format!("the reason: {expected}"), || {
        let shown = json(herd, &["jobs", "why", job.as_str()]);
        shown["reason"].as_str().unwrap().contains(expected).then_some(())
    });
}

/// Returns the host of a job's last run, and the reason for it.
#[track_caller]
fn place(herd: &Herd, job: &JobId) -> (String, String) {
    let shown = json(herd, &["jobs", "why", job.as_str()]);
    let text = |key: &str| shown[key].as_str().unwrap_or_default().to_owned();
    (text("host"), text("placement"))
}

#[track_caller]
pub(crate) fn completes_on(herd: &Herd, job: &JobId, host: &str) -> String {
    assert_eq!(herd.ends(job).head.status, JobStatus::Completed);
    let (on, reason) = place(herd, job);
    assert_eq!(on, host, "{reason}");
    reason
}

#[test]
fn jobs_go_to_hosts_with_their_labels_that_have_room_and_are_not_drained() {
    let cluster = cluster();
    let (first, mut second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha", "--label", "os=linux"]);
    let limits = ["--label", "gpu", "--label", "os=linux", "--max-concurrent", "1"];
    let (beta, _) = second.begin(&[&["--host", "beta"][..], &limits[..]].concat());
    let shown = json(&first, &["host", "show", "beta"]);
    assert_eq!(shown["host"]["labels"], serde_json::json!(["gpu", "os=linux"]), "{shown}");
    assert_eq!(shown["host"]["maxConcurrent"], 1, "{shown}");

    // The only host with the label, up to its limit.
    let one = trigger(&first, &mut alpha, "gated");
    wait_for_runs(&second, 1);
    let (host, reason) = place(&first, &one);
    assert_eq!(host, "beta", "{reason}");
    assert_eq!(reason, "it is the only host with gpu that has room");
    wait_for("the host in the status", || {
        let output = first.command("status").output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("running on beta").then_some(())
    });
    let two = trigger(&first, &mut alpha, "gated");
    wait_for_reason(&first, &two, "`beta` has reached its limit of 1 concurrent runs");
    let brief = trigger(&first, &mut alpha, "brief");
    completes_on(&first, &brief, "alpha");
    assert_eq!(ran(&first).len(), 1);
    let odd = trigger(&first, &mut alpha, "odd");
    wait_for_reason(&first, &odd, "none is on record: heeler start --label tpu");
    second.let_through(2);
    completes_on(&first, &one, "beta");
    completes_on(&first, &two, "beta");
    assert_eq!(ran(&second).len(), 2, "each was started once");

    // A drained host gets nothing new.
    json(&first, &["host", "drain", "beta"]);
    let shown = json(&first, &["host", "show", "beta"]);
    assert!(shown["host"]["drainedBy"].is_string(), "{shown}");
    let gated = trigger(&first, &mut alpha, "gated");
    wait_for_reason(&first, &gated, "`beta` is drained");
    // Nor does the host that leads.
    json(&first, &["host", "drain", "alpha"]);
    let plain = trigger(&first, &mut alpha, "plain");
    wait_for_reason(&first, &plain, "is drained");
    json(&first, &["host", "drain", "beta", "--undo"]);
    second.let_through(1);
    completes_on(&first, &gated, "beta");

    // A session stays where its files are, although the other host comes first.
    let talk = trigger(&first, &mut alpha, "talker");
    completes_on(&first, &talk, "beta");
    json(&first, &["host", "drain", "alpha", "--undo"]);
    assert_eq!(first.ends(&plain).head.status, JobStatus::Completed);
    let again = trigger(&first, &mut alpha, "talker");
    assert_eq!(completes_on(&first, &again, "beta"), "the files of its session are on `beta`");
    let session = |job: &JobId| first.job(job).head.session_id.unwrap();
    assert_eq!(session(&talk), session(&again));
    // Of a drained host it is left behind.
    json(&first, &["host", "drain", "beta"]);
    let other = trigger(&first, &mut alpha, "talker");
    completes_on(&first, &other, "alpha");
    assert_ne!(session(&talk), session(&other));

    // Lists show the hosts, and find jobs by them.
    let listed = json(&second, &["jobs", "--host", "beta"]);
    let jobs = listed["jobs"].as_array().unwrap();
    let ids: HashSet<&str> = jobs.iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [&one, &two, &gated, &talk, &again].map(JobId::as_str).into());
    assert_eq!(listed["total"], 5, "{listed}");
    assert!(jobs.iter().all(|job| job["host"] == "beta"), "{listed}");
    let listed = json(&first, &["jobs", "--host", "beta", "--agent", "talker"]);
    assert_eq!(listed["total"], 2, "{listed}");
    let output = first.command("jobs").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let heading = text.lines().next().unwrap();
    assert!(heading.contains("HOST") && text.contains("beta"), "{text}");
    let output = first.command("jobs").args(["--host", "gamma"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(4) && text.contains("no host `gamma`"), "{text}");
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_host_killed_at_any_point_starts_its_own_labelled_job_once() {
    let cluster = cluster();
    let first = herd(&cluster);
    let mut label = "none".to_owned();
    for (round, point) in ["before-claim", "run-claimed"].into_iter().enumerate() {
        let (mut alpha, _) = first.begin(&["--host", "alpha", "--label", &label]);
        let job = trigger(&first, &mut alpha, "odd");
        wait_for_reason(&first, &job, "none is on record");
        alpha.kill();
        let mut alpha = first.start(&["--label", "tpu", "--fault", point]);
        wait_for(&format!("a death at {point}"), || alpha.has_ended().then_some(()));
        let (alpha, _) = first.begin(&[]);
        completes_on(&first, &job, "alpha");
        assert_eq!(ran(&first).len(), round + 1, "{point}: the job was started once");
        stop(&first, alpha);
        label = "gpu".to_owned();
    }
}
