//! What people ask of a run, and what an agent asks of people.

use heeler_model::ExitReason;
use heeler_model::run::QuestionAnswer;

use super::*;

fn allow() -> QuestionAnswer {
    QuestionAnswer::Allow { input: None }
}

fn answer(by: &str, answer: QuestionAnswer) -> ControlOperation {
    ControlOperation::Answer { ask: "q1".to_owned(), answer, by: by.to_owned(), shown: None }
}

/// An agent that asks and then tells what it was answered.
const ASKS: &str = r#"may q1 "rm -rf"; await '"request_id":"q1"'; case "$line" in *'"behavior":"allow"'*) say allowed;; *) say denied;; esac; result ok"#;

#[test]
fn with_nobody_there_a_question_is_denied_at_once_and_recorded() {
    let trial = stream_fixture(ASKS);
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert!(trial.said().contains(&"denied".to_owned()));
    let reason =
        "Bash was denied: this run is unattended, so the request cannot be allowed or answered";
    assert_eq!(trial.notes("denied"), [reason]);
    assert!(!trial.dir().join("asks").exists());
}

#[test]
fn a_person_is_asked_and_the_answer_is_a_row_before_the_agent_has_it() {
    let trial = stream_fixture(ASKS).attended(60_000);
    let running = trial.start();
    let mut told = running.subscriber();
    let ask = wait_ask(&running);
    assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("permission", "Bash"));
    let file = trial.dir().join("asks/q1.json");
    let stored: heeler_model::run::AgentQuestion =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(stored, ask);
    assert_eq!(running.client().ask(answer("ann", allow())), ControlReplyBody::Done);
    told.hear("row", "ann allowed Bash");
    told.hear("settled", "q1");
    told.hear("row", "allowed");
    running.finish();
    assert!(!file.exists());
    let closed = std::fs::read(trial.dir().join("asks/q1.closed")).unwrap();
    let closed: heeler_model::run::ClosedQuestion = serde_json::from_slice(&closed).unwrap();
    assert_eq!((closed.ask, closed.by.as_deref()), (ask, Some("ann")));
    assert_eq!(closed.how, heeler_model::run::QuestionOutcome::Allowed);
    assert_eq!(trial.notes("answered"), ["ann allowed Bash (question q1)"]);
    let rows = trial.job_rows();
    let at = |text: &str| rows.iter().position(|row| row["content"] == text).unwrap();
    assert!(at("ann allowed Bash (question q1)") < at("allowed"));
}

fn wait_ask(running: &LiveRunFixture) -> heeler_model::run::AgentQuestion {
    wait_for("the question", || !status(&mut running.client()).asks.is_empty());
    status(&mut running.client()).asks.remove(0)
}

#[test]
fn of_two_answers_at_once_the_first_counts_and_the_other_is_told_whose() {
    // The agent stays, so that the run does not end before the second answer is heard.
    let trial = stream_fixture(&ASKS.replace("result ok", "await forever")).attended(60_000);
    let running = trial.start();
    wait_ask(&running);
    let deny = QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false };
    let (mut ann, mut bob) = (running.client(), running.client());
    ann.send(answer("ann", allow()));
    bob.send(answer("bob", deny));
    let replies = [ann.reply(), bob.reply()];
    let refused: Vec<&String> = replies
        .iter()
        .filter_map(|reply| match reply {
            ControlReplyBody::Refused { reason } => Some(reason),
            _ => None,
        })
        .collect();
    let [reason] = refused.as_slice() else { panic!("{replies:?}") };
    running.client().ask(cancel(true));
    running.finish();
    let [note] = trial.notes("answered").try_into().unwrap();
    let first = if note.starts_with("ann") { "ann allowed" } else { "bob denied" };
    assert!(reason.starts_with(&format!("too late: {first}")), "{reason} / {note}");
}

#[test]
fn what_nobody_answers_in_time_is_denied_and_recorded() {
    let trial = stream_fixture(ASKS).attended(50);
    trial.run();
    assert!(trial.said().contains(&"denied".to_owned()));
    assert_eq!(trial.notes("denied"), ["nobody answered in time (question q1)"]);
    assert!(!trial.dir().join("asks/q1.json").exists());
}

