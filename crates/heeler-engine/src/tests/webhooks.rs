//! Schedules of type `webhook`, called from outside.

use heeler_model::timetable::SkipReason;
use heeler_model::{JobId, JobStatus, TriggerType};

use super::daemon::RunningDaemon;
use super::{EngineFixture, SECRET};
use crate::command::{
    AgentChange, CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind,
    DaemonMode, ScheduleChange, StopMode, WebhookCall,
};

/// A fleet with two schedules that can be called and one that cannot.
fn config(rest: &str) -> String {
    format!(
        "{rest}\nagents:\n  - name: coder\n    runtime: scripted\n    script: [{{say: hi}}]\n    \
         schedules:\n      push: {{type: webhook, prompt: Look at it.}}\n      \
         all: {{type: webhook, overlap: queue}}\n      nightly: {{cron: 0 3 1 1 *}}\n"
    )
}

fn call(schedule: &str, delivery: Option<&str>) -> WebhookCall {
    WebhookCall {
        agent: "coder".to_owned(),
        schedule: schedule.to_owned(),
        payload: "{\"issue\": 7}".to_owned(),
        delivery: delivery.map(str::to_owned),
        mac: None,
        workflow: None,
    }
}

fn called(
    running: &RunningDaemon,
    call: WebhookCall,
) -> Result<(JobId, JobStatus), DaemonCommandError> {
    match running.handle.send_and_wait(DaemonCommand::Webhook(Box::new(call)))? {
        CommandReply::Job { job, status, .. } | CommandReply::Known { job, status } => {
            Ok((job, status))
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(running: &RunningDaemon, schedule: &str) -> (DaemonCommandErrorKind, String) {
    let refused = called(running, call(schedule, None)).unwrap_err();
    (refused.kind, refused.message)
}

fn change(running: &RunningDaemon, change: ScheduleChange) {
    let (agent, schedule, by) = ("coder".to_owned(), "push".to_owned(), "me".to_owned());
    running.handle.send_and_wait(DaemonCommand::Schedule { agent, schedule, change, by }).unwrap();
}

#[test]
fn a_call_starts_the_schedules_job_with_its_payload_which_is_on_record() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(""));
    let (job, status) = called(&running, call("push", None)).unwrap();
    assert_eq!(status, JobStatus::Pending);
    place.wait_for(&job, JobStatus::Completed);
    let record = place.job(&job);
    assert_eq!(record.head.trigger_type, TriggerType::Webhook);
    assert_eq!(record.head.schedule.as_deref(), Some("push"));
    let prompt = record.prompt.unwrap();
    assert!(prompt.starts_with("Look at it.\n\n"), "{prompt}");
    assert!(prompt.contains(">\n{\"issue\": 7}\n</webhook-payload-"), "{prompt}");
    let brief: serde_json::Value = serde_json::from_str(&place.read("brief.json")).unwrap();
    assert_eq!(brief["prompt"], prompt);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn a_delivery_that_comes_again_is_the_same_job_also_for_the_next_daemon() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(""));
    let (first, _) = called(&running, call("push", Some("d-1"))).unwrap();
    place.wait_for(&first, JobStatus::Completed);
    let again = called(&running, call("push", Some("d-1"))).unwrap();
    assert_eq!(again, (first.clone(), JobStatus::Completed));
    running.stop(StopMode::KeepJobs);
    let running = place.daemon(DaemonMode::Permanent, &config(""));
    change(&running, ScheduleChange::Disable);
    assert_eq!(called(&running, call("push", Some("d-1"))).unwrap().0, first);
    change(&running, ScheduleChange::Enable);
    let (other, _) = called(&running, call("push", Some("d-2"))).unwrap();
    place.wait_for(&other, JobStatus::Completed);
    let (elsewhere, _) = called(&running, call("all", Some("d-1"))).unwrap();
    place.wait_for(&elsewhere, JobStatus::Completed);
    let (unnamed, _) = called(&running, call("push", None)).unwrap();
    let mut all = [&first, &other, &elsewhere, &unnamed];
    all.sort();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn the_oldest_deliveries_are_forgotten() {
    let place = EngineFixture::new("die-when-told");
    let running = place.daemon(DaemonMode::Permanent, &config("queue: {max: 1000}"));
    let deliver = |number: usize| called(&running, call("all", Some(&format!("d-{number}"))));
    let jobs: Vec<JobId> = (0..257).map(|number| deliver(number).unwrap().0).collect();
    assert_eq!(deliver(256).unwrap().0, jobs[256]);
    assert_eq!(deliver(1).unwrap().0, jobs[1]);
    assert!(!jobs.contains(&deliver(0).unwrap().0), "it is a new one");
    std::fs::write(place.root.join("go"), "").unwrap();
    running.stop(StopMode::Force);
}

#[test]
fn what_is_no_webhook_is_not_found() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(""));
    for (schedule, message) in
        [("nightly", "coder/nightly is not a webhook"), ("none", "coder has no schedule `none`")]
    {
        let (kind, found) = refused(&running, schedule);
        assert_eq!(kind, DaemonCommandErrorKind::NotFound);
        assert!(found.starts_with(message), "{found}");
    }
    let stranger = WebhookCall { agent: "nobody".to_owned(), ..call("push", None) };
    assert_eq!(called(&running, stranger).unwrap_err().kind, DaemonCommandErrorKind::NotFound);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn what_is_switched_off_takes_no_calls() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(""));
    change(&running, ScheduleChange::Disable);
    let told = (DaemonCommandErrorKind::NotAllowed, "coder/push is disabled".to_owned());
    assert_eq!(refused(&running, "push"), told);
    change(&running, ScheduleChange::Reset);
    let (agent, by) = ("coder".to_owned(), "me".to_owned());
    running
        .handle
        .send_and_wait(DaemonCommand::Agent { agent, change: AgentChange::Disable, by })
        .unwrap();
    let told = (DaemonCommandErrorKind::NotAllowed, "coder is disabled".to_owned());
    assert_eq!(refused(&running, "push"), told);
    running.stop(StopMode::KeepJobs);
    assert!(place.reader().skips("coder", "push", None, 9).unwrap().is_empty());
    assert!(place.reader().newest_job("coder").unwrap().is_none());
}

