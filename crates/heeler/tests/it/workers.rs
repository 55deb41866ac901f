//! Workers and tasks: what an agent does with its tools of the fleet, with the real program.

use std::collections::HashSet;
use std::io::Write as _;
use std::process::{Child, ChildStdin, Stdio};

use heeler_engine::fault::FaultPoint;
use heeler_model::{JobStatus, TriggerType};
use serde_json::Value as Json;

use crate::daemon_ends::{dies, dying_at};
use crate::daemon_kills::Herd;
use crate::daemon_lives::{ask, wanted};
use crate::fleet::{Fleet, Ran};
use crate::trigger::{coordinator, ended, fleet, scripted, wait_for};

/// An agent that does what it is told; a long task until there is a file `go`, an endless one for ever.
const CODER: &str = "{when: {prompt: long}, do: [{say: Working.}, \
     {run: 'touch at-work; until test -e go; do sleep 0.01; done'}, {say: 'Heard {prompt}.'}], \
     else: [{when: {prompt: endless}, do: [{run: 'touch endless; exec tail -f /dev/null'}], \
     else: [{say: 'Did {prompt} in turn {turn}.'}]}]}";

fn coder() -> String {
    format!("{}\ninstances: {{max_concurrent: 9}}", scripted(CODER))
}

/// A step that calls a tool of the fleet and says what came of it.
fn call(tool: &str, input: &str) -> String {
    format!("{{call: mcp__heeler__{tool}, input: {{{input}}}}}, {{say: '{{output}}'}}")
}

fn run(command: &str) -> String {
    format!("{{run: '{command}'}}")
}

fn until_there(file: &str) -> String {
    run(&format!("until test -e {file}; do sleep 0.01; done"))
}

/// A conversation in lines.
struct Chat {
    child: Child,
    input: ChildStdin,
}