#[test]
fn a_question_that_the_agent_withdraws_cannot_be_answered() {
    let trial = stream_fixture(r#"may q1 ls; await 'go|go'; cancel q1; say gone; await forever"#)
        .attended(60_000);
    let running = trial.start();
    let mut told = running.subscriber();
    wait_ask(&running);
    assert_eq!(
        running.client().ask(ControlOperation::message("go|go".to_owned())),
        ControlReplyBody::Done
    );
    drop(told.hear("settled", "q1"));
    told.hear("row", "gone");
    let reason = running.client().refused(answer("ann", allow()));
    assert!(reason.starts_with("too late: the agent withdrew it"), "{reason}");
    running.client().ask(cancel(true));
    running.finish();
    assert_eq!(trial.notes("withdrawn"), ["the agent withdrew it (question q1)"]);
}

#[test]
fn a_question_that_is_open_when_the_run_ends_is_closed() {
    let trial = stream_fixture("may q1 ls; await forever").attended(60_000);
    let running = trial.start();
    wait_ask(&running);
    running.client().ask(cancel(true));
    running.finish();
    assert!(!trial.dir().join("asks/q1.json").exists());
    assert_eq!(trial.notes("withdrawn"), ["the agent ended before an answer (question q1)"]);
}

#[test]
fn a_question_with_a_name_that_is_no_file_name_is_asked_under_another() {
    let trial = stream_fixture(
        r#"may ../../etc/x ls; await '"request_id":"../../etc/x"'; say heard; result ok"#,
    )
    .attended(60_000);
    let running = trial.start();
    let ask = wait_ask(&running);
    assert!(trial.dir().join(format!("asks/{}.json", ask.id)).exists());
    let (shown, by) = (Some(ask.shown_hash()), "ann".to_owned());
    let op = ControlOperation::Answer { ask: ask.id, answer: allow(), by, shown };
    assert_eq!(running.client().ask(op), ControlReplyBody::Done);
    running.finish();
    assert!(trial.said().contains(&"heard".to_owned()));
}

#[test]
fn a_further_message_is_recorded_and_reaches_the_agent() {
    let trial = stream_fixture(
        "await user; took; say one; await 'more please'; took; say two; result ok; await forever",
    );
    let running = trial.start();
    let mut told = running.subscriber();
    wait_for("the first row", || status(&mut running.client()).rows > 2);
    assert_eq!(
        running.client().ask(ControlOperation::message("more please".to_owned())),
        ControlReplyBody::Done
    );
    told.hear("row", "more please");
    told.hear("row", "two");
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert_eq!(trial.notes("user_input"), ["do it", "more please"]);
    assert_eq!(result.session.unwrap().messages, 4);
}

#[test]
fn a_message_with_a_known_id_is_not_sent_again_and_has_the_same_reply() {
    let trial = stream_fixture(
        "await user; took; say one; await 'more please'; took; say two; await 'enough'; took; \
         say three; result ok; await forever",
    );
    let running = trial.start();
    let mut told = running.subscriber();
    let once = |text: &str, id: Uuid| ControlOperation::Message {
        text: text.to_owned(),
        message_id: Some(id),
    };
    wait_for("the first row", || status(&mut running.client()).rows > 2);
    let id = Uuid::new_v4();
    for _ in 0..3 {
        let reply = running.client().ask(once("more please", id));
        assert_eq!(reply, ControlReplyBody::Done);
        // The row is on disk before the reply, with the ID of the message.
        let rows = trial.job_rows();
        assert!(rows.iter().any(|row| row["uuid"] == id.to_string()), "{rows:?}");
    }
    told.hear("row", "two");
    running.client().ask(once("enough", Uuid::new_v4()));
    told.hear("row", "three");
    running.finish();
    assert_eq!(trial.notes("user_input"), ["do it", "more please", "enough"]);
}

#[test]
fn a_message_that_was_refused_stays_refused() {
    let trial = command_fixture("echo ready; sleep 1000");
    let running = trial.start();
    trial.wait_row("ready");
    let op = ControlOperation::Message { text: "hi".to_owned(), message_id: Some(Uuid::new_v4()) };
    let reason = running.client().refused(op.clone());
    assert_eq!(running.client().refused(op), reason);
    running.client().ask(cancel(true));
    running.finish();
}

#[test]
fn an_agent_that_takes_no_message_says_so() {
    let trial = command_fixture("echo ready; sleep 1000");
    let running = trial.start();
    trial.wait_row("ready");
    let reason = running.client().refused(ControlOperation::message("hi".to_owned()));
    assert!(reason.contains("accepts no further messages"), "{reason}");
    running.client().ask(cancel(true));
    running.finish();
}

#[test]
fn an_id_of_the_agents_with_a_secret_in_it_names_nothing() {
    let mut trial =
        stream_fixture("await user; may r-hunter2hunter2 ls; await allow; say fine; result ok")
            .attended(60_000);
    trial.brief.secrets = vec!["hunter2hunter2".to_owned()];
    let running = trial.start();
    trial.wait_row("wants to use Bash");
    let asks = status(&mut running.client()).asks;
    assert!(Uuid::try_parse(&asks[0].id).is_ok(), "{asks:?}");
    assert!(trial.dir().join(format!("asks/{}.json", asks[0].id)).exists());
    let answer = QuestionAnswer::Allow { input: None };
    let (ask, by) = (asks[0].id.clone(), "ann".to_owned());
    let answer = ControlOperation::Answer { ask, answer, by, shown: None };
    assert_eq!(running.client().ask(answer), ControlReplyBody::Done);
    running.finish();
    assert_eq!(trial.said()[0], "fine", "the agent gets its answer by its own id");
}

/// Returns what subscribers are told of a text while it is being said, and the run's rows of it.
fn heard(script: &str) -> (String, Vec<String>) {
    let mut trial = stream_fixture(&format!(
        "await user; took; await 'go|go'; took; {script}; result ok; await forever"
    ));
    trial.brief.secrets = vec!["hunter2hunter2".to_owned()];
    let running = trial.start();
    let mut told = running.subscriber();
    running.client().ask(ControlOperation::message("go|go".to_owned()));
    let mut text = String::new();
    loop {
        let event = told.next();
        match event["event"].as_str() {
            Some("delta") => text.push_str(event["text"].as_str().unwrap()),
            Some("ended") => break,
            _ => assert_ne!(event, Json::Null),
        }
    }
    running.finish();
    (text, trial.said())
}

#[test]
fn text_that_is_still_being_said_reaches_subscribers_without_secrets_and_no_file() {
    let (text, said) =
        heard("delta 'it is hunter2'; delta 'hunter2 ok!'; say 'it is hunter2hunter2 ok!'");
    assert_eq!(text, "it is [secret] ok!");
    assert_eq!(said[0], "it is [secret] ok!");
}

#[test]
fn a_row_in_between_does_not_let_a_secret_out_in_two_pieces() {
    let sub =
        r#"printf '{"type":"assistant","parent_tool_use_id":"t","message":{"content":"sub"}}\n'"#;
    for between in [r#"printf '{"type":"system","subtype":"hook"}\n'"#, "echo garbage", sub] {
        let (text, _) = heard(&format!(
            "delta 'it is hunter2'; {between}; delta 'hunter2 ok!'; say 'it is hunter2hunter2 ok!'"
        ));
        assert_eq!(text, "it is [secret] ok!", "{between}");
    }
}

#[test]
fn what_may_begin_a_secret_is_not_told_when_its_text_ends() {
    let (text, said) = heard("delta 'it is hunter2'; say 'it is hunter2'; delta 'hunter2'");
    assert_eq!(text, "it is ");
    assert_eq!(said[0], "it is hunter2");
}

#[test]
fn rows_that_are_told_join_the_file_without_a_gap() {
    let trial = command_fixture("seq 1 300; until [ -e go ]; do sleep 0.01; done; seq 301 310");
    let running = trial.start();
    let mut told = running.subscriber();
    trial.touch("go");
    let read = RunFixture::rows(&trial.spec.job_log).len() as u64;
    let mut next = None;
    let result = loop {
        let event = told.next();
        match event["event"].as_str() {
            Some("row") => {
                let at = event["at"].as_u64().unwrap();
                assert!(at <= next.unwrap_or(read), "{at} {next:?} {read}");
                next = Some(at + 1);
            }
            Some("ended") => break event["result"].clone(),
            _ => panic!("{event}"),
        }
    };
    assert_eq!(serde_json::from_value::<RunResult>(result).unwrap(), running.finish());
    assert_eq!(next.unwrap(), trial.job_rows().len() as u64);
}

#[test]
fn a_subscriber_that_does_not_read_does_not_slow_the_run() {
    // Each of 250 lines has 10,000 characters: far more than socket and queue hold.
    let trial = command_fixture(
        r"line=$(head -c 10000 /dev/zero | tr '\0' x); yes $line | head -n 250; echo flooded
        until [ -e go ]; do sleep 0.01; done; echo last",
    );
    let running = trial.start();
    let mut slow = running.subscriber();
    trial.wait_row("flooded");
    slow.hear("lagged", "");
    trial.touch("go");
    slow.hear("row", "last");
    slow.hear("ended", "");
    assert_eq!(running.finish().exit_reason, ExitReason::Success);
    assert_eq!(trial.said().len(), 252);
}

#[test]
fn garbage_on_the_socket_harms_nothing() {
    let trial = command_fixture("echo ready; sleep 1000");
    let running = trial.start();
    let mut clients: Vec<RunTestClient> = (0..10).map(|_| running.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let bytes: Vec<u8> = (0..10_000).map(|_| fastrand::u8(..)).collect();
        drop(client.stream.get_mut().write_all(&bytes[number..]));
    }
    drop(clients);
    assert_eq!(running.client().ask(cancel(true)), ControlReplyBody::Done);
    assert_eq!(running.finish().exit_reason, ExitReason::Cancelled);
}

#[test]
fn the_status_tells_what_the_run_does() {
    let trial = command_fixture("echo ready; sleep 1000");
    let running = trial.start();
    trial.wait_row("ready");
    let mut client = running.client();
    let state = status(&mut client);
    assert_eq!((state.run, &state.job), (trial.spec.run, &trial.spec.job));
    assert_eq!(&state.session, trial.spec.session.start.id());
    assert_eq!((state.rows, state.cancelling), (3, false));
    assert!(state.agent_pid.is_some() && state.last_line_at.is_some());
    client.ask(cancel(true));
    running.finish();
}

#[test]
fn a_tool_of_ours_is_answered_through_the_stream_and_its_note_is_a_row() {
    let call = json!({
        "type": "control_request", "request_id": "m1", "request": {
            "subtype": "mcp_message", "server_name": "heeler", "message": {
                "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
                    "name": "report_progress", "arguments": {"message": "half", "percent": 50}
                }
            }
        }
    });
    let trial = stream_fixture(&format!(
        r#"printf '%s\n' '{call}'; await '"request_id":"m1"'
        case "$line" in *'"isError":true'*|*'"error"'*) say refused;; *) say answered;; esac; result ok"#
    ));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success);
    assert_eq!(trial.said()[0], "answered");
    assert_eq!(trial.notes("progress"), ["50 %: half"]);
}

