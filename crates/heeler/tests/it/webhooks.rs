//! Calls from outside, of daemons that die meanwhile.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use heeler_engine::{DaemonCommand, StopMode};
use heeler_model::JobStatus;

use crate::daemon_kills::Herd;
use crate::live::socket;
use crate::trigger::wait_for;

/// Calls a schedule; what is replied, if the daemon lives that long.
fn call(herd: &Herd, delivery: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket(herd)).ok()?;
    let body = "{\"issue\": 7}";
    write!(
        stream,
        "POST /hooks/worker/push HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n\
         heeler-delivery: {delivery}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    reply.starts_with("HTTP/").then_some(reply)
}

#[test]
fn a_delivery_that_is_repeated_whenever_the_daemon_dies_starts_one_job() {
    let herd = Herd::of(
        "agents:\n  - name: worker\n    runtime: scripted\n    script: [{say: hi}]\n    schedules:\n      \
         push: {type: webhook, overlap: queue, fields: {number: issue}}\n",
    );
    let mut replies = Vec::new();
    for point in ["before-commit", "after-commit"] {
        for nth in 1..=4 {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            if herd.connect(&mut life).is_some() {
                replies.extend(call(&herd, "d-1"));
            }
            life.kill();
        }
    }
    let (mut life, mut client) = herd.begin(&[]);
    let last = call(&herd, "d-1").expect("nothing ends it");
    assert!(last.contains("\"job\":\"job-"), "{last}");
    // Whoever was answered was answered with the same job.
    let job = |reply: &String| reply.split("\"job\":\"").nth(1).map(|rest| rest[..21].to_owned());
    assert!(replies.iter().all(|reply| job(reply) == job(&last)), "{replies:?} and {last}");
    let jobs = herd.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    wait_for("the job", || (herd.jobs()[0].status == JobStatus::Completed).then_some(()));
    let prompt = herd.reader().job(&jobs[0].id).unwrap().unwrap().prompt.unwrap();
    assert!(prompt.contains("\"number\": 7"), "{prompt}");
    let other = call(&herd, "d-2").expect("nothing ends it");
    assert!(other.starts_with("HTTP/1.0 202"), "{other}");
    assert_ne!(job(&other), job(&last));
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    life.ended();
}