impl Chat {
    fn begin(fleet: &Fleet) -> Chat {
        let mut command = fleet.command(&["chat", "lead", "--no-insights"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        Chat { child, input }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn leave(self) -> Ran {
        drop(self.input);
        ended(self.child)
    }
}

/// The text of a file of the only session, by what its name has behind the session's id.
fn of_session(fleet: &Fleet, name: &str) -> Option<String> {
    let folder = fleet.file("home/.heeler/sessions");
    let mut names = std::fs::read_dir(&folder).ok()?.flatten();
    let id = names.find_map(|it| {
        let name = it.file_name().into_string().ok()?;
        (!name.starts_with('.')).then(|| name.strip_suffix(".json").map(str::to_owned))?
    })?;
    std::fs::read_to_string(folder.join(format!("{id}{name}"))).ok()
}

#[track_caller]
fn wait_for_words(fleet: &Fleet, name: &str, words: &str) {
    wait_for(words, || of_session(fleet, name).filter(|text| text.contains(words)).map(drop));
}

#[test]
fn a_coordinator_has_workers_whose_transcripts_are_kept_and_whom_the_person_can_talk_to() {
    let steps = [
        call("spawn_worker", "agent: coder, task: one"),
        call("wait_for_worker", "names: [coder-1]"),
        call("message_worker", "name: coder-1, message: more"),
        call("wait_for_worker", "names: [coder-1]"),
        call("spawn_worker", "agent: coder, task: a long one, name: ada"),
        until_there("at-work"),
        call("message_worker", "name: ada, message: hurry"),
        run("touch go"),
        call("wait_for_worker", "names: [ada]"),
        call("spawn_worker", "agent: coder, task: an endless one"),
        until_there("endless"),
        call("stop_worker", "name: coder-2"),
        call("wait_for_worker", ""),
        call("list_workers", ""),
        "{say: All is done.}".to_owned(),
    ];
    let fleet = fleet(&[("lead", &coordinator(&steps.join(", "))), ("coder", &coder())]);
    let mut chat = Chat::begin(&fleet);
    chat.say("begin");
    wait_for_words(&fleet, ".transcript.ndjson", "All is done.");
    wait_for_words(&fleet, ".workers/coder-1.ndjson", "Did more in turn 2.");
    wait_for_words(&fleet, ".workers/ada.ndjson", "hurry");
    wait_for_words(&fleet, ".workers/coder-2.ndjson", "an endless one");
    chat.say("/view coder-1");
    chat.say("and again");
    wait_for_words(&fleet, ".workers/coder-1.ndjson", "Did and again in turn 3.");
    let said = chat.leave().ok();
    for words in [
        "worker coder-1 is working (job-",
        "), and said:\nDid one in turn 1.\n",
        "coder-1 continues in its session (job-",
        "), and said:\nDid more in turn 2.\n",
        "worker ada is working (job-",
        "ada is working and received the message\n",
        "coder-2 is being stopped; call wait_for_worker to wait for its end\n",
        "coder-2 failed: ",
        "is done; task: a long one\n",
    ] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    // All of a worker's jobs are done in one session, and all but the person's are the coordinator's.
    let jobs = fleet.jobs();
    let spawned = jobs.iter().filter(|job| job.head.trigger_type == TriggerType::Spawned);
    let names: Vec<_> = spawned.clone().rev().filter_map(|job| job.worker()).collect();
    assert_eq!(names, ["coder-1", "coder-1", "ada", "coder-2"]);
    let lead = jobs.iter().find(|job| job.head.agent == "lead").unwrap();
    assert!(spawned.clone().all(|job| job.trigger_id == lead.head.id.to_string()));
    let first = spawned.clone().next_back().unwrap().head.session_id.clone();
    let in_it = jobs.iter().filter(|job| job.head.session_id == first);
    assert_eq!(in_it.count(), 3);
}

#[test]
fn what_an_agent_may_not_start_is_refused_with_the_key_that_says_so() {
    let steps = [
        call("spawn_worker", "agent: coder, task: one"),
        call("spawn_worker", "agent: coder, task: two"),
        call("spawn_worker", "agent: codr, task: two"),
        call("start_job", "agent: coder, prompt: two"),
    ];
    let lead = format!("{}\nspawn: {{max_jobs: 1, agents: [coder]}}", scripted(&steps.join(", ")));
    let fleet = fleet(&[("lead", &lead), ("coder", &coder())]);
    let said = fleet.run(&["trigger", "lead"]).ok();
    assert!(said.contains("worker coder-1 is working"), "{said}");
    let refused = "has started 1 jobs, the maximum (`spawn` of lead in the config)";
    assert_eq!(said.matches(refused).count(), 2, "{said}");
    assert!(said.contains("did you mean `coder`?"), "{said}");
    assert_eq!(fleet.jobs().len(), 2);
}

#[test]
fn an_agent_goes_on_in_no_session_of_another_conversation() {
    let program = env!("CARGO_BIN_EXE_heeler");
    let tries = |options: &str, file: &str| {
        let ask = format!("{program} trigger coder --session $(cat id) {options} --detach -p more");
        run(&format!("{ask} > {file} 2>&1; echo $? > {file}.code"))
    };
    let steps = [
        tries("", "said"),
        tries("--fork", "forked"),
        call("spawn_worker", "agent: coder, task: one"),
        call("wait_for_worker", ""),
        call("message_worker", "name: coder-1, message: more"),
        call("wait_for_worker", ""),
    ];
    let fleet = fleet(&[("stranger", &coordinator(&steps.join(", "))), ("coder", &coder())]);
    fleet.run(&["trigger", "coder", "-p", "a person's own"]).ok();
    let own = fleet.wait_until_ended().head.session_id.unwrap();
    fleet.write("id", own.as_str());
    let said = fleet.run(&["trigger", "stranger"]).ok();
    assert!(said.contains("Did more in turn 2."), "its own worker goes on: {said}");
    for file in ["said", "forked"] {
        let said = fleet.read(file);
        assert_eq!(fleet.read(&format!("{file}.code")), "5\n", "{said}");
        let refused =
            format!("session {own} belongs to no job that was started in the conversation of");
        assert!(said.contains(&refused), "{said}");
    }
    let jobs = fleet.jobs();
    let in_it = jobs.iter().filter(|job| job.head.session_id.as_ref() == Some(&own));
    assert_eq!((jobs.len(), in_it.count()), (4, 1));
}

#[test]
fn a_worker_leaves_the_session_that_its_agent_keeps_to_others() {
    let steps = [
        call("spawn_worker", "agent: coder, task: one"),
        call("wait_for_worker", ""),
        call("start_job", "agent: coder, prompt: two"),
        call("wait_for_worker", "names: [coder-2]"),
        call("list_workers", ""),
    ];
    let keeps = format!("{}\nsession: {{mode: persistent}}", coder());
    let fleet = fleet(&[("lead", &coordinator(&steps.join(", "))), ("coder", &keeps)]);
    fleet.run(&["trigger", "coder", "-p", "mine"]).ok();
    let said = fleet.run(&["trigger", "lead"]).ok();
    assert!(said.contains("coder-1 is done (job-"), "{said}");
    assert!(said.contains("is done; task: two"), "{said}");
    fleet.run(&["trigger", "coder", "-p", "again"]).ok();
    let jobs = fleet.jobs();
    let session = |prompt: &str| {
        let job = jobs.iter().find(|job| job.prompt.as_deref() == Some(prompt)).unwrap();
        job.head.session_id.clone().unwrap()
    };
    let kept = session("mine");
    assert_eq!(session("again"), kept);
    assert_ne!(session("one"), kept);
    assert_ne!(session("two"), kept);
}

#[test]
fn a_wait_goes_on_when_the_daemon_is_killed_and_another_comes() {
    let steps = [
        call("spawn_worker", "agent: coder, task: a long one"),
        call("wait_for_worker", ""),
        "{say: All is done.}".to_owned(),
    ];
    let fleet = fleet(&[("lead", &coordinator(&steps.join(", "))), ("coder", &coder())]);
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "lead", "--detach"]).ok();
    wait_for("the worker", || fleet.file("at-work").exists().then_some(()));
    fleet.kill("start");
    fleet.run(&["start", "-d"]).ok();
    fleet.write("go", "");
    let lead = wait_for("the coordinator's end", || {
        let lead = fleet.jobs().into_iter().find(|job| job.head.agent == "lead")?;
        lead.head.status.is_final().then_some(lead)
    });
    fleet.run(&["stop"]).ok();
    assert_eq!(lead.head.status, JobStatus::Completed);
    let log = fleet.read(&format!(".heeler/jobs/{}.jsonl", lead.head.id));
    assert!(log.contains("coder-1 is done (job-") && log.contains("Heard a long one."), "{log}");
}

#[test]
fn a_coordinator_that_is_interrupted_while_it_waits_finds_its_workers_again() {
    let begin = [
        call("spawn_worker", "agent: coder, task: an endless one"),
        "{say: Now I wait.}".to_owned(),
        call("wait_for_worker", ""),
    ];
    let look = [
        call("list_workers", ""),
        call("stop_worker", "name: coder-1"),
        call("wait_for_worker", ""),
        "{say: All is done.}".to_owned(),
    ];
    let (begin, look) = (begin.join(", "), look.join(", "));
    let lead = coordinator(&format!("{{when: {{prompt: begin}}, do: [{begin}], else: [{look}]}}"));
    let fleet = fleet(&[("lead", &lead), ("coder", &coder())]);
    let mut chat = Chat::begin(&fleet);
    chat.say("begin");
    wait_for_words(&fleet, ".transcript.ndjson", "Now I wait.");
    wait_for("the worker", || fleet.file("endless").exists().then_some(()));
    let jobs = fleet.jobs();
    let lead = jobs.iter().find(|job| job.head.agent == "lead").unwrap();
    fleet.run(&["cancel", lead.head.id.as_str()]).ok();
    chat.say("look");
    wait_for_words(&fleet, ".transcript.ndjson", "All is done.");
    let said = chat.leave().ok();
    assert!(said.contains(") is still working; task: an endless one\n"), "{said}");
    assert!(said.contains("coder-1 failed: "), "{said}");
}

#[test]
fn a_coordinator_whose_turn_was_taken_back_still_has_the_workers_of_before() {
    let begin = call("spawn_worker", "agent: coder, task: an endless one");
    let look = [
        call("list_workers", ""),
        call("stop_worker", "name: coder-1"),
        call("spawn_worker", "agent: coder, task: one"),
        call("wait_for_worker", ""),
        "{say: All is done.}".to_owned(),
    ];
    let look = look.join(", ");
    let lead = coordinator(&format!(
        "{{when: {{prompt: begin}}, do: [{begin}], else: [{{when: {{prompt: look}}, do: [{look}], \
         else: [{{say: Hi.}}]}}]}}"
    ));
    let fleet = fleet(&[("lead", &lead), ("coder", &coder())]);
    let mut chat = Chat::begin(&fleet);
    chat.say("begin");
    chat.say("hello");
    wait_for_words(&fleet, ".transcript.ndjson", "Hi.");
    wait_for("the worker", || fleet.file("endless").exists().then_some(()));
    chat.say("/undo");
    chat.say("look");
    wait_for_words(&fleet, ".transcript.ndjson", "All is done.");
    let said = chat.leave().ok();
    assert!(said.contains("is still working; task: an endless one\n"), "{said}");
    assert!(said.contains("worker coder-2 is working"), "{said}");
    assert!(said.contains("coder-1 failed: "), "{said}");
    let jobs = fleet.jobs();
    let sessions = jobs.iter().filter(|job| job.head.agent == "lead");
    let sessions: HashSet<_> = sessions.map(|job| job.head.session_id.clone()).collect();
    assert_eq!(sessions.len(), 2);
}

#[test]
fn a_worker_whose_start_was_done_but_not_answered_is_started_once() {
    let steps = [call("spawn_worker", "agent: coder, task: one"), call("wait_for_worker", "")];
    let agents = [("lead", coordinator(&steps.join(", "))), ("coder", coder())];
    let config = agents.map(|(name, keys)| {
        let keys = keys.replace('\n', "\n    ");
        format!("  - name: {name}\n    {keys}\n")
    });
    let herd = Herd::of(&format!("agents:\n{}", config.concat()));
    let (mut life, mut client) = dying_at(&herd, FaultPoint::RequestDone);
    let lead = ask(&mut client, wanted("lead"));
    dies(&mut life, FaultPoint::RequestDone);
    let (mut life, client) = herd.begin(&[]);
    drop(client);
    let ended = herd.ends(&lead);
    assert_eq!(ended.head.status, JobStatus::Completed, "{ended:#?}");
    let jobs = herd.fleet.jobs();
    assert_eq!(jobs.iter().filter(|job| job.head.agent == "coder").count(), 1);
    let log = std::fs::read_to_string(herd.dir().job_transcript(&lead)).unwrap();
    assert!(log.contains("Did one in turn 1."), "{log}");
    life.kill();
}

#[test]
fn a_coordinator_fills_the_task_list_of_its_conversation() {
    let steps = [
        call("list_tasks", ""),
        call("add_tasks", "tasks: [plan it, build it]"),
        call("finish_task", "number: 2"),
        call("list_tasks", ""),
        "{say: All is done.}".to_owned(),
    ];
    let fleet = fleet(&[("lead", &scripted(&steps.join(", ")))]);
    let mut chat = Chat::begin(&fleet);
    chat.say("/tasks add read it");
    chat.say("begin");
    wait_for_words(&fleet, ".transcript.ndjson", "All is done.");
    let said = chat.leave().ok();
    let list = "1. read it\nadded:\n2. plan it\n3. build it\ntask 2 is done\n1. read it\n2. plan it (done)\n3. build it\n";
    assert!(said.contains(list), "{said}");
    let sheet: Json = serde_json::from_str(&of_session(&fleet, ".json").unwrap()).unwrap();
    let tasks = sheet["heeler"]["tasks"].as_array().unwrap();
    let tasks = tasks.iter().map(|task| (task["text"].as_str().unwrap(), task["done"] == true));
    let expected = [("read it", false), ("plan it", true), ("build it", false)];
    assert_eq!(tasks.collect::<Vec<_>>(), expected);
    // Outside of a conversation there is none.
    let said = fleet.run(&["trigger", "lead"]).ok();
    assert!(said.contains("this job is not a turn of a conversation"), "{said}");
}
