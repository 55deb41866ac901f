//! The workers of a conversation on its screen: who they are, what each says, talking to one of them,
//! and that nothing of theirs is lost when the program is killed.

use expect_test::expect;
use heeler_model::JobStatus;
use rustix::process::Signal;
use serde_json::Value as Json;

use crate::chat_lines::session;
use crate::chat_screen::{answered, leave};
use crate::fleet::Fleet;
use crate::pty::{ALT_SHIFT_TAB, ESC, Pty, TAB};
use crate::trigger::{coordinator, fleet, scripted, wait_for};

/// An agent that does as it is told; a long task until there is a file `go`.
const CODER: &str = "{when: {prompt: talk}, do: [{run: 'until test -e talk; do sleep 0.02; done'}, \
     {say: 'These words come; those never did.', chunks: 2, delay: 10m}], \
     else: [{when: {prompt: long}, do: [{say: Working.}, \
     {run: 'until test -e go; do sleep 0.02; done'}, {say: Did it.}], \
     else: [{say: 'Did {prompt} in turn {turn}.'}]}]}";

/// How many things a worker that counts says and does in a turn.
const COUNTS: usize = 40;

/// A fleet of one who plays this and of those whom it can set to work.
pub(crate) fn crew(steps: &str) -> Fleet {
    crew_with(steps, CODER)
}

fn crew_with(lead: &str, coder: &str) -> Fleet {
    let coder = format!("{}\ninstances: {{max_concurrent: 9}}", scripted(coder));
    fleet(&[("lead", &coordinator(lead)), ("coder", &coder)])
}

/// Steps that set a worker of this name to work.
pub(crate) fn spawn(name: &str, task: &str) -> String {
    call("spawn_worker", &format!("agent: coder, name: {name}, task: {task}"))
}

pub(crate) fn call(tool: &str, input: &str) -> String {
    format!("{{call: mcp__heeler__{tool}, input: {{{input}}}}}")
}

/// How the jobs of a worker ended, oldest first.
pub(crate) fn ends_of(fleet: &Fleet, name: &str) -> Vec<JobStatus> {
    let jobs = fleet.jobs();
    let first = jobs.iter().rfind(|job| job.worker() == Some(name)).unwrap();
    let is_its = |job: &&heeler_model::Job| job.head.session_id == first.head.session_id;
    jobs.iter().rev().filter(is_its).map(|job| job.head.status).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "most of it are screens")]
