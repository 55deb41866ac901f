//! Attacks on approvals: make a person approve something other than the text they see.

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted, wait_for};

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

fn asking(steps: &str) -> AskingFleet {
    AskingFleet(fleet(&[("asker", &format!("approvals: interactive\n{}", scripted(steps)))]))
}

/// Waits for the agent's question, and returns its ID.
fn question(fleet: &Fleet) -> String {
    wait_for("a question", || {
        let list = fleet.json(&["approvals", "list", "--json"]);
        list["approvals"][0]["id"].as_str().map(str::to_owned)
    })
}

/// An agent that asks for a command, written as the inside of a YAML string.
fn ask_for(command: &str) -> (AskingFleet, String) {
    let steps = format!("{{run: \"{command}\", ask_permission: true}}, {{say: Went on.}}");
    let fleet = asking(&steps);
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

#[test]
fn an_escape_sequence_does_not_swallow_a_part_of_a_command() {
    let (fleet, id) = ask_for("true \\e]; touch owned #");
    assert_shown_everywhere(&fleet, &id, "true \\u{1b}]; touch owned #");
}

#[test]
fn a_colour_does_not_hide_a_part_of_a_command() {
    // Concealed text, and a colour that looks like the background.
    let (fleet, id) = ask_for("true \\e[8m; touch owned \\e[0m#");
    assert_shown_everywhere(&fleet, &id, "true \\u{1b}[8m; touch owned \\u{1b}[0m#");
}

#[test]
fn characters_that_control_or_reorder_text_are_shown_as_numbers() {
    let (fleet, id) = ask_for("true \\x9b8m \\u202e# \\u200b\\u2066\\U000e0041\\u00a0;");
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

#[test]
fn the_end_of_a_long_command_is_shown_with_its_length() {
    let blanks = " ".repeat(20_000);
    let (fleet, id) = ask_for(&format!("true {blanks}; touch owned"));
    let said = fleet.run(&["approvals", "show", &id]).ok();
    assert!(said.contains("; touch owned\n"), "{said}");
    let shown = fleet.json(&["approvals", "show", &id, "--json"])["approval"].clone();
    let bytes = shown["detail"]["input"].to_string().len();
    assert_eq!(shown["inputBytes"], bytes);
    assert!(bytes > 20_000 && said.contains("bytes of input)"), "{said}");
}

#[test]
fn a_question_that_was_swapped_on_disk_is_not_shown() {
    // A process of the agent rewrites the file of the question before a daemon reads it.
    let steps = "{spawn: 'sh swap.sh', setsid: true}, \
                 {run: 'until test -e go; do sleep 0.01; done'}, \
                 {run: 'echo evil > did', ask_permission: true}, {say: Went on.}";
    let fleet = asking(steps);
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
