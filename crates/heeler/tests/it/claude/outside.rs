//! Sessions that somebody goes on with by running claude themselves, and what forks take over.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::AgentSessionId;
use heeler_model::run::{ErrorClass, SessionStart};
use heeler_store::history::{ForkSafety, find_fork_point, load_history};
use heeler_store::native::{self, NativeFolder, NativeProgram};
use heeler_testkit::{ModelScript, ModelScriptStep};
use rustix::process::{Signal, kill_process};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::{BOTH, Rig, RuntimeType, succeeded};
use crate::rig::{End, Plan, new_session, wait};

impl Rig {
    /// The folders of claude's own sessions.
    fn own_files(&self) -> Vec<Utf8PathBuf> {
        let projects = self.path("claude/projects").read_dir_utf8().unwrap();
        let files = projects.flat_map(|project| project.unwrap().path().read_dir_utf8().unwrap());
        let files = files.map(|file| file.unwrap().into_path());
        files.filter(|file| file.extension() == Some("jsonl")).collect()
    }

    /// claude's own file of a session.
    #[track_caller]
    pub(super) fn own(&self, id: &AgentSessionId) -> Utf8PathBuf {
        let name = format!("{id}.jsonl");
        let mut files = self.own_files().into_iter();
        files.find(|file| file.file_name() == Some(&name)).expect("claude has the session")
    }

    /// How many sessions claude has.
    pub(super) fn own_sessions(&self) -> usize {
        self.own_files().len()
    }

    /// Goes on with a session as a person does, in a terminal.
    #[track_caller]
    fn by_hand(&self, plan: &mut Plan, id: &AgentSessionId, prompt: &str) {
        let program = plan.claude().program.clone();
        let done = Command::new(program)
            .args(["-p", prompt, "--resume", id.as_str()])
            .current_dir(self.path("work"))
            .env_clear()
            .envs(&plan.brief.env)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:#?}");
    }
}

impl Plan {
    /// Goes on with a session where a run left it.
    fn after(mut self, end: &End) -> Plan {
        self = self.resume(end);
        self.spec.session.own = end.result.session.as_ref().unwrap().own;
        self
    }
}

fn says(prompt: &str, text: &str) -> String {
    format!("{prompt} {}", ModelScript::new().text(text))
}

/// What the model was sent last, without the scripts in prompts.
fn shown(end: &End) -> Vec<String> {
    let history = end.sent.last().expect("the model was asked").history();
    let plain = |line: &String| line.split(" MOCK").next().unwrap().trim().to_owned();
    history.iter().map(plain).collect()
}

#[test]
fn a_session_that_a_person_went_on_with_is_refused_and_then_taken_in() {
    for runtime in BOTH {
        let rig = Rig::new();
        let first = rig.run(rig.plan(runtime, &says("one", "First.")));
        succeeded(&first);
        let own = rig.own(&first.session_id());
        // Nobody went on: nothing is refused.
        let second = rig.run(rig.plan(runtime, &says("two", "Second.")).after(&first));
        succeeded(&second);

        let mut plan = rig.plan(runtime, &says("three", "Third.")).after(&second);
        rig.by_hand(&mut plan, &first.session_id(), &says("by hand", "Hand."));
        let before = std::fs::read(&own).unwrap();
        let mut again = rig.plan(runtime, &says("three", "Third.")).after(&second);
        again.spec.session.take_in = true;
        let refused = rig.run(plan);
        let error = refused.result.error.as_ref().expect("it was refused");
        assert_eq!(error.class, ErrorClass::SessionMovedOn, "{error:#?}");
        assert!(error.message.contains("2 messages were added"), "{error:#?}");
        assert!(error.message.contains(own.as_str()), "{error:#?}");
        assert!(error.cure.contains("--take-in"), "{error:#?}");
        assert_eq!((refused.sent.len(), refused.rows.len()), (0, 0));
        assert_eq!(std::fs::read(&own).unwrap(), before);

        let taken = rig.run(again);
        succeeded(&taken);
        let expected = [
            "user: one",
            "assistant: First.",
            "user: two",
            "assistant: Second.",
            "user: by hand",
            "assistant: Hand.",
            "user: three",
        ];
        assert_eq!(shown(&taken), expected);
        let outside: Vec<&Json> =
            taken.session.iter().filter(|row| row["outside"] == true).collect();
        let said = |row: &Json| row["message"]["content"].to_string();
        assert_eq!(outside.len(), 2, "{outside:#?}");
        assert!(said(outside[0]).contains("by hand") && said(outside[1]).contains("Hand."));
        assert_eq!(taken.result.session.as_ref().unwrap().messages, 8);
        taken.row("system", "taken_in");

        let on = rig.run(rig.plan(runtime, &says("four", "Fourth.")).after(&taken));
        succeeded(&on);
    }
}

