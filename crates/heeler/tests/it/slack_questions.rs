//! Questions of agents on Slack: asked with buttons, answered once and only by approvers.

use heeler_model::{ApprovalStatus, JobStatus};
use heeler_store::ApprovalFilter;
use heeler_testkit::{FakeSlack, SlackPost};

use crate::daemon_kills::Herd;
use crate::slack::{ANN, ANN_DIRECT, BOB, CHANNEL, EVE, fake, herd, jobs, record};
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;

const MAY_I: &str = "{run: 'echo done > did', ask_permission: true}, {say: 'went on: {output}'}";

/// Waits for a post that has buttons.
#[track_caller]
fn wait_for_question(slack: &FakeSlack) -> SlackPost {
    slack
        .wait_for("a question", |posts| posts.iter().find(|post| !post.buttons.is_empty()).cloned())
}

fn approval_status(herd: &Herd) -> Vec<(ApprovalStatus, Option<String>)> {
    let all = herd.reader().approvals(&ApprovalFilter::default(), None, 99).unwrap();
    all.into_iter().map(|it| (it.status, it.responded_by)).collect()
}

#[track_caller]
fn wait_for_outcome(herd: &Herd, trigger: &str, outcome: &str) -> Option<String> {
    let id = format!("click:{trigger}");
    let record = wait_for("the record of a click", || record(herd, &id));
    assert_eq!(record.outcome, outcome, "{record:?}");
    record.reason
}

#[test]
fn a_permission_counts_once_and_only_from_an_approver() {
    let slack = fake();
    let herd = herd(&slack, MAY_I);
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let root = slack.say(CHANNEL, BOB, "<@UBOT> go");
    let question = wait_for_question(&slack);
    assert!(question.text.contains("May I use Bash?"), "{question:?}");
    assert!(question.text.contains("echo done > did"), "{question:?}");
    assert_eq!(question.thread.as_ref(), Some(&root));
    let [allow, deny] = &question.buttons[..] else { panic!("{question:?}") };

    // People who talk may not answer, nor may strangers, nor does a value that is not the fleet's.
    let by_talker = slack.click(BOB, &question, allow);
    let reason = wait_for_outcome(&herd, &by_talker, "refused").unwrap();
    assert!(reason.contains("UBOB is not an approver"), "{reason}");
    let by_stranger = slack.click(EVE, &question, allow);
    wait_for_outcome(&herd, &by_stranger, "refused");
    let forged = format!("{}x", &allow[..allow.len() - 1]);
    let by_forger = slack.click(ANN, &question, &forged);
    let reason = wait_for_outcome(&herd, &by_forger, "refused").unwrap();
    assert!(reason.contains("not made by this fleet"), "{reason}");
    // The value belongs to its thread.
    let elsewhere = SlackPost { thread: None, ..question.clone() };
    let from_elsewhere = slack.click(ANN, &elsewhere, allow);
    wait_for_outcome(&herd, &from_elsewhere, "refused");
    assert!(approval_status(&herd).iter().all(|(status, _)| *status == ApprovalStatus::Pending));
    assert!(!herd.fleet.file("did").exists());

    let first = slack.click(ANN, &question, allow);
    wait_for_outcome(&herd, &first, "answer");
    let second = slack.click(ANN, &question, deny);
    assert!(wait_for_outcome(&herd, &second, "refused").unwrap().contains("answered already"));
    wait_for("the end of the job", || {
        (jobs(&herd)[0].status == JobStatus::Completed).then_some(())
    });
    assert!(herd.fleet.file("did").exists());
    let by = Some("uann (slack UANN)".to_owned());
    assert_eq!(approval_status(&herd), [(ApprovalStatus::Approved, by)]);
    wait_until_posted(&herd);
    let posts = slack.posts();
    let closed = posts.iter().find(|post| post.ts == question.ts).unwrap();
    assert!(closed.is_edited && closed.buttons.is_empty(), "{closed:?}");
    assert!(closed.text.contains("Allowed by uann (slack UANN)"), "{closed:?}");
    wait_for("the answer to the click", || {
        let whispers = slack.whispers();
        whispers
            .iter()
            .any(|(to, text)| to == BOB && text.contains("Your ID is UBOB"))
            .then_some(())
    });
}

#[test]
fn a_question_that_is_answered_elsewhere_is_closed_in_the_chat() {
    let slack = fake();
    // A request full of characters that Slack wants escaped, which makes it several times longer.
    let herd =
        herd(&slack, &format!("{{run: 'echo {}', ask_permission: true}}", "&".repeat(1_200)));
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.say(ANN_DIRECT, ANN, "go");
    let question = wait_for_question(&slack);
    assert!(question.text.contains(&"&".repeat(100)), "{question:?}");
    let id = question.buttons[0].split(':').nth(1).unwrap().to_owned();
    let mut command = herd.command("approvals");
    let output = command.args(["reject", &id, "--reason", "not now"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let closed = slack.wait_for("the closed question", |posts| {
        posts.iter().find(|post| post.ts == question.ts && post.is_edited).cloned()
    });
    assert!(closed.text.contains("Denied by") && closed.buttons.is_empty(), "{closed:?}");
    let late = slack.click(ANN, &question, &question.buttons[0]);
    assert!(wait_for_outcome(&herd, &late, "refused").unwrap().contains("answered already"));
}

#[test]
fn a_question_and_its_answer_survive_kills() {
    for point in ["question-seen", "chat-posted", "chat-received", "chat-recorded", "delivered"] {
        let slack = fake();
        let herd = herd(&slack, MAY_I);
        let (mut life, _client) = herd.begin(&[]);
        slack.wait_for_sockets(1);
        slack.say(ANN_DIRECT, ANN, "go");
        slack.wait_until_delivered();
        let is_before = matches!(point, "question-seen" | "chat-posted");
        if is_before {
            // The first daemon may have been faster.
            life.kill();
            life = herd.start(&["--fault", point]);
            wait_for("a death or the question", || {
                let is_asked = slack.posts().iter().any(|post| !post.buttons.is_empty());
                (life.has_ended() || is_asked).then_some(())
            });
            life.kill();
            life = herd.begin(&[]).0;
        }
        let question = wait_for_question(&slack);
        wait_for("the record of the question", || {
            let open = herd.reader().open_chat_questions(9).unwrap();
            open.iter().any(|question| question.message_id.is_some()).then_some(())
        });
        if !is_before {
            life.kill();
            life = herd.start(&["--fault", point]);
        }
        wait_for("a death or a socket", || {
            (life.has_ended() || slack.socket_count() > 0).then_some(())
        });
        slack.click(ANN, &question, &question.buttons[0]);
        wait_for("a death or the end", || {
            let is_done = jobs(&herd).iter().all(|job| job.status.is_final());
            (life.has_ended() || is_done).then_some(())
        });
        life.kill();
        let (_life, _client) = herd.begin(&[]);
        // Slack shows a click that was not received as failed, and the person clicks again.
        slack.wait_for_sockets(1);
        slack.click(ANN, &question, &question.buttons[0]);
        wait_for("the end of the job", || {
            (jobs(&herd)[0].status == JobStatus::Completed).then_some(())
        });
        assert!(herd.fleet.file("did").exists(), "{point}");
        assert_eq!(approval_status(&herd).len(), 1, "{point}");
        wait_until_posted(&herd);
        let questions = slack.posts().into_iter().filter(|it| it.is_edited).count();
        let open = slack.posts().into_iter().filter(|it| !it.buttons.is_empty()).count();
        assert_eq!((questions, open), (1, 0), "{point}: {:#?}", slack.posts());
    }
}
