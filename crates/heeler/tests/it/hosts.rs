//! A fleet on several hosts: state directories that share a PostgreSQL and nothing else.

use heeler_engine::{CommandReply, DaemonCommand, DaemonStatus, StopMode};
use heeler_model::{JobId, JobStatus};
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_testkit::{PostgresCluster, ProofSettings};
use rustix::process::{Pid, Signal};
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::{ask, wanted};
use crate::processes::signal_if;
use crate::trigger::wait_for;

/// An agent that waits at the gate of its host, and a short one. Each run leaves a line on its host. Runs of a
/// paused host count for the limit, so it has room for all of them.
const AGENTS: &str = "agents:
  - {name: worker, runtime: scripted,
     script: [{run: 'echo $HEELER_RUN >> ran; read line < gate'}, {say: Through the gate.}]}
  - {name: short, runtime: scripted, instances: {max_concurrent: 20},
     script: [{run: 'echo $HEELER_RUN >> ran'}, {say: Done.}]}
";

/// Rounds with a paused leader.
const PAUSE_ROUNDS_IN_CI: u64 = 2;

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

pub(crate) fn cluster() -> PostgresCluster {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    cluster
}

#[track_caller]
fn status(client: &mut DaemonClient) -> DaemonStatus {
    match client.send_command(&DaemonCommand::Status, None).unwrap() {
        CommandReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Runs a command that must succeed; returns its JSON.
#[track_caller]
pub(crate) fn json_of(herd: &Herd, args: &[&str]) -> Json {
    let output = herd.command(args[0]).args(&args[1..]).arg("--json").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stdout)))
}

/// Runs a command that must fail; returns its exit code and message.
#[track_caller]
pub(crate) fn failure_of(herd: &Herd, args: &[&str]) -> (i32, String) {
    let output = herd.command(args[0]).args(&args[1..]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap_or_else(|| panic!("{args:?}: {text}")), text)
}

/// Returns the host that leads, as another one sees it.
pub(crate) fn leader(herd: &Herd) -> Option<String> {
    let hosts = herd.reader().hosts().unwrap();
    hosts.into_iter().find(|host| host.is_leader && host.is_alive).map(|host| host.name)
}

#[track_caller]
pub(crate) fn wait_for_leader(herd: &Herd, name: &str) {
    wait_for(&format!("{name} leads"), || (leader(herd).as_deref() == Some(name)).then_some(()));
}

#[track_caller]
fn stop(client: &mut DaemonClient, mut life: Life) {
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    assert!(life.child.wait().unwrap().success());
}