#[test]
fn a_session_that_a_person_is_at_work_in_is_not_gone_on_with() {
    for runtime in BOTH {
        let rig = Rig::new();
        let first = rig.run(rig.plan(runtime, &says("one", "First.")));
        succeeded(&first);
        // The person's claude is in the middle of a turn.
        let script = ModelScript::new().step(ModelScriptStep::tools([rig.endless()]));
        let mut plan = rig.plan(runtime, "");
        let mut person = Command::new(plan.claude().program.clone())
            .args(["-p", &format!("by hand {script}"), "--resume", first.session_id().as_str()])
            .args(["--permission-mode", "bypassPermissions"])
            .current_dir(rig.path("work"))
            .env_clear()
            .envs(&plan.brief.env)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let [tool, _] = rig.pids();
        let own = rig.own(&first.session_id());
        wait("claude's file", || {
            let text = std::fs::read_to_string(&own).unwrap();
            text.contains("by hand").then_some(())
        });
        let refused = rig.run(rig.plan(runtime, &says("two", "Second.")).after(&first));
        person.kill().unwrap();
        person.wait().unwrap();
        let _gone = kill_process(tool, Signal::KILL);
        let error = refused.result.error.as_ref().expect("it was refused");
        assert_eq!(error.class, ErrorClass::SessionMovedOn, "{error:#?}");
        assert!(error.message.contains("the session was continued outside Heeler"), "{error:#?}");
        assert_eq!((refused.sent.len(), refused.rows.len()), (0, 0));
    }
}

/// The id of the last thing that the agent said.
#[track_caller]
fn last_said(end: &End) -> Uuid {
    let said = end.session.iter().rfind(|row| row["type"] == "assistant").expect("it spoke");
    said["uuid"].as_str().unwrap().parse().unwrap()
}

fn fork(rig: &Rig, runtime: RuntimeType, prompt: &str, source: &End, at: Uuid) -> Plan {
    let mut plan = rig.plan(runtime, &says(prompt, "Forked."));
    let (source, id) = (source.session_id(), new_session());
    plan.spec.session.start = SessionStart::Fork { source, id, at: Some(at) };
    plan
}

/// claude's own file tells that all is remembered, and where turns end: of seven messages the second,
/// fifth and last; also when it is read as that of a person's session.
#[track_caller]
fn read_as_it_is(end: &End, own: &Utf8Path) {
    let log = &end.result.session.as_ref().unwrap().log;
    let page = load_history(log, Some(own), None, 50).unwrap();
    let forgotten: Vec<_> = page.messages.iter().filter(|message| !message.in_context).collect();
    assert!(page.total == 7 && forgotten.is_empty(), "{forgotten:#?}");
    let safe = page.messages.iter().filter(|message| message.fork_safety == ForkSafety::Safe);
    assert_eq!(safe.map(|message| message.number).collect::<Vec<_>>(), [2, 5, 7]);
    for (asked, found) in [(1, None), (2, Some(2)), (4, Some(2)), (6, Some(5)), (7, Some(7))] {
        let cut = find_fork_point(log, Some(own), Some(asked)).ok();
        assert_eq!(cut.map(|cut| cut.number), found, "{asked}");
    }
    let projects = own.parent().unwrap().parent().unwrap().to_owned();
    let folder = NativeFolder { program: NativeProgram::Claude, path: projects };
    let native = native::find(&folder, end.session_id().as_str()).unwrap();
    assert_eq!((native.messages, native.is_estimate), (7, false));
    assert_eq!(native.last_entry, page.messages.last().unwrap().uuid);
    assert!(native.title.as_ref().unwrap().starts_with("one"), "{native:?}");
    assert!(native.cwd.as_ref().unwrap().ends_with("work") && native.tokens > 0, "{native:?}");
    let whole = load_history(own, Some(own), None, 50).unwrap();
    assert_eq!(whole.total, 7);
    assert!(whole.messages.iter().all(|message| message.in_context));
}

