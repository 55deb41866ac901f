//! Messages to running agents of other hosts: delivered once, also if the host or the leader dies meanwhile.

use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::JobId;
use rustix::process::{Pid, Signal};
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::host_runs::{rows, send, stop, trigger, wait_for_runs};
use crate::hosts::{cluster, leader, wait_for_leader};
use crate::processes::signal_if;
use crate::trigger::wait_for;

/// An agent on the second host that waits at its gate, and then reads what it was told.
const AGENTS: &str = "agents:
  - {name: there, host: beta, runtime: scripted, env: {KEY: '${KEY}'}, secrets: [KEY],
     script: [{run: 'echo $HEELER_RUN >> ran; read line < gate'}, {say: 'heard {prompt}'}]}
";

/// A secret that all hosts know.
const SECRET: &str = "k3y-0f-th3-ag3nt-5538";

fn say(job: &JobId, text: &str) -> DaemonCommand {
    DaemonCommand::Say { job: job.clone(), text: text.to_owned(), by: "ann".to_owned() }
}

/// Says something to a job until there is an answer, which must be that the job has it.
#[track_caller]
fn tell(herd: &Herd, life: &mut Life, job: &JobId, text: &str) {
    match send(herd, life, &say(job, text), Some(text)) {
        CommandReply::Done { message } => assert!(message.contains("was sent to"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// Returns how many times a job received a text, as a host has its rows.
fn receipts(herd: &Herd, job: &JobId, text: &str) -> usize {
    let is_receipt = |line: &&str| {
        let row: Json = serde_json::from_str(line).unwrap();
        row["subtype"] == "user_input" && row["content"] == text
    };
    rows(herd, job).lines().filter(is_receipt).count()
}

#[test]
fn a_message_reaches_an_agent_of_another_host_once_whoever_dies() {
    let cluster = cluster();
    let [first, mut second, third] = [(); 3].map(|()| {
        let store = cluster.url("fleet");
        let mut herd = Herd::of(&format!("store: {store}\nweb: {{enabled: false}}\n{AGENTS}"));
        herd.env.push(("KEY", SECRET.to_owned()));
        herd
    });
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    let job = trigger(&first, &mut alpha, "there");
    wait_for_runs(&second, 1);
    tell(&first, &mut alpha, &job, "from the leader");
    tell(&second, &mut beta, &job, "from its own host");
    assert_eq!(receipts(&second, &job, "from its own host"), 1);
    tell(&first, &mut alpha, &job, &format!("the key is {SECRET}"));
    assert_eq!(receipts(&second, &job, "the key is [secret]"), 1);
    let left = || cluster.query("fleet", "SELECT COUNT(*) FROM run_messages");
    assert_eq!(left(), "0", "no text stays in the database");

    // Its host dies before and after it sends the message to the run.
    for point in ["message-fetched", "message-said"] {
        beta.kill();
        wait_for_leader(&first, "alpha");
        let mut dying = second.start(&["--fault", point]);
        drop(second.connect(&mut dying));
        std::thread::scope(|scope| {
            scope.spawn(|| tell(&first, &mut alpha, &job, point));
            wait_for(&format!("a death at {point}"), || dying.has_ended().then_some(()));
            beta = second.begin(&[]).0;
        });
        assert_eq!(receipts(&second, &job, point), 1, "{point}");
    }

    // The leader dies while the host is paused. The caller repeats its command to the next leader.
    let (mut gamma, _) = third.begin(&["--host", "gamma"]);
    let pid = Pid::from_child(&beta.child);
    assert!(signal_if(pid, Signal::STOP, || true));
    let mut client = first.connect(&mut alpha).expect("it leads");
    let command = say(&job, "again");
    let asking =
        std::thread::spawn(move || client.send_command_once(&command, Some("again"), None));
    wait_for("the row of the message", || (left() == "1").then_some(()));
    alpha.kill();
    assert!(asking.join().unwrap().is_err());
    wait_for_leader(&third, "gamma");
    std::thread::scope(|scope| {
        scope.spawn(|| tell(&third, &mut gamma, &job, "again"));
        assert!(signal_if(pid, Signal::CONT, || true));
    });
    for text in ["from the leader", "message-said", "again"] {
        assert_eq!(receipts(&second, &job, text), 1, "{text}");
    }

    second.let_through(1);
    let ended = third.ends(&job);
    assert!(ended.head.status.is_final());
    let refused = wait_for("a refusal", || {
        assert!(leader(&third).is_some());
        let mut client = third.connect(&mut gamma)?;
        client.send_command_once(&say(&job, "late"), None, None).err()
    });
    assert!(format!("{refused:?}").contains("not running"), "{refused:?}");
    assert_eq!(left(), "0");
    stop(&second, beta);
    stop(&third, gamma);
}