/// Lists the runs that were started on a host.
pub(crate) fn ran(herd: &Herd) -> Vec<String> {
    let text = std::fs::read_to_string(herd.fleet.file("ran")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Sends a command, to the daemon that runs by now if the one before has ended.
#[track_caller]
fn send(herd: &Herd, life: &mut Life, agent: &str) -> JobId {
    wait_for("a daemon that answers", || {
        let mut client = herd.connect(life)?;
        let command = DaemonCommand::Trigger(Box::new(wanted(agent)));
        match client.send_command(&command, None) {
            Ok(CommandReply::Job { job, .. }) => Some(job),
            Ok(other) => panic!("{other:?}"),
            // The host changes its role just now.
            Err(_) => None,
        }
    })
}

/// Most statements per second of an idle host. Signs of life are one each, and there is nothing else to do.
const IDLE_STATEMENTS_MAX: f64 = 2.0;

/// Starts a server that counts the statements of each user, with a user for each of these hosts.
fn counting_cluster(hosts: &[&str]) -> PostgresCluster {
    let mut cluster = PostgresCluster::start();
    cluster.query("postgres", "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
    cluster.kill();
    cluster.start_server();
    cluster.create_database("fleet");
    cluster.query("postgres", "CREATE EXTENSION pg_stat_statements");
    for host in hosts {
        cluster.query("postgres", &format!("CREATE ROLE {host} SUPERUSER LOGIN"));
    }
    cluster
}

#[test]
fn idle_hosts_send_few_statements() {
    let names = ["alpha", "beta"];
    let cluster = counting_cluster(&names);
    let [first, second] = names.map(|name| {
        let url = cluster.url("fleet").replacen("heeler@", &format!("{name}@"), 1);
        Herd::of(&format!("store: {url}\nweb: {{enabled: false}}\n{AGENTS}"))
    });
    let (alpha, _) = first.begin(&["--host", "alpha"]);
    let (beta, _) = second.begin(&["--host", "beta"]);
    let number = |sql: &str| -> f64 { cluster.query("postgres", sql).trim().parse().unwrap() };
    let time = || number("SELECT EXTRACT(EPOCH FROM clock_timestamp())");
    // A change of the leader takes many statements, so one quiet period is enough.
    wait_for("a quiet period", || {
        let begun = time();
        cluster.query("postgres", "SELECT pg_stat_statements_reset()");
        cluster.query("postgres", "SELECT pg_sleep(20)");
        let rates = names.map(|name| {
            let sql = format!(
                "SELECT COALESCE(SUM(calls), 0) FROM pg_stat_statements JOIN pg_roles \
                 ON pg_roles.oid = userid WHERE rolname = '{name}'"
            );
            number(&sql) / (time() - begun)
        });
        let most = "SELECT rolname, calls, left(query, 160) FROM pg_stat_statements \
            JOIN pg_roles ON pg_roles.oid = userid WHERE rolname <> 'heeler' \
            ORDER BY calls DESC LIMIT 12";
        eprintln!("{rates:.2?} statements per second:\n{}", cluster.query("postgres", most));
        rates.iter().all(|rate| *rate > 0.0 && *rate <= IDLE_STATEMENTS_MAX).then_some(())
    });
    crate::host_runs::stop(&second, beta);
    crate::host_runs::stop(&first, alpha);
}

#[test]
fn a_standby_takes_over_and_no_job_is_lost_or_started_twice() {
    let cluster = cluster();
    let (mut first, mut second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let (mut beta, mut client) = second.begin(&["--host", "beta"]);
    wait_for_leader(&second, "alpha");
    let listed = json_of(&second, &["host", "list"]);
    let roles: Vec<_> = ["name", "state"].map(|key| listed["hosts"][1][key].clone()).into();
    assert_eq!(roles, ["beta", "standby"], "{listed}");

    // Commands to the standby are executed by the leader.
    let short = ask(&mut client, wanted("short"));
    assert_eq!(second.ends(&short).head.status, JobStatus::Completed);
    assert_eq!(second.reader().runs_of_job(&short).unwrap()[0].host, "alpha");
    let listed = json_of(&second, &["jobs"]);
    assert!(listed.to_string().contains(short.as_str()), "{listed}");
    let job = ask(&mut client, wanted("worker"));
    wait_for("the run", || (!first.runners().is_empty()).then_some(()));
    wait_for("its start", || (ran(&first).len() == 2).then_some(()));
    let queued = ask(&mut client, wanted("worker"));
    let shown = status(&mut client);
    assert_eq!((shown.running.len(), shown.queue.len()), (1, 1), "{shown:?}");

    // The leader dies. Its run continues, counts as running, and keeps the agent's only place.
    alpha.kill();
    wait_for_leader(&second, "beta");
    let third = send(&second, &mut beta, "short");
    assert_eq!(second.ends(&third).head.status, JobStatus::Completed);
    assert_eq!(second.reader().runs_of_job(&third).unwrap()[0].host, "beta");
    let mut client = second.connect(&mut beta).unwrap();
    assert_eq!(second.job(&job).head.status, JobStatus::Running);
    assert_eq!(status(&mut client).running.len(), 1);
    assert_eq!(status(&mut client).queue.len(), 1);
    wait_for("alpha is away, and its run keeps it", || {
        let (code, text) = failure_of(&second, &["host", "remove", "alpha"]);
        assert_eq!(code, 5, "{text}");
        text.contains("1 runs of host `alpha`").then_some(())
    });

    // Its host returns as a standby and reports the end of the run.
    let (alpha, mut old_client) = first.begin(&[]);
    first.let_through(1);
    assert_eq!(second.ends(&job).head.status, JobStatus::Completed);
    second.let_through(1);
    assert_eq!(second.ends(&queued).head.status, JobStatus::Completed);
    let hosts = |job: &JobId| {
        let runs = second.reader().runs_of_job(job).unwrap();
        runs.into_iter().map(|run| run.host).collect::<Vec<_>>()
    };
    assert_eq!((hosts(&job), hosts(&queued)), (vec!["alpha".to_owned()], vec!["beta".to_owned()]));
    assert_eq!((ran(&first).len(), ran(&second).len()), (2, 2));

    // An orderly stop gives the lead away.
    stop(&mut client, beta);
    wait_for_leader(&first, "alpha");
    drop(old_client);
    let mut alpha = alpha;
    let last = send(&first, &mut alpha, "short");
    assert_eq!(first.ends(&last).head.status, JobStatus::Completed);
    assert_eq!(json_of(&first, &["host", "remove", "beta"])["removed"], "beta");
    old_client = first.connect(&mut alpha).unwrap();
    stop(&mut old_client, alpha);
}

/// Lets a paused process continue when dropped, so that it can be ended.
struct Paused(Pid);

impl Paused {
    fn new(life: &Life) -> Paused {
        let pid = Pid::from_child(&life.child);
        assert!(signal_if(pid, Signal::STOP, || true));
        Paused(pid)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        signal_if(self.0, Signal::CONT, || true);
    }
}

#[test]
fn proof_a_leader_that_was_paused_past_its_lease_starts_and_records_nothing() {
    let proof = ProofSettings::new(PAUSE_ROUNDS_IN_CI);
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let is_alpha = leader_of_both(&first) == "alpha";
        let (old, old_life) = if is_alpha { (&first, &mut alpha) } else { (&second, &mut beta) };
        let mut client = wait_for("the leader", || old.connect(old_life));
        // Jobs that are being created, started and recorded when the leader is paused.
        let asking = std::thread::spawn(move || {
            let trigger = DaemonCommand::Trigger(Box::new(wanted("short")));
            let mut told = Vec::new();
            for _ in 0..12 {
                match client.send_command(&trigger, None) {
                    Ok(CommandReply::Job { job, .. }) => told.push(job),
                    Ok(other) => panic!("{other:?}"),
                    Err(DaemonClientError::Io { .. } | DaemonClientError::NoDaemon { .. }) => break,
                    // It was not saved, or the daemon is ending.
                    Err(_) => {}
                }
            }
            told
        });
        std::thread::sleep(std::time::Duration::from_millis(random.u64(0..400)));
        let paused = Paused::new(old_life);
        let (new, new_life, name) = match is_alpha {
            true => (&second, &mut beta, "beta"),
            false => (&first, &mut alpha, "alpha"),
        };
        wait_for_leader(new, name);
        let job = send(new, new_life, "short");
        assert_eq!(new.ends(&job).head.status, JobStatus::Completed);
        drop(paused);
        let told = asking.join().unwrap();
        let seed = proof.seed;
        for job in &told {
            assert!(new.reader().job(job).unwrap().is_some(), "{job} was told (seed {seed})");
        }
        // The old leader finds out by itself, and stands by.
        let name = if is_alpha { "alpha" } else { "beta" };
        wait_for("the old leader stands by", || {
            let hosts = json_of(new, &["host", "list"]);
            let hosts = hosts["hosts"].as_array().unwrap().clone();
            let old = hosts.into_iter().find(|host| host["name"] == name)?;
            (old["state"] == "standby" && old["isAlive"] == true).then_some(())
        });
        wait_for("the end of all jobs", || {
            new.jobs().iter().all(|job| job.status.is_final()).then_some(())
        });
    }
    let jobs = first.jobs();
    assert!(jobs.iter().all(|job| job.status == JobStatus::Completed), "{jobs:#?}");
    let mut started = [ran(&first), ran(&second)].concat();
    let mut finished = Vec::new();
    for job in &jobs {
        let runs = first.reader().runs_of_job(&job.id).unwrap();
        finished.push(runs.last().unwrap().id.to_string());
    }
    started.sort();
    finished.sort();
    assert_eq!(started, finished, "each job was started once (seed {})", proof.seed);
}

fn leader_of_both(herd: &Herd) -> String {
    wait_for("a leader", || leader(herd))
}

#[test]
fn a_host_needs_a_server_and_a_name_of_its_own() {
    let alone = Herd::of(AGENTS);
    let (code, text) = failure_of(&alone, &["start", "--host", "alpha"]);
    assert!(code == 5 && text.contains("needs records on PostgreSQL"), "{text}");
    assert!(text.contains("heeler migrate store"), "{text}");

    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (alpha, mut client) = first.begin(&["--host", "alpha"]);
    let (code, text) = failure_of(&second, &["start", "--host", "alpha"]);
    assert!(code == 5 && text.contains("another state directory is host `alpha`"), "{text}");
    // Another name is free.
    let (beta, mut standby) = second.begin(&["--host", "beta"]);
    stop(&mut standby, beta);
    let (code, text) = failure_of(&second, &["start", "--host", "gamma"]);
    assert!(code == 5 && text.contains("is host `beta` of its fleet"), "{text}");
    stop(&mut client, alpha);

    // Without its name it keeps it; without a daemon it starts none for one command.
    let (code, text) = failure_of(&first, &["trigger", "short", "--detach"]);
    assert!(code == 5 && text.contains("heeler start"), "{text}");
    // A directory that is no host cannot write to the fleet of several.
    let location = first.fleet.read(".heeler/store.json");
    let mut location: Json = serde_json::from_str(&location).unwrap();
    location.as_object_mut().unwrap().remove("host");
    location["version"] = 1.into();
    first.fleet.write(".heeler/store.json", &location.to_string());
    let (code, text) = failure_of(&first, &["start"]);
    assert!(code != 0 && text.contains("has several hosts"), "{text}");
    let shown = json_of(&first, &["host", "show", "alpha"]);
    assert_eq!(shown["host"]["state"], "stopped");
    let (code, _) = failure_of(&first, &["host", "show", "gamma"]);
    assert_eq!(code, 4);
}

#[test]
fn a_host_that_does_not_return_is_given_up_and_ends_its_runs_if_it_does() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, mut client) = first.begin(&["--host", "alpha"]);
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    let job = ask(&mut client, wanted("worker"));
    wait_for("its start", || (ran(&first).len() == 1).then_some(()));
    let (code, text) = failure_of(&second, &["host", "lost", "alpha", "--yes"]);
    assert!(code == 5 && text.contains("is alive"), "{code}: {text}");
    let (code, text) = failure_of(&second, &["host", "lost", "gamma", "--yes"]);
    assert!(code == 4 && text.contains("no host `gamma`"), "{code}: {text}");
    alpha.kill();
    wait_for_leader(&second, "beta");
    let (code, text) = failure_of(&second, &["host", "lost", "alpha"]);
    assert!(code == 5 && text.contains("--yes"), "a script does not do it by accident: {text}");
    let message = wait_for("alpha is away", || {
        second.connect(&mut beta)?;
        let output = second.command("host").args(["lost", "alpha", "--yes"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    });
    assert!(message.contains("1 run of host `alpha` was ended"), "{message}");
    let ended = second.ends(&job);
    assert_eq!(ended.head.status, JobStatus::Failed);
    assert!(ended.error.as_deref().is_some_and(|error| error.contains("given up")), "{ended:?}");
    // The agent has its place back.
    let next = send(&second, &mut beta, "worker");
    wait_for("the next run", || (ran(&second).len() == 1).then_some(()));

    // The machine returns. Its runner still waits at the gate, and is ended.
    assert_eq!(first.runners().len(), 1);
    let (alpha, mut client) = first.begin(&[]);
    wait_for("the end of the old run", || first.runners().is_empty().then_some(()));
    assert_eq!(second.job(&job).head.status, JobStatus::Failed, "its result is not recorded");
    stop(&mut client, alpha);
    json_of(&second, &["host", "remove", "alpha"]);
    let mut second = second;
    second.let_through(1);
    assert_eq!(second.ends(&next).head.status, JobStatus::Completed);
    let mut client = second.connect(&mut beta).unwrap();
    stop(&mut client, beta);
}