#[test]
fn a_fork_at_each_safe_message_has_exactly_what_was_said_before() {
    for runtime in BOTH {
        let rig = Rig::new();
        let first = rig.run(rig.plan(runtime, &says("one", "First.")));
        let call = |word: &str| ("Bash", json!({"command": format!("echo {word}")}));
        let tools =
            ModelScript::new().step(ModelScriptStep::tools([call("a"), call("b")])).text("Second.");
        let second = rig.run(rig.plan(runtime, &format!("two {tools}")).after(&first));
        let third = rig.run(rig.plan(runtime, &says("three", "Third.")).after(&second));
        succeeded(&third);
        let whole = {
            let mut whole = shown(&third);
            whole.push("assistant: Third.".to_owned());
            whole
        };
        let own = rig.own(&first.session_id());
        read_as_it_is(&third, &own);
        let before = std::fs::read(&own).unwrap();
        let cuts = [(&first, 2), (&second, 8), (&third, 10)];
        // All at once: they do not wait for each other or for the source.
        let live: Vec<_> = cuts
            .iter()
            .map(|(end, _)| rig.start(fork(&rig, runtime, "branch", &first, last_said(end))))
            .collect();
        let ends: Vec<_> = live.into_iter().map(crate::rig::Live::finish).collect();
        let asked = rig.api.messages();
        for ((_, length), end) in cuts.iter().zip(&ends) {
            succeeded(end);
            let id = end.session_id();
            let own = |request: &&heeler_testkit::ApiRequest| {
                request.header("x-claude-code-session-id") == Some(id.as_str())
            };
            let sent = asked.iter().find(own).expect("the model was asked").history();
            let sent: Vec<_> =
                sent.iter().map(|line| line.split(" MOCK").next().unwrap().trim()).collect();
            assert_eq!(sent[..sent.len() - 1], whole[..*length], "{whole:#?}");
            assert_eq!(sent.last(), Some(&"user: branch"));
        }
        assert_eq!(std::fs::read(&own).unwrap(), before, "the source stays as it is");
        let mut forks: Vec<_> =
            ends.iter().map(|end| std::fs::read(rig.own(&end.session_id())).unwrap()).collect();
        forks.dedup();
        assert_eq!(forks.len(), 3, "they differ");
    }
}

#[test]
fn a_fork_whose_first_run_was_cut_off_goes_on_or_begins_again() {
    for runtime in BOTH {
        let rig = Rig::new();
        let first = rig.run(rig.plan(runtime, &says("one", "First.")));
        succeeded(&first);
        let at = last_said(&first);
        // Before claude had made it: the same id is free.
        let mut plan = fork(&rig, runtime, "two", &first, at);
        let start = plan.spec.session.start.clone();
        plan.claude().program = "/nonexistent/claude".into();
        let end = rig.run(plan);
        assert_eq!(end.result.error.as_ref().unwrap().class, ErrorClass::NotStarted);
        assert!(!end.result.session.as_ref().unwrap().resumable);
        let mut plan =
            rig.script(runtime, &ModelScript::new().step(ModelScriptStep::tools([rig.endless()])));
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        plan.spec.session.start = start.clone();
        let spec = plan.spec.clone();
        let mut live = rig.start(plan);
        let [_, claude] = rig.pids();
        // After: its own file is there, and its name is taken.
        live.child.kill().unwrap();
        live.child.wait().unwrap();
        rig.settle(&spec);
        super::gone(claude);
        let own = rig.own(start.id());
        let made = std::fs::read(&own).unwrap();
        let mut plan = rig.plan(runtime, &says("three", "Third."));
        plan.spec.session.start = start.clone();
        let end = rig.run(plan);
        succeeded(&end);
        assert_eq!(&end.session_id(), start.id());
        assert!(std::fs::read(&own).unwrap().starts_with(&made));
        let told = shown(&end);
        assert_eq!(told[..2], ["user: one", "assistant: First."], "{told:#?}");
        assert_eq!(told.last().unwrap(), "user: three", "{told:#?}");
    }
}

#[test]
fn the_files_are_recorded_at_the_end_of_a_turn() {
    for runtime in BOTH {
        let rig = Rig::new();
        let git = Command::new("git")
            .args(["init", "-q", rig.path("work").as_str()])
            .status()
            .expect("git is installed");
        assert!(git.success());
        let script = ModelScript::new()
            .step(ModelScriptStep::tools([rig.write("new.txt", "x")]))
            .text("Done.");
        let mut plan = rig.script(runtime, &script);
        plan.spec.workspaces = Some(rig.path("state/workspaces"));
        let end = rig.run(plan);
        succeeded(&end);
        let row = end.session.iter().rfind(|row| row["subtype"] == "snapshot");
        let row = row.unwrap_or_else(|| panic!("no snapshot: {:#?}", end.rows));
        assert_eq!(row["messageUuid"], json!(last_said(&end).to_string()));
        assert_eq!(row["snapshot"]["top"], json!(rig.path("work")));
    }
}