#[test]
fn a_question_that_is_too_large_is_denied() {
    let trial = stream_fixture(
        r#"may q1 "$(head -c 600000 /dev/zero | tr '\0' x)"; await '"request_id":"q1"'; say heard; result ok"#,
    )
    .attended(60_000);
    trial.run();
    let [note] = trial.notes("denied").try_into().unwrap();
    assert!(note.contains("its input has more than 524288 bytes"), "{note}");
    assert_eq!(trial.said()[0], "heard");
}

#[test]
fn one_question_too_many_is_denied_and_the_others_wait() {
    let trial = stream_fixture(
        r#"for n in $(seq 1 65); do may "q$n" ls; done; await '"request_id":"q65"'; say heard; await forever"#,
    )
    .attended(60_000);
    let running = trial.start();
    trial.wait_row("heard");
    assert_eq!(status(&mut running.client()).asks.len(), crate::questions::OPEN_QUESTIONS_MAX);
    assert_eq!(trial.notes("denied"), ["Bash was denied: too many questions are open"]);
    running.client().ask(cancel(true));
    running.finish();
    assert_eq!(std::fs::read_dir(trial.dir().join("asks")).unwrap().count(), 0);
}

#[test]
fn one_call_of_a_tool_too_many_is_refused() {
    // All calls are in the pipe before the first is read.
    let call = json!({
        "type": "control_request", "request_id": "m@", "request": {
            "subtype": "mcp_message", "server_name": "heeler",
            "message": {"jsonrpc": "2.0", "id": "@", "method": "tools/list"}
        }
    });
    let calls: String =
        (1..=65).map(|n| call.to_string().replace('@', &n.to_string()) + "\n").collect();
    let mut trial = stream_fixture(
        "cat calls; await '\"request_id\":\"m65\"'; printf '%s' \"$line\" > reply; result ok",
    );
    trial.brief.prompt = "go".to_owned();
    std::fs::write(trial.spec.working_directory.join("calls"), calls).unwrap();
    trial.run();
    let reply = std::fs::read_to_string(trial.spec.working_directory.join("reply")).unwrap();
    assert!(reply.contains("64 calls are in progress"), "{reply}");
}