#[test]
fn a_call_while_the_last_job_is_at_work_is_skipped_or_waits() {
    let place = EngineFixture::new("die-when-told");
    let running = place.daemon(DaemonMode::Permanent, &config("queue: {max: 2}"));
    let (first, _) = called(&running, call("push", None)).unwrap();
    let told =
        (DaemonCommandErrorKind::Busy, "the last job of coder/push has not ended".to_owned());
    assert_eq!(refused(&running, "push"), told);
    place.wait_for(&first, JobStatus::Running);
    assert_eq!(refused(&running, "push"), told);
    let skips = place.reader().skips("coder", "push", None, 9).unwrap();
    assert_eq!((skips[0].skip.count, skips[0].skip.reason), (2, SkipReason::Overlap));

    let (second, _) = called(&running, call("all", None)).unwrap();
    let (third, _) = called(&running, call("all", None)).unwrap();
    let (kind, message) = refused(&running, "all");
    assert_eq!(kind, DaemonCommandErrorKind::Busy);
    assert!(message.contains("the queue is full (2 jobs"), "{message}");
    let skips = place.reader().skips("coder", "all", None, 9).unwrap();
    assert_eq!(skips[0].skip.reason, SkipReason::QueueFull);
    place.behave("success");
    std::fs::write(place.root.join("go"), "").unwrap();
    for job in [&first, &second, &third] {
        place.wait_for(job, JobStatus::Completed);
    }
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_secret_in_a_payload_is_not_written_down() {
    let place = EngineFixture::new("success");
    let config =
        config("").replace("    script", &format!("    env: {{A_TOKEN: {SECRET}}}\n    script"));
    let running = place.daemon(DaemonMode::Permanent, &config);
    let payload = format!("it is {SECRET}");
    let (job, _) = called(&running, WebhookCall { payload, ..call("push", None) }).unwrap();
    place.wait_for(&job, JobStatus::Completed);
    assert!(place.job(&job).prompt.unwrap().contains("\nit is [secret]\n"));
    running.stop(StopMode::KeepJobs);
}
