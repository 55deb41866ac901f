//! Questions of agents on Telegram: asked with buttons, answered once and only by approvers.

use heeler_model::{ApprovalStatus, JobStatus};
use heeler_store::ApprovalFilter;
use heeler_testkit::{FakeTelegram, TelegramPost};

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, BOB, EVE, GROUP, TOKEN, event, herd, jobs, wait_until_posted};
use crate::trigger::wait_for;

const MAY_I: &str = "{run: 'echo done > did', ask_permission: true}, {say: 'went on: {output}'}";

/// Waits for a post that has buttons.
#[track_caller]
fn wait_for_question(telegram: &FakeTelegram, nth: usize) -> TelegramPost {
    telegram.wait_for("a question", |posts| {
        posts.iter().filter(|post| !post.buttons.is_empty() || post.is_edited).nth(nth).cloned()
    })
}

fn approval_status(herd: &Herd) -> Vec<(ApprovalStatus, Option<String>)> {
    let all = herd.reader().approvals(&ApprovalFilter::default(), None, 99).unwrap();
    all.into_iter().map(|it| (it.status, it.responded_by)).collect()
}

#[track_caller]
fn wait_for_outcome(herd: &Herd, update: i64, outcome: &str) -> Option<String> {
    let record = wait_for("the record of an event", || event(herd, update));
    assert_eq!(record.outcome, outcome, "{record:?}");
    record.reason
}

#[test]
fn a_permission_counts_once_and_only_from_an_approver() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = herd(&telegram, MAY_I);
    let (_life, _client) = herd.begin(&[]);
    telegram.say_in_group(GROUP, BOB, "@heeler_bot go");
    let question = wait_for_question(&telegram, 0);
    assert!(question.text.contains("May I use Bash?"), "{question:?}");
    assert!(question.text.contains("echo done > did"), "{question:?}");
    let [allow, deny] = &question.buttons[..] else { panic!("{question:?}") };
    assert!(allow.starts_with("a:ask-") && deny.starts_with("d:ask-"), "{question:?}");

    // People who talk may not answer, nor may strangers, nor does a value that is not the fleet's.
    let by_talker = telegram.click(BOB, &question, allow);
    assert!(
        wait_for_outcome(&herd, by_talker, "refused").unwrap().contains("43 is not an approver")
    );
    let by_stranger = telegram.click(EVE, &question, allow);
    wait_for_outcome(&herd, by_stranger, "refused");
    let forged = format!("{}x", &allow[..allow.len() - 1]);
    let by_forger = telegram.click(ANN, &question, &forged);
    let reason = wait_for_outcome(&herd, by_forger, "refused").unwrap();
    assert!(reason.contains("not made by this fleet"), "{reason}");
    // The value belongs to its chat.
    let elsewhere = TelegramPost { chat: ANN.to_string(), ..question.clone() };
    let from_elsewhere = telegram.click(ANN, &elsewhere, allow);
    wait_for_outcome(&herd, from_elsewhere, "refused");
    assert!(approval_status(&herd).iter().all(|(status, _)| *status == ApprovalStatus::Pending));
    assert!(!herd.fleet.file("did").exists());

    let first = telegram.click(ANN, &question, allow);
    let second = telegram.click(ANN, &question, deny);
    wait_for_outcome(&herd, first, "answer");
    assert!(wait_for_outcome(&herd, second, "refused").unwrap().contains("answered already"));
    wait_for("the end of the job", || {
        (jobs(&herd)[0].status == JobStatus::Completed).then_some(())
    });
    assert!(herd.fleet.file("did").exists());
    let by = Some("User42 (telegram 42)".to_owned());
    assert_eq!(approval_status(&herd), [(ApprovalStatus::Approved, by)]);
    wait_until_posted(&herd);
    let posts = telegram.posts();
    let closed = posts.iter().find(|post| post.id == question.id).unwrap();
    assert!(closed.is_edited && closed.buttons.is_empty(), "{closed:?}");
    assert!(closed.text.contains("Allowed by User42 (telegram 42)"), "{closed:?}");
    let answers = telegram.click_answers();
    assert!(answers.iter().any(|text| text.contains("Your ID is 43")), "{answers:?}");
}

