//! kill -9 of the daemon between a message to a running job and the record that the job took it.

use heeler_testkit::FakeTelegram;
use serde_json::Value as Json;

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, TOKEN, event, herd_with};
use crate::trigger::wait_for;

/// Points at which a daemon dies that passes a message to a running job.
const POINTS: [&str; 5] =
    ["chat-received", "before-commit", "after-commit", "chat-recorded", "message-said"];

/// Returns how many times jobs received a text.
fn receipts(herd: &Herd, text: &str) -> usize {
    let jobs = herd.jobs();
    let transcripts = jobs.iter().map(|job| {
        let path = herd.dir().job_transcript(&job.id);
        std::fs::read_to_string(path).unwrap_or_default()
    });
    let is_receipt = |line: &str| {
        let row: Json = serde_json::from_str(line).unwrap();
        row["subtype"] == "user_input" && row["content"] == text
    };
    transcripts.map(|rows| rows.lines().filter(|line| is_receipt(line)).count()).sum()
}

fn is_quiet(herd: &Herd) -> bool {
    herd.reader().pending_effects(9).unwrap().is_empty()
        && herd.jobs().iter().all(|job| job.status.is_final())
}

/// Starts a job that waits, then kills daemons at a point while messages to the job arrive. The job ends
/// before the last daemon starts, or after that.
fn check(point: &str, ends_alone: bool) {
    let telegram = FakeTelegram::start(TOKEN);
    let steps = "{run: 'echo begun >> begun; read line < gate'}, {say: 'heard {prompt}'}";
    let mut herd = herd_with(&telegram, steps, "while_busy: say");
    let (mut life, _client) = herd.begin(&[]);
    telegram.say(ANN, "first");
    wait_for("its work", || herd.fleet.file("begun").exists().then_some(()));
    life.kill();
    let mut updates = Vec::new();
    // The first pass through a point may be the start of the daemon, so later ones are tried too.
    for nth in 1..=3 {
        let text = format!("{point} {nth}");
        let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
        updates.push((telegram.say(ANN, &text), text));
        wait_for("a death or a delivery", || {
            let is_recorded = updates.iter().all(|(id, _)| event(&herd, *id).is_some());
            let is_sent = || herd.reader().pending_effects(9).unwrap().is_empty();
            (life.has_ended() || is_recorded && is_sent()).then_some(())
        });
        life.kill();
    }
    if ends_alone {
        herd.open_gate();
        wait_for("the end of the run", || herd.runners().is_empty().then_some(()));
    }
    let (_life, _client) = herd.begin(&[]);
    if !ends_alone {
        wait_for("the records of all messages", || {
            let is_recorded = updates.iter().all(|(id, _)| event(&herd, *id).is_some());
            let effects = herd.reader().pending_effects(9).unwrap();
            (is_recorded && !effects.iter().any(|it| it.kind == "chat_say")).then_some(())
        });
        herd.open_gate();
    }
    wait_for("the records and ends of all", || {
        let is_recorded = updates.iter().all(|(id, _)| event(&herd, *id).is_some());
        (is_recorded && is_quiet(&herd)).then_some(())
    });
    for (update, text) in &updates {
        let record = event(&herd, *update).unwrap();
        assert!(["said", "job"].contains(&record.outcome.as_str()), "{point}: {record:?}");
        assert_eq!(receipts(&herd, text), 1, "{point}, {ends_alone}: {text}: {record:?}");
    }
}

#[test]
fn a_running_job_receives_a_message_once_wherever_the_daemon_dies() {
    POINTS.iter().for_each(|point| check(point, false));
}

#[test]
fn a_message_is_not_done_again_if_its_job_took_it_and_ended_without_a_daemon() {
    POINTS.iter().for_each(|point| check(point, true));
}
