//! Files of runs on other hosts: every host has copies, also after kills.

use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::{JobId, JobRequest, JobStatus};
use heeler_testkit::PostgresCluster;

use crate::daemon_kills::Herd;
use crate::daemon_lives::wanted;
use crate::host_runs::{rows, send, stop, trigger, wait_for_copy};
use crate::hosts::{cluster, json_of, wait_for_leader};
use crate::trigger::wait_for;

/// An agent on the second host that sends files, complains and fails, and one that fails on the host that
/// leads.
const AGENTS: &str = "agents:
  - name: sender
    host: beta
    runtime: scripted
    script:
      - {write: report.md, text: all is well}
      - {run: 'head -c 700000 /dev/urandom > data.bin; touch empty.txt'}
      - {call: mcp__heeler-files__send_file, input: {file_path: report.md}}
      - {call: mcp__heeler-files__send_file, input: {file_path: data.bin}}
      - {call: mcp__heeler-files__send_file, input: {file_path: empty.txt}}
      - {stderr: the disk of the agent smells of smoke}
      - {exit: 7}
  - {name: once, runtime: scripted,
     script: [{say: An attempt.}, {error: overloaded, message: Too much.}]}
";

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

/// Returns the names and contents of the files that a job's agent sent, as a host has them.
pub(crate) fn sent(herd: &Herd, job: &JobId) -> Vec<(String, Vec<u8>)> {
    let files = herd.dir().sent_files(job).into_iter();
    let mut sent: Vec<_> =
        files.map(|file| (file.name, std::fs::read(&file.path).unwrap())).collect();
    sent.sort();
    sent
}

#[test]
fn text_output_standard_error_and_sent_files_are_on_every_host() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let (beta, _) = second.begin(&["--host", "beta"]);
    let request = JobRequest { output_file: true, ..wanted("sender") };
    let command = DaemonCommand::Trigger(Box::new(request));
    let job = match send(&first, &mut alpha, &command, Some("sender-1")) {
        CommandReply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    };
    assert_eq!(first.ends(&job).head.status, JobStatus::Failed);
    let own = sent(&second, &job);
    let names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["data.bin", "empty.txt", "report.md"]);
    assert_eq!(own[0].1.len(), 700_000);
    wait_for("the sent files", || (sent(&first, &job) == own).then_some(()));
    let text = |herd: &Herd| std::fs::read_to_string(herd.dir().job_output(&job)).unwrap();
    wait_for("the text", || {
        let is_there = first.dir().job_output(&job).exists();
        (is_there && text(&first) == text(&second)).then_some(())
    });
    // The files came before the result of the run.
    let shown = json_of(&first, &["jobs", "show", job.as_str()]);
    assert_eq!(shown["job"]["files"].as_array().unwrap().len(), 3, "{shown:#}");
    assert!(shown["job"]["textFile"].is_string(), "{shown:#}");
    let run = first.reader().runs_of_job(&job).unwrap()[0].id;
    let copy = first.dir().stderr_copy(&job, run);
    assert!(std::fs::read_to_string(&copy).unwrap().contains("smells of smoke"));
    stop(&second, beta);
    stop(&first, alpha);
}

/// Most deaths of a leader until one hits a run whose result is on record.
const DEATHS_MAX: usize = 8;

#[test]
fn a_new_daemon_ships_a_run_that_the_daemon_before_left() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let mut deaths = 0;
    // Usually the result of such a short run is on record before its files are looked at.
    loop {
        let mut alpha = first.start(&["--host", "alpha", "--fault", "before-shipping"]);
        drop(first.connect(&mut alpha));
        wait_for_leader(&first, "alpha");
        let (mut beta, _) = second.begin(&["--host", "beta"]);
        let job = trigger(&second, &mut beta, "once");
        wait_for("a death before shipping", || alpha.has_ended().then_some(()));
        let runs = first.reader().runs_of_job(&job).unwrap();
        let is_committed = runs.last().is_some_and(|run| run.committed);
        let (alpha, _) = first.begin(&[]);
        assert_eq!(second.ends(&job).head.status, JobStatus::Failed);
        wait_for_copy(&first, &second, &job);
        assert_eq!(rows(&second, &job).matches("An attempt.").count(), 1);
        stop(&second, beta);
        stop(&first, alpha);
        deaths += 1;
        if is_committed {
            break;
        }
        assert!(deaths < DEATHS_MAX, "no run had its result on record");
    }
}

#[test]
fn a_host_killed_while_it_ships_ships_each_file_once() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    for point in ["before-shipping", "part-shipped:3", "files-shipped"] {
        let mut beta = second.start(&["--host", "beta", "--fault", point]);
        let job = trigger(&first, &mut alpha, "sender");
        wait_for(&format!("a death at {point}"), || beta.has_ended().then_some(()));
        let (beta, _) = second.begin(&[]);
        assert_eq!(first.ends(&job).head.status, JobStatus::Failed, "{point}");
        wait_for_copy(&second, &first, &job);
        wait_for("the sent files", || {
            let own = sent(&second, &job);
            (own.len() == 3 && sent(&first, &job) == own).then_some(())
        });
        stop(&second, beta);
    }
    stop(&first, alpha);
}
