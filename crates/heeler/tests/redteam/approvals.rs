//! Attacks on approvals: make a person approve something other than the text they see.

use crate::fleet::Fleet;
use crate::trigger::{scripted, wait_for};
use crate::web::{Served, bearer, send};

/// A fleet whose daemon is stopped with the test.
struct AskingFleet(Fleet);

impl std::ops::Deref for AskingFleet {
    type Target = Fleet;
    fn deref(&self) -> &Fleet {
        &self.0
    }
}

impl Drop for AskingFleet {
    fn drop(&mut self) {
        // There may be none.
        self.0.run(&["stop", "--force", "-q"]);
    }
}

fn asking(like: &Fleet, steps: &str) -> AskingFleet {
    AskingFleet(
        like.another_with(&[("asker", &format!("approvals: interactive\n{}", scripted(steps)))]),
    )
}

/// Waits for the agent's question, and returns its ID.
fn question(fleet: &Fleet) -> String {
    wait_for("a question", || {
        let list = fleet.json(&["approvals", "list", "--json"]);
        list["approvals"][0]["id"].as_str().map(str::to_owned)
    })
}

/// An agent that asks for a command, written as the inside of a YAML string.
fn ask_for(like: &Fleet, command: &str) -> (AskingFleet, String) {
    let steps = format!("{{run: \"{command}\", ask_permission: true}}, {{say: Went on.}}");
    let fleet = asking(like, &steps);
    fleet.run(&["trigger", "asker", "--detach", "-q"]).ok();
    let id = question(&fleet);
    (fleet, id)
}

#[track_caller]
fn assert_shown_everywhere(fleet: &Fleet, id: &str, text: &str) {
    for args in [&["approvals", "list"][..], &["approvals", "show", id]] {
        let said = fleet.run(args).ok();
        assert!(said.contains(text), "{args:?}: {said:?}");
        let hidden = |c: char| heeler_model::is_hidden_char(c) && !matches!(c, '\n' | '\t');
        assert!(!said.contains(hidden), "{args:?}: {said:?}");
    }
}

fn an_escape_sequence_does_not_swallow_a_part_of_a_command(like: &Fleet) {
    let (fleet, id) = ask_for(like, "true \\e]; touch owned #");
    assert_shown_everywhere(&fleet, &id, "true \\u{1b}]; touch owned #");
}

fn a_line_break_does_not_pose_as_a_blank(like: &Fleet) {
    // A person would take the second command for the end of the comment.
    let (fleet, id) = ask_for(like, "true # run the tests, report\\ntouch owned");
    let list = fleet.run(&["approvals", "list"]).ok();
    assert!(list.contains("report\\ntouch owned"), "{list}");
    let shown = fleet.run(&["approvals", "show", &id]).ok();
    assert!(shown.contains("report\ntouch owned"), "{shown}");
}

fn a_colour_does_not_hide_a_part_of_a_command(like: &Fleet) {
    // Concealed text, and a colour that looks like the background.
    let (fleet, id) = ask_for(like, "true \\e[8m; touch owned \\e[0m#");
    assert_shown_everywhere(&fleet, &id, "true \\u{1b}[8m; touch owned \\u{1b}[0m#");
}

fn characters_that_control_or_reorder_text_are_shown_as_numbers(like: &Fleet) {
    let (fleet, id) = ask_for(like, "true \\x9b8m \\u202e# \\u200b\\u2066\\U000e0041\\u00a0;");
    assert_shown_everywhere(
        &fleet,
        &id,
        "true \\u{9b}8m \\u{202e}# \\u{200b}\\u{2066}\\u{e0041}\\u{a0};",
    );
    // Nor does the JSON of either command reach a terminal with such a character.
    for args in [&["approvals", "list", "--json"][..], &["approvals", "show", &id, "--json"]] {
        let said = fleet.run(args).ok();
        assert!(said.contains("\\u009b8m \\u202e#"), "{said}");
        assert!(!said.contains(['\u{9b}', '\u{202e}', '\u{2066}']), "{said:?}");
    }
}

