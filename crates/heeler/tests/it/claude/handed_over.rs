//! Sessions that go on in a new one because their context had grown too large.

use heeler_model::run::{ErrorClass, SessionStart};
use heeler_testkit::{ModelScript, ModelScriptStep};
use serde_json::{Value as Json, json};

use super::{BOTH, Rig, RuntimeType, succeeded};
use crate::rig::{End, Plan, new_session};

/// A session of three turns; the second one uses tools side by side.
fn conversation(rig: &Rig, runtime: RuntimeType) -> End {
    let first = rig.run(rig.plan(runtime, &format!("one {}", ModelScript::new().text("First."))));
    succeeded(&first);
    let call = |word: &str| ("Bash", json!({"command": format!("echo {word}")}));
    let tools =
        ModelScript::new().step(ModelScriptStep::tools([call("a"), call("b")])).text("Second.");
    let second = rig.plan(runtime, &format!("two {tools}")).resume(&first);
    succeeded(&rig.run(second));
    // The directive of the last prompt is what answers, also for the summary.
    let third = ModelScript::new().text("Third.").text("never said");
    let third = rig.run(rig.plan(runtime, &format!("three {third}")).resume(&first));
    succeeded(&third);
    third
}

fn go_on(rig: &Rig, runtime: RuntimeType, from: &End, keep: u32) -> Plan {
    let mut plan = rig.plan(runtime, &format!("four {}", ModelScript::new().text("Fourth.")));
    let (source, id) = (from.session_id(), new_session());
    plan.spec.session.start = SessionStart::Continue { source, id, keep };
    plan
}

/// What the model was sent, without the scripts in prompts.
fn shown(end: &End, number: usize) -> Vec<String> {
    let history = end.sent[number].history();
    let plain = |line: &String| line.split(" MOCK").next().unwrap().trim().to_owned();
    history.iter().map(plain).collect()
}

#[test]
fn the_model_gets_the_summary_the_last_messages_and_the_new_prompt() {
    for runtime in BOTH {
        let rig = Rig::new();
        let source = conversation(&rig, runtime);
        let file = rig.own(&source.session_id());
        let before = std::fs::read(&file).unwrap();
        let plan = go_on(&rig, runtime, &source, 5);
        let id = plan.spec.session.start.id().clone();
        let end = rig.run(plan);
        succeeded(&end);
        assert_eq!(end.session_id(), id);
        assert_eq!(std::fs::read(&file).unwrap(), before, "the source stays as it is");
        assert_eq!(end.sent.len(), 2, "{:#?}", end.sent);

        // The summary: the whole conversation, no tools, and nothing is left of it.
        assert_eq!(end.sent[0].tools(), [""; 0]);
        let asked = shown(&end, 0);
        assert!(asked[0].starts_with("user: one"), "{asked:#?}");
        assert!(asked.last().unwrap().contains("Write that summary now"), "{asked:#?}");

        // The turn: exactly the summary, the last five messages, the prompt.
        let mut told = shown(&end, 1);
        // Tools that run side by side end in any order.
        told[5..7].sort();
        assert!(told[0].starts_with("user: [Summary] "), "{told:#?}");
        assert!(told[0].ends_with("\n\nnever said"), "{told:#?}");
        assert!(told[1].starts_with("assistant: I have read the summary"), "{told:#?}");
        let rest = [
            "user: two",
            "assistant: \"Bash\" {\"command\":\"echo a\"}",
            "assistant: \"Bash\" {\"command\":\"echo b\"}",
            "user: result \"a\"",
            "user: result \"b\"",
            "assistant: Second.",
            "user: three",
            "assistant: Third.",
            "user: four",
        ];
        assert_eq!(told[2..], rest, "{told:#?}");
        assert_eq!(rig.own_sessions(), 2, "the old one and the new one");

        // It goes on like any other.
        let session = end.result.session.as_ref().unwrap();
        assert!(session.resumable && session.own.is_some(), "{session:#?}");
        // Ten are sent and five are said, by the figures of the fake API; the source had more.
        assert!(session.tokens < 100, "{}", session.tokens);
        let on = rig.run(
            rig.plan(runtime, &format!("five {}", ModelScript::new().text("On."))).resume(&end),
        );
        succeeded(&on);
        let told = shown(&on, 0);
        assert_eq!(told[2], "user: two", "{told:#?}");
        let last = told.len() - 3;
        assert_eq!(told[last..], ["user: four", "assistant: Fourth.", "user: five"], "{told:#?}");
        let notes: Vec<_> = end.rows.iter().map(|row| row["subtype"].clone()).collect();
        assert_eq!(notes[..2], [json!("session"), json!("summary")], "{:#?}", end.rows);
        let from = end.session.iter().find_map(|row| row.get("continuedFrom")).unwrap();
        assert_eq!(from, &json!({"sessionId": source.session_id(), "messages": 7}));
        let both = end.result.cost.usd.unwrap();
        assert!((both - 0.00028).abs() < 1e-9, "both replies are paid for: {both}");
    }
}

#[test]
fn a_summary_that_the_api_refuses_fails_the_run_and_the_source_goes_on() {
    for runtime in BOTH {
        let rig = Rig::new();
        let script = ModelScript::new().text("First.").step(ModelScriptStep::error(529));
        let first = rig.run(rig.plan(runtime, &format!("one {script}")));
        succeeded(&first);
        let file = rig.own(&first.session_id());
        let before = std::fs::read(&file).unwrap();
        let end = rig.run(go_on(&rig, runtime, &first, 5));
        let error = end.result.error.as_ref().expect("it failed");
        assert_eq!(error.class, ErrorClass::Overloaded, "{error:#?}");
        assert!(!end.result.session.as_ref().unwrap().resumable);
        assert_eq!(std::fs::read(&file).unwrap(), before);
        assert_eq!(rig.own_sessions(), 1);
        let said: Vec<&Json> = end.rows.iter().filter(|row| row["type"] == "assistant").collect();
        assert_eq!(said.len(), 0, "{said:#?}");
        let on = format!("two {}", ModelScript::new().text("On."));
        succeeded(&rig.run(rig.plan(runtime, &on).resume(&first)));
    }
}
