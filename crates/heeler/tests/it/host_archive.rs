//! The archive of files: hosts that join after the parts were removed have all rows and files.

use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::{JobId, JobRequest, JobStatus};
use heeler_store::HostLink;
use heeler_testkit::{FakeS3, PostgresCluster, S3Failure};
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::wanted;
use crate::host_files::sent;
use crate::host_runs::{rows, send, stop, wait_for_copy};
use crate::hosts::{cluster, json_of, wait_for_leader};
use crate::trigger::wait_for;

/// An agent on the second host with rows, text, sent files and standard error.
const AGENTS: &str = "agents:
  - name: sender
    host: beta
    runtime: scripted
    script:
      - {say: A row of an old job.}
      - {write: report.md, text: all is well}
      - {run: 'head -c 1100000 /dev/urandom > data.bin; touch empty.txt'}
      - {call: mcp__heeler-files__send_file, input: {file_path: report.md}}
      - {call: mcp__heeler-files__send_file, input: {file_path: data.bin}}
      - {call: mcp__heeler-files__send_file, input: {file_path: empty.txt}}
      - {stderr: the disk of the agent smells of smoke}
      - {exit: 7}
";

fn herd(cluster: &PostgresCluster) -> Herd {
    herd_with(cluster, "{to: database, after: 1s}")
}

fn herd_with(cluster: &PostgresCluster, archive: &str) -> Herd {
    let store = cluster.url("fleet");
    Herd::of(&format!("store: {store}\narchive: {archive}\nweb: {{enabled: false}}\n{AGENTS}"))
}

/// Secret access key of the object store. It needs to be encoded in addresses.
const SECRET_KEY: &str = "s3cr3t/access+key";

fn object_store() -> FakeS3 {
    FakeS3::start("heeler-files", "eu-central-1", "AKTEST", SECRET_KEY)
}

fn s3_herd(cluster: &PostgresCluster, objects: &FakeS3) -> Herd {
    let archive = format!(
        "{{to: 's3://heeler-files/fleet', after: 1s, endpoint: '{}', region: eu-central-1, \
         access_key_env: S3_ID, secret_key_env: S3_CODE}}",
        objects.url()
    );
    let mut herd = herd_with(cluster, &archive);
    for (name, value) in [("S3_ID", "AKTEST"), ("S3_CODE", SECRET_KEY)] {
        herd.env.push((name, value.to_owned()));
    }
    herd
}

#[track_caller]
fn run_job(herd: &Herd, life: &mut Life, key: &str) -> JobId {
    let request = JobRequest { output_file: true, ..wanted("sender") };
    let command = DaemonCommand::Trigger(Box::new(request));
    let job = match send(herd, life, &command, Some(key)) {
        CommandReply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    };
    assert_eq!(herd.ends(&job).head.status, JobStatus::Failed);
    job
}

fn count(cluster: &PostgresCluster, of: &str) -> usize {
    cluster.query("fleet", &format!("SELECT COUNT(*) FROM {of}")).trim().parse().unwrap()
}

#[track_caller]
fn wait_for_archive(cluster: &PostgresCluster) {
    wait_for("the archive", || {
        let left = count(cluster, "shared_files WHERE archived IS NULL OR archived < length");
        let open = count(cluster, "unshipped_runs");
        let files = count(cluster, "archived_files");
        (left == 0 && open == 0 && files > 0).then_some(())
    });
}

/// Lets the database remove all parts, as it does each minute.
#[track_caller]
fn remove_parts(cluster: &PostgresCluster, herd: &Herd) {
    let link = HostLink::connect(&herd.dir()).unwrap();
    wait_for("the removal of the parts", || {
        link.remove_read_parts().unwrap();
        (count(cluster, "file_parts") == 0).then_some(())
    });
}