#[test]
fn a_question_that_is_answered_elsewhere_is_closed_in_the_chat() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = herd(&telegram, MAY_I);
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "go");
    let question = wait_for_question(&telegram, 0);
    let id = question.buttons[0].split(':').nth(1).unwrap().to_owned();
    let mut command = herd.command("approvals");
    let output = command.args(["reject", &id, "--reason", "not now"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let closed = telegram.wait_for("the closed question", |posts| {
        posts.iter().find(|post| post.id == question.id && post.is_edited).cloned()
    });
    assert!(closed.text.contains("Denied by") && closed.buttons.is_empty(), "{closed:?}");
    let late = telegram.click(ANN, &question, &question.buttons[0]);
    assert!(wait_for_outcome(&herd, late, "refused").unwrap().contains("answered already"));
    assert!(!herd.fleet.file("did").exists());
}

#[test]
fn a_request_that_is_not_shown_completely_cannot_be_allowed_in_the_chat() {
    let telegram = FakeTelegram::start(TOKEN);
    let long = format!("true {}; echo done > did", "x".repeat(3_000));
    let herd = herd(&telegram, &format!("{{run: '{long}', ask_permission: true}}, {{say: end}}"));
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "go");
    let question = wait_for_question(&telegram, 0);
    assert_eq!(question.buttons.len(), 1, "it can only be denied");
    assert!(question.buttons[0].starts_with("d:") && question.text.contains("too long"));
    let update = telegram.click(ANN, &question, &question.buttons[0]);
    wait_for_outcome(&herd, update, "answer");
    telegram.wait_for("the answer", |posts| posts.iter().any(|it| it.text == "end").then_some(()));
    assert!(!herd.fleet.file("did").exists());
}

#[test]
fn a_choice_is_a_button_or_a_text() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd =
        herd(&telegram, "{question: 'Which?', options: [red, blue]}, {say: 'it is {answer}'}");
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "one");
    let question = wait_for_question(&telegram, 0);
    assert!(question.text.contains("Which?") && question.buttons.len() == 2, "{question:?}");
    let update = telegram.click(ANN, &question, &question.buttons[1]);
    wait_for_outcome(&herd, update, "answer");
    telegram.wait_for("the first", |posts| {
        posts.iter().any(|it| it.text == "it is blue").then_some(())
    });
    telegram.say(ANN, "two");
    wait_for_question(&telegram, 1);
    let update = telegram.say(ANN, "green");
    wait_for_outcome(&herd, update, "answer");
    telegram.wait_for("the second", |posts| {
        posts.iter().any(|it| it.text == "it is green").then_some(())
    });
    assert_eq!(jobs(&herd).len(), 2, "an answer is no message");
}

#[test]
fn a_question_and_its_answer_survive_kills() {
    for point in ["question-seen", "chat-posted", "chat-recorded", "before-delivery", "delivered"] {
        let telegram = FakeTelegram::start(TOKEN);
        let herd = herd(&telegram, MAY_I);
        let (mut life, _client) = herd.begin(&[]);
        telegram.say(ANN, "go");
        telegram.wait_until_confirmed();
        if matches!(point, "question-seen" | "chat-posted") {
            // The first daemon may have been faster.
            life.kill();
            life = herd.start(&["--fault", point]);
            wait_for("a death or the question", || {
                let is_asked = telegram.posts().iter().any(|post| !post.buttons.is_empty());
                (life.has_ended() || is_asked).then_some(())
            });
            life.kill();
            life = herd.begin(&[]).0;
        }
        wait_until_posted_question(&herd, &telegram);
        let question = wait_for_question(&telegram, 0);
        if !matches!(point, "question-seen" | "chat-posted") {
            life.kill();
            life = herd.start(&["--fault", point]);
        }
        telegram.click(ANN, &question, &question.buttons[0]);
        wait_for("a death or the end", || {
            let is_done = jobs(&herd).iter().all(|job| job.status.is_final());
            (life.has_ended() || is_done).then_some(())
        });
        life.kill();
        let (_life, _client) = herd.begin(&[]);
        wait_for("the end of the job", || {
            (jobs(&herd)[0].status == JobStatus::Completed).then_some(())
        });
        assert!(herd.fleet.file("did").exists(), "{point}");
        assert_eq!(approval_status(&herd).len(), 1, "{point}");
        wait_until_posted(&herd);
        let is_open = telegram.posts().into_iter().filter(|post| !post.buttons.is_empty());
        // A post that was made before a kill at `chat-posted` is there twice, and one of both stays.
        let most = usize::from(point == "chat-posted");
        assert!(is_open.count() <= most, "{point}: {:#?}", telegram.posts());
    }
}

/// Waits until the ID of the posted question is on record, so that it can be closed.
#[track_caller]
fn wait_until_posted_question(herd: &Herd, telegram: &FakeTelegram) {
    wait_for_question(telegram, 0);
    wait_for("the record of the question", || {
        let open = herd.reader().open_chat_questions(9).unwrap();
        open.iter().any(|question| question.message_id.is_some()).then_some(())
    });
}
