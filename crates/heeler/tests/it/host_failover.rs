//! A fail-over of the database to a replica that lacks the last changes, as asynchronous replication allows.

use heeler_engine::{CommandReply, DaemonCommand, DaemonStatus};
use heeler_model::{JobId, JobStatus};
use heeler_testkit::{NetworkState, PostgresCluster, PostgresRelay};

use crate::daemon_kills::{Herd, Life};
use crate::host_runs::{rows, send, stop, trigger, wait_for_copy, wait_for_runs};
use crate::hosts::{cluster, leader, wait_for_leader};
use crate::trigger::wait_for;

/// An agent on the second host that waits at its gate and then sends a file, and one on the host that leads.
const AGENTS: &str = "agents:
  - {name: there, host: beta, runtime: scripted, instances: {max_concurrent: 2},
     script: [{say: Before the gate.}, {run: 'echo $HEELER_RUN >> ran; read line < gate'},
       {write: report.md, text: all is well},
       {call: mcp__heeler-files__send_file, input: {file_path: report.md}},
       {stderr: it smells of smoke}, {say: Through the gate.}]}
  - {name: brief, runtime: scripted, script: [{run: 'echo $HEELER_RUN >> ran'}, {say: Done.}]}
";

/// A host that reaches the database through a relay.
struct RelayedHost {
    herd: Herd,
    relay: PostgresRelay,
    life: Life,
}

impl RelayedHost {
    fn start(cluster: &PostgresCluster, name: &str) -> RelayedHost {
        let relay = PostgresRelay::start(cluster);
        let url = relay.url("fleet");
        let herd = Herd::of(&format!("store: {url}\nweb: {{enabled: false}}\n{AGENTS}"));
        let (life, _) = herd.begin(&["--host", name]);
        RelayedHost { herd, relay, life }
    }

    #[track_caller]
    fn trigger(&mut self, agent: &str) -> JobId {
        trigger(&self.herd, &mut self.life, agent)
    }

    #[track_caller]
    fn status(&mut self) -> DaemonStatus {
        match send(&self.herd, &mut self.life, &DaemonCommand::Status, None) {
            CommandReply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }
}

/// Lets a replica take the place of the server.
fn fail_over(
    mut server: PostgresCluster,
    replica: PostgresCluster,
    hosts: [&RelayedHost; 3],
) -> PostgresCluster {
    hosts.iter().for_each(|host| host.relay.retarget(None));
    server.kill();
    replica.promote();
    hosts.iter().for_each(|host| host.relay.retarget(Some(&replica)));
    replica
}

#[test]
fn after_a_fail_over_that_loses_changes_jobs_are_settled_and_all_hosts_have_the_rows() {
    let server = cluster();
    let mut alpha = RelayedHost::start(&server, "alpha");
    wait_for_leader(&alpha.herd, "alpha");
    let mut beta = RelayedHost::start(&server, "beta");
    let gamma = RelayedHost::start(&server, "gamma");
    let early = alpha.trigger("brief");
    assert_eq!(beta.herd.ends(&early).head.status, JobStatus::Completed);
    let begun = alpha.trigger("there");
    wait_for_runs(&beta.herd, 1);
    wait_for("its first row", || {
        rows(&alpha.herd, &begun).contains("Before the gate.").then_some(())
    });

    // From here on the replica misses all, and one host is away.
    gamma.relay.set(NetworkState::Cut);
    let replica = server.start_replica();
    replica.stop_following();
    beta.herd.let_through(1);
    assert_eq!(alpha.herd.ends(&begun).head.status, JobStatus::Completed);
    wait_for_copy(&beta.herd, &alpha.herd, &begun);
    let lost = alpha.trigger("brief");
    assert_eq!(alpha.herd.ends(&lost).head.status, JobStatus::Completed);
    let cut_off = alpha.trigger("there");
    wait_for_runs(&beta.herd, 2);

    let _server = fail_over(server, replica, [&alpha, &beta, &gamma]);
    gamma.relay.set(NetworkState::Connected);

    // The end of the run is reported again, and its files are shipped again.
    wait_for("a leader", || leader(&beta.herd));
    assert_eq!(beta.herd.ends(&begun).head.status, JobStatus::Completed);
    for host in [&alpha, &gamma] {
        wait_for_copy(&beta.herd, &host.herd, &begun);
        wait_for("the sent file", || {
            let sent = host.herd.dir().sent_files(&begun);
            (sent.len() == 1 && std::fs::read(&sent[0].path).unwrap() == b"all is well")
                .then_some(())
        });
        let run = beta.herd.reader().runs_of_job(&begun).unwrap()[0].id;
        let stderr = host.herd.dir().stderr_copy(&begun, run);
        wait_for("its standard error", || {
            let text = std::fs::read_to_string(&stderr).unwrap_or_default();
            text.contains("smells of smoke").then_some(())
        });
    }
    // Jobs of which the server knows nothing are gone, and nothing of them runs on.
    for job in [&lost, &cut_off] {
        assert!(beta.herd.reader().job(job).unwrap().is_none());
    }
    wait_for("the end of the run that is not on record", || {
        beta.herd.runners().is_empty().then_some(())
    });
    // The leader's memory equals the records: nothing runs, and both places of the agent are free.
    wait_for("an idle fleet", || {
        let status = alpha.status();
        (status.running.is_empty() && status.queue.is_empty()).then_some(())
    });
    let next = [alpha.trigger("there"), beta.trigger("there")];
    wait_for_runs(&beta.herd, 4);
    beta.herd.let_through(2);
    for job in &next {
        assert_eq!(alpha.herd.ends(job).head.status, JobStatus::Completed);
        wait_for_copy(&beta.herd, &gamma.herd, job);
    }
    assert_eq!(beta.herd.jobs().len(), 4);
    for RelayedHost { herd, life, relay: _relay } in [gamma, beta, alpha] {
        stop(&herd, life);
    }
}