fn workers_are_seen_looked_at_talked_to_and_stopped_one_by_one() {
    let steps = [
        spawn("ada", "talk to me"),
        spawn("bob", "a long one"),
        "{run: 'until test -e end; do sleep 0.02; done'}, {say: All is done.}".to_owned(),
    ];
    let fleet = crew(&steps.join(", "));
    let pty = Pty::start(&fleet, &["chat", "lead", "--no-insights"]);
    pty.shows("lead");
    pty.type_in("begin\r");
    // What each has said and done was not seen yet.
    pty.check(&expect![[r#"
        › begin
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"ada","task":"talk to me"}
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"bob","task":"a long one"}
          · Bash until test -e end; do sleep 0.02; done
        * Bash TIME · Esc interrupts
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        [main] ada ▶ +2  bob ▶ +3
        lead · $0.00"#]]);
    pty.type_in(TAB);
    pty.check(&expect![[r#"
          Worker spawned

        › talk to me
          · Bash until test -e talk; do sleep 0.02; done
        * ada is running · Esc stops it
        ─ to ada ───────────────────────────────────────────────────────────────────────────────────────────
        ›
         main [ada ▶] bob ▶ +3
        lead · $0.00"#]]);
    fleet.write("talk", "");
    pty.check(&expect![[r#"
          Worker spawned

        › talk to me
          ✓ Bash until test -e talk; do sleep 0.02; done

        ● These words come;
        * ada is running · Esc stops it
        ─ to ada ───────────────────────────────────────────────────────────────────────────────────────────
        ›
         main [ada ▶] bob ▶ +3
        lead · $0.00"#]]);
    pty.type_in(TAB);
    pty.shows("─ to bob ─");
    pty.type_in(ALT_SHIFT_TAB);
    pty.shows("─ to ada ─");
    pty.type_in(ALT_SHIFT_TAB);
    pty.hides("─ to ");
    pty.type_in("/view bob\r");
    pty.shows("─ to bob ─");
    pty.type_in("hurry\r");
    // It has heard that at work; when it is done it goes on.
    pty.shows("› hurry\n* bob is running");
    fleet.write("go", "");
    pty.shows("bob ✓");
    pty.type_in("again\r");
    pty.check(&expect![[r#"
          Worker spawned

        › a long one

        ● Working.
          ✓ Bash until test -e go; do sleep 0.02; done

        › hurry

        ● Did it.

        › again

        ● Did again in turn 2.
        ─ to bob ───────────────────────────────────────────────────────────────────────────────────────────
        ›
         main  ada ▶ [bob ✓]
        lead · $0.00"#]]);
    pty.type_in("/view ada\r");
    pty.shows("─ to ada ─");
    pty.type_in(ESC);
    pty.check(&expect![[r#"
          Worker spawned

        › talk to me
          ✓ Bash until test -e talk; do sleep 0.02; done

        ● These words come;
          interrupted
        ─ to ada ───────────────────────────────────────────────────────────────────────────────────────────
        ›
         main [ada ✗] bob ✓
        lead · $0.00"#]]);
    // Nobody else was stopped.
    fleet.write("end", "");
    pty.type_in("/view main\r");
    answered(&pty, "● All is done.");
    pty.type_in("/workers\r");
    pty.check(&expect![[r#"
        › begin
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"ada","task":"talk to me"}
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"bob","task":"a long one"}
          ✓ Bash until test -e end; do sleep 0.02; done

        ● All is done.

          ada  failed   $0.00  talk to me
          bob  done     $0.00  a long one
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        [main] ada ✗  bob ✓
        lead · $0.00 · 240 tokens"#]]);
    leave(pty);
    assert_eq!(ends_of(&fleet, "ada"), [JobStatus::Cancelled]);
    assert_eq!(ends_of(&fleet, "bob"), [JobStatus::Completed; 2]);
    let lead = fleet.jobs().into_iter().find(|job| job.head.agent == "lead").unwrap();
    assert_eq!(lead.head.status, JobStatus::Completed);
}

#[test]
fn what_a_worker_asks_is_answered_where_the_person_is() {
    let asks = "{write: a.txt, text: hi, ask_permission: true}, {say: Written.}";
    let careful = format!("{}\napprovals: interactive", scripted(asks));
    let steps = format!("{}, {{say: Started.}}", spawn("ada", "write it"));
    let fleet = fleet(&[("lead", &coordinator(&steps)), ("coder", &careful)]);
    let pty = Pty::start(&fleet, &["chat", "lead", "--no-insights"]);
    pty.shows("lead");
    pty.type_in("begin\r");
    answered(&pty, "● Started.");
    pty.check(&expect![[r#"
        › begin
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"ada","task":"write it"}

        ● Started.
        ? ada wants to use Write
        │ file_path: a.txt
        │ + hi
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end the turn · Tab: type
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        [main] ada ▶ +2
        lead · $0.00 · 88 tokens"#]]);
    assert!(!fleet.file("a.txt").exists());
    pty.type_in("1");
    pty.check(&expect![[r#"
        › begin
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"ada","task":"write it"}

        ● Started.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        [main] ada ✓ +4
        lead · $0.00 · 88 tokens"#]]);
    assert_eq!(fleet.read("a.txt"), "hi");
    leave(pty);
}

/// Reads a worker's file of the only session: what each entry is, and the row that it comes from.
fn kept(fleet: &Fleet, id: &str, name: &str) -> Vec<(String, (String, u64))> {
    let file = fleet.file(&format!("home/.heeler/sessions/{id}.workers/{name}.ndjson"));
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let entry = |line: &str| {
        let entry: Json = serde_json::from_str(line).unwrap();
        let what = entry["args"]["path"].as_str().or(entry["content"].as_str());
        let what = format!("{} {}", entry["role"].as_str().unwrap(), what.unwrap_or_default());
        // The note that the worker was spawned comes from no row.
        let job = entry["job"].as_str()?.to_owned();
        Some((what, (job, entry["row"].as_u64().unwrap())))
    };
    // The last line may still be on its way.
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(entry).collect()
}

/// What a turn of one who counts comes to.
fn counted(prompt: &str) -> Vec<String> {
    let step = |n: usize| {
        let words = format!("assistant {prompt} {n}");
        [words, format!("tool {prompt}-{n}"), "tool seen".to_owned()]
    };
    std::iter::once(format!("user {prompt}")).chain((1..=COUNTS).flat_map(step)).collect()
}

#[test]
fn after_kills_the_workers_are_there_and_what_they_did_is_in_order_and_once() {
    let steps = [
        spawn("ada", "one"),
        spawn("bob", "two"),
        call("wait_for_worker", "names: [ada, bob]"),
        call("message_worker", "name: bob, message: three"),
        call("wait_for_worker", ""),
        "{say: All is done.}".to_owned(),
    ];
    let coder = format!(
        "{{repeat: {COUNTS}, do: [{{say: '{{prompt}} {{n}}'}}, \
         {{tool: Look, input: {{path: '{{prompt}}-{{n}}'}}, result: seen}}, {{sleep: 5ms}}]}}"
    );
    let fleet = crew_with(&steps.join(", "), &coder);
    let mut pty = Pty::start(&fleet, &["chat", "lead", "--no-insights"]);
    pty.shows("lead");
    pty.type_in("begin\r");
    pty.shows("bob ▶ +");
    let id = session(&fleet).0;
    // Whatever they do while nobody looks, and wherever it is cut off, it is gone on with there.
    for lines in [5, 30, 60, 90, 130, 180] {
        let expected = 2 * COUNTS * 3 + 2;
        wait_for("rows", || {
            let count = kept(&fleet, &id, "bob").len();
            (count >= lines.min(expected)).then_some(())
        });
        pty.signal(Signal::KILL);
        pty.ended();
        if lines > 5 {
            let is_over = || fleet.jobs().iter().all(|job| job.head.status.is_final());
            wait_for("the end of all", || is_over().then_some(()));
        }
        pty = Pty::start(&fleet, &["--resume", &id, "--no-insights"]);
    }
    answered(&pty, "● All is done.");
    let bobs = [counted("two"), counted("three")].concat();
    for (name, expected) in [("ada", counted("one")), ("bob", bobs)] {
        wait_for(name, || (kept(&fleet, &id, name).len() >= expected.len()).then_some(()));
        let (entries, rows): (Vec<_>, Vec<_>) = kept(&fleet, &id, name).into_iter().unzip();
        assert_eq!(entries, expected, "{name}");
        let is_in_order = |pair: &[(String, u64)]| pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1;
        assert!(rows.windows(2).all(is_in_order), "{rows:?}");
    }
    pty.type_in("/workers\r");
    pty.shows("bob  done");
    pty.type_in("/view bob\r");
    pty.shows("● three 40");
    leave(pty);
}