fn the_end_of_a_long_command_is_shown_with_its_length(like: &Fleet) {
    let blanks = " ".repeat(20_000);
    let (fleet, id) = ask_for(like, &format!("true {blanks}; touch owned"));
    let said = fleet.run(&["approvals", "show", &id]).ok();
    assert!(said.contains("; touch owned\n"), "{said}");
    let shown = fleet.json(&["approvals", "show", &id, "--json"])["approval"].clone();
    let bytes = shown["detail"]["input"].to_string().len();
    assert_eq!(shown["inputBytes"], bytes);
    assert!(bytes > 20_000 && said.contains("bytes of input)"), "{said}");
    // A list has only the beginning, and says so.
    let list = fleet.run(&["approvals", "list"]).ok();
    assert!(list.contains("BYTES") && list.contains(" 2048+ "), "{list}");
}

fn an_answer_to_another_request_than_the_shown_one_is_refused_by_the_api(like: &Fleet) {
    let steps = "{run: 'echo done > did', ask_permission: true}, {say: Went on.}";
    let served = Served(like.another());
    let agent = format!("approvals: interactive\n{}", scripted(steps)).replace('\n', "\n    ");
    let config = format!("web: {{port: auto}}\nagents:\n  - name: asker\n    {agent}\n");
    served.0.write("heeler.yaml", &config);
    let address = served.start();
    let token = served.run(&["token", "create", "ops", "--scope", "operate"]).ok();
    served.run(&["trigger", "asker", "--detach", "-q"]).ok();
    let id = question(&served.0);
    let header = bearer(token.trim());
    let answer = |hash: &str| {
        let body = serde_json::json!({"approve": true, "inputHash": hash}).to_string();
        let headers = [header.as_str(), "content-type: application/json"];
        send(&address, &format!("POST /api/v1/approvals/{id}"), &headers, &body)
    };
    // The hash of a request that was shown earlier, or to somebody else.
    let (code, _, reply) = answer(&"0".repeat(64));
    assert_eq!(code, 403, "{reply}");
    assert!(reply.contains("the request changed"), "{reply}");
    let shown = served.0.json(&["approvals", "show", &id, "--json"])["approval"].clone();
    assert_eq!(shown["status"], "pending");
    assert!(!served.0.file("did").exists());
    let (code, _, reply) = answer(shown["inputHash"].as_str().unwrap());
    assert_eq!(code, 200, "{reply}");
    wait_for("the work", || served.0.file("did").exists().then_some(()));
}

fn a_question_that_was_swapped_on_disk_is_not_shown(like: &Fleet) {
    // A process of the agent rewrites the file of the question before a daemon reads it.
    let steps = "{spawn: 'sh swap.sh', setsid: true}, \
                 {run: 'until test -e go; do sleep 0.01; done'}, \
                 {run: 'echo evil > did', ask_permission: true}, {say: Went on.}";
    let fleet = asking(like, steps);
    fleet.write(
        "swap.sh",
        "until ls .heeler/runs/*/asks/*.json > asked 2>/dev/null; do sleep 0.01; done\n\
         sed -i s/evil/fine/ $(cat asked)\ntouch swapped\n",
    );
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "asker", "--detach", "-q"]).ok();
    wait_for("the agent", || fleet.file("asked").exists().then_some(()));
    fleet.kill("start");
    fleet.write("go", "");
    wait_for("the swap", || fleet.file("swapped").exists().then_some(()));
    fleet.run(&["start", "-d"]).ok();
    wait_for("the refusal", || {
        let log = std::fs::read_to_string(fleet.file(".heeler/logs/heeler.log")).ok()?;
        log.contains("a question was refused").then_some(())
    });
    let listed = fleet.json(&["approvals", "list", "--all", "--json"]);
    assert_eq!(listed["approvals"], serde_json::json!([]), "nobody is deceived");
    assert!(!fleet.file("did").exists(), "what was not shown did not run");
}

attacks![
    an_answer_to_another_request_than_the_shown_one_is_refused_by_the_api,
    an_escape_sequence_does_not_swallow_a_part_of_a_command,
    a_line_break_does_not_pose_as_a_blank,
    a_colour_does_not_hide_a_part_of_a_command,
    characters_that_control_or_reorder_text_are_shown_as_numbers,
    the_end_of_a_long_command_is_shown_with_its_length,
    a_question_that_was_swapped_on_disk_is_not_shown,
];