/// Waits until a host has all files of a job that another one has.
#[track_caller]
fn wait_for_files(one: &Herd, other: &Herd, job: &JobId) {
    wait_for_copy(one, other, job);
    let own = sent(one, job);
    let names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["data.bin", "empty.txt", "report.md"]);
    wait_for("the sent files", || (sent(other, job) == own).then_some(()));
    let text = |herd: &Herd| std::fs::read(herd.dir().job_output(job)).unwrap_or_default();
    wait_for("the text", || (text(one) == text(other)).then_some(()));
    let run = one.reader().runs_of_job(job).unwrap()[0].id;
    let copy = other.dir().stderr_copy(job, run);
    wait_for("standard error", || {
        let text = std::fs::read_to_string(&copy).unwrap_or_default();
        text.contains("smells of smoke").then_some(())
    });
}

fn faults(herd: &Herd, host: &str) -> Vec<Json> {
    json_of(herd, &["host", "show", host])["archiveFaults"].as_array().unwrap().clone()
}

#[test]
fn a_host_that_joins_after_the_parts_were_removed_has_all_rows_and_files_of_old_jobs() {
    let cluster = cluster();
    let (first, second, third) = (herd(&cluster), herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = run_job(&first, &mut alpha, "joins");
    wait_for_archive(&cluster);
    remove_parts(&cluster, &first);
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    wait_for_files(&second, &third, &job);
    assert!(rows(&third, &job).contains("A row of an old job."));
    let shown = json_of(&third, &["jobs", "show", job.as_str()]);
    assert_eq!(shown["job"]["files"].as_array().unwrap().len(), 3, "{shown:#}");
    for name in ["alpha", "beta", "gamma"] {
        assert_eq!(faults(&first, name), Vec::<Json>::new());
    }
    // The host of the run has no second copy of its standard error.
    let run = second.reader().runs_of_job(&job).unwrap()[0].id;
    assert!(!second.dir().stderr_copy(&job, run).exists());
    stop(&third, gamma);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_host_that_was_away_for_long_and_one_that_lacks_a_beginning_have_all_files() {
    let cluster = cluster();
    let (first, second, third) = (herd(&cluster), herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    stop(&third, gamma);
    let away = run_job(&first, &mut alpha, "away");
    wait_for_archive(&cluster);
    let link = HostLink::connect(&first.dir()).unwrap();
    link.remove_read_parts().unwrap();
    assert!(count(&cluster, "file_parts") > 0, "gamma has not read them");
    cluster.query("fleet", "UPDATE file_parts SET created_at = now() - interval '31 days'");
    remove_parts(&cluster, &first);
    let later = run_job(&first, &mut alpha, "later");
    wait_for_archive(&cluster);
    // Of one file, only the later parts are left.
    let path = "path LIKE '%data.bin'";
    cluster.query("fleet", &format!("DELETE FROM file_parts WHERE start = 0 AND {path}"));
    assert!(count(&cluster, &format!("file_parts WHERE {path}")) > 0);
    let (gamma, _) = third.begin(&[]);
    for job in [&away, &later] {
        wait_for_files(&second, &third, job);
    }
    assert_eq!(faults(&first, "gamma"), Vec::<Json>::new());
    stop(&third, gamma);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_host_killed_while_it_archives_archives_each_file_once() {
    let cluster = cluster();
    let (first, second, third) = (herd(&cluster), herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let points = ["archive-chunk-stored:2", "archive-stored", "archive-recorded"];
    let mut jobs = Vec::new();
    for point in points {
        let mut beta = second.start(&["--host", "beta", "--fault", point]);
        // It may die before the end of its job: a file of an earlier one may be left.
        let request = JobRequest { output_file: true, ..wanted("sender") };
        let command = DaemonCommand::Trigger(Box::new(request));
        let CommandReply::Job { job, .. } = send(&first, &mut alpha, &command, Some(point)) else {
            panic!("no job");
        };
        wait_for(&format!("a death at {point}"), || beta.has_ended().then_some(()));
        let (beta, _) = second.begin(&[]);
        assert_eq!(first.ends(&job).head.status, JobStatus::Failed, "{point}");
        wait_for_archive(&cluster);
        stop(&second, beta);
        jobs.push(job);
    }
    let chunks = "SELECT COUNT(*) FROM archive_chunks WHERE NOT EXISTS (SELECT 1 FROM archived_files \
        AS known WHERE known.path = archive_chunks.path AND known.length = archive_chunks.length \
        AND known.host = archive_chunks.host AND archive_chunks.number < known.chunks)";
    assert_eq!(cluster.query("fleet", chunks).trim(), "0", "nothing is left over");
    let (beta, _) = second.begin(&[]);
    remove_parts(&cluster, &first);
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    for job in &jobs {
        wait_for_files(&second, &third, job);
    }
    stop(&third, gamma);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_host_killed_while_it_takes_files_from_the_archive_has_each_row_once() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = run_job(&first, &mut alpha, "takes");
    wait_for_archive(&cluster);
    remove_parts(&cluster, &first);
    for (point, name) in [("archive-fetched:2", "gamma"), ("archive-copied:2", "delta")] {
        let third = herd(&cluster);
        let mut gamma = third.start(&["--host", name, "--fault", point]);
        wait_for(&format!("a death at {point}"), || gamma.has_ended().then_some(()));
        let (gamma, _) = third.begin(&[]);
        wait_for_files(&second, &third, &job);
        assert_eq!(rows(&third, &job).matches("A row of an old job.").count(), 1);
        stop(&third, gamma);
    }
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn damaged_and_hostile_files_of_the_archive_are_refused_and_told() {
    let cluster = cluster();
    let (first, second, third) = (herd(&cluster), herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = run_job(&first, &mut alpha, "damaged");
    wait_for_archive(&cluster);
    remove_parts(&cluster, &first);
    let damaged = format!("jobs/{job}.jsonl");
    cluster.query(
        "fleet",
        &format!(
            "UPDATE archive_chunks SET bytes = set_byte(bytes, octet_length(bytes) / 2, \
             get_byte(bytes, octet_length(bytes) / 2) # 255) WHERE path = '{damaged}'"
        ),
    );
    for (number, path, length) in [
        (1 << 40, "../escaped.jsonl", "5"),
        ((1 << 40) + 1, "jobs/../../escaped.jsonl", "5"),
        ((1 << 40) + 2, "jobs/job-2024-01-19-abc123.jsonl", "9223372036854775807"),
        ((1_u64 << 40) + 3, "jobs/job-2024-01-19-abc124.jsonl", "-1"),
    ] {
        cluster.query(
            "fleet",
            &format!(
                "INSERT INTO archived_files VALUES \
                 ('{path}', {number}, {length}, repeat('0', 64), 'beta', 1, now())"
            ),
        );
    }
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    let told = wait_for("all faults", || {
        let told = faults(&first, "gamma");
        (told.len() == 5).then_some(told)
    });
    let reason = |path: &str| {
        let fault = told.iter().find(|fault| fault["path"] == path);
        fault.unwrap()["reason"].as_str().unwrap().to_owned()
    };
    assert!(reason(&damaged).contains("content"), "{told:#?}");
    assert!(reason("../escaped.jsonl").contains("hosts share no file at this path"));
    assert!(reason("jobs/job-2024-01-19-abc123.jsonl").contains("by its record"));
    // The other files of the job are not held up.
    wait_for("the sent files", || (sent(&third, &job) == sent(&second, &job)).then_some(()));
    assert!(rows(&third, &job).is_empty());
    let doctor = third.command("doctor").output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("the file archive has a fault at"), "{text}");
    let log = third.errors();
    assert!(log.matches(&damaged).count() <= 1, "{log}");
    stop(&third, gamma);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn files_in_an_object_store_reach_a_host_that_joins_later_and_no_secret_is_on_record() {
    let (cluster, objects) = (cluster(), object_store());
    let [first, second, third] = [(); 3].map(|()| s3_herd(&cluster, &objects));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    // The store is away for a while.
    for failure in [S3Failure::Status(500), S3Failure::Drop, S3Failure::Status(403)] {
        objects.fail_next(failure);
    }
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = run_job(&first, &mut alpha, "objects");
    wait_for_archive(&cluster);
    assert_eq!(count(&cluster, "archive_chunks"), 0);
    let files = count(&cluster, "archived_files");
    assert_eq!(objects.keys().len(), files);
    assert!(objects.keys().iter().all(|key| key.starts_with("fleet/")), "{:?}", objects.keys());
    remove_parts(&cluster, &first);
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    wait_for_files(&second, &third, &job);
    for name in ["alpha", "beta", "gamma"] {
        assert_eq!(faults(&first, name), Vec::<Json>::new(), "{name}");
    }
    let dump = ["archived_files", "archive_policy", "archive_faults", "meta"].map(|table| {
        cluster.query("fleet", &format!("SELECT string_agg(t::text, ' ') FROM {table} AS t"))
    });
    assert!(!dump.concat().contains(SECRET_KEY));
    stop(&third, gamma);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_host_killed_around_its_uploads_stores_each_object_once() {
    let (cluster, objects) = (cluster(), object_store());
    let [first, second, third] = [(); 3].map(|()| s3_herd(&cluster, &objects));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let mut beta = second.start(&["--host", "beta", "--fault", "archive-chunk-stored:2"]);
    let request = JobRequest { output_file: true, ..wanted("sender") };
    let command = DaemonCommand::Trigger(Box::new(request));
    let CommandReply::Job { job, .. } = send(&first, &mut alpha, &command, Some("kill")) else {
        panic!("no job");
    };
    wait_for("a death after an upload", || beta.has_ended().then_some(()));
    let (beta, _) = second.begin(&[]);
    wait_for_archive(&cluster);
    assert_eq!(objects.keys().len(), count(&cluster, "archived_files"), "{:?}", objects.keys());
    assert!(objects.puts() > objects.keys().len(), "one was stored again");
    remove_parts(&cluster, &first);
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    wait_for_files(&second, &third, &job);
    stop(&third, gamma);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_damaged_object_and_a_store_without_access_are_told_once_and_hold_up_nothing_else() {
    let (cluster, objects) = (cluster(), object_store());
    let [first, second, third] = [(); 3].map(|()| s3_herd(&cluster, &objects));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = run_job(&first, &mut alpha, "damaged-object");
    wait_for_archive(&cluster);
    remove_parts(&cluster, &first);
    objects.damage(&format!("jobs/{job}.jsonl"));
    let (gamma, _) = third.begin(&["--host", "gamma"]);
    let told = wait_for("the fault", || {
        let told = faults(&first, "gamma");
        (!told.is_empty()).then_some(told)
    });
    assert_eq!(told[0]["path"], format!("jobs/{job}.jsonl"), "{told:#?}");
    wait_for("the sent files", || (sent(&third, &job) == sent(&second, &job)).then_some(()));
    assert!(rows(&third, &job).is_empty());
    stop(&third, gamma);
    // Without credentials.
    let mut fourth = s3_herd(&cluster, &objects);
    fourth.env.retain(|(name, _)| *name != "S3_CODE");
    let (delta, _) = fourth.begin(&["--host", "delta"]);
    let told = wait_for("the fault", || {
        let told = faults(&first, "delta");
        (!told.is_empty()).then_some(told)
    });
    assert_eq!(told[0]["reason"], "S3_CODE is not set", "{told:#?}");
    let doctor = |herd: &Herd| {
        let output = herd.command("doctor").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = doctor(&fourth);
    assert!(text.contains("the file archive cannot be used: S3_CODE is not set"), "{text}");
    let text = doctor(&second);
    assert!(!text.contains("cannot be used"), "{text}");
    assert!(objects.keys().contains(&"fleet/heeler-doctor".to_owned()));
    objects.fail_next(S3Failure::Status(403));
    let text = doctor(&second);
    assert!(text.contains("answered 403 Injected"), "{text}");
    stop(&fourth, delta);
    stop(&second, beta);
    stop(&first, alpha);
}
