//! Sessions that fork, go on, go and come back, with agents that say what they remember.

use std::path::PathBuf;

use serde_json::Value as Json;

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted, wait_for};

const REMEMBERS: &str = "{say: 'Turn {turn}: {prompt}. Before: {remembered}.'}";

/// A fleet whose agent keeps one session, with so many turns in it; returns the session too.
fn with_turns(turns: usize) -> (Fleet, String) {
    let agent = format!("session: {{mode: persistent}}\n{}", scripted(REMEMBERS));
    let fleet = fleet(&[("coder", &agent)]);
    for turn in 1..=turns {
        fleet.run(&["trigger", "coder", "-p", &format!("p{turn}")]).ok();
    }
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    (fleet, session.as_str().unwrap().to_owned())
}

impl Fleet {
    fn session(&self, id: &str) -> Json {
        self.json(&["session", "show", id, "--json"])["session"].clone()
    }

    /// Every file of a session: our log, and what its agent remembers.
    fn files_of(&self, id: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let session = self.session(id);
        let own = session["agentSessionId"].as_str().unwrap();
        let mut files = Vec::new();
        for folder in [".heeler/agent-sessions/projects", "home/.heeler/scripted/projects"] {
            for project in std::fs::read_dir(self.file(folder)).unwrap().flatten() {
                let file = project.path().join(format!("{own}.jsonl"));
                if let Ok(bytes) = std::fs::read(&file) {
                    files.push((file, bytes));
                }
            }
        }
        assert_eq!(files.len(), 2, "{files:?}");
        files
    }

    fn fork(&self, args: &[&str]) -> Json {
        self.json(&[&["session", "fork"], args, &["--json"]].concat())
    }
}

#[test]
fn a_fork_knows_its_source_up_to_the_message_and_the_source_stays_as_it_is() {
    let (fleet, source) = with_turns(3);
    let before = fleet.files_of(&source);
    for (at, remembered) in [(2, "p1"), (4, "p1 | p2"), (6, "p1 | p2 | p3")] {
        let fork = fleet.fork(&[&source, "--at-message", &at.to_string()]);
        assert_eq!(
            (&fork["parent"], &fork["atMessage"]),
            (&Json::from(source.as_str()), &at.into())
        );
        let id = fork["id"].as_str().unwrap();
        let made = fleet.session(id);
        assert_eq!(made["status"], "created");
        assert_eq!((&made["messageCount"], &made["forkedAtMessage"]), (&at.into(), &at.into()));
        let said = fleet.run(&["session", "resume", id, "-p", "other"]).ok();
        let turn = at / 2 + 1;
        assert_eq!(said.trim(), format!("Turn {turn}: other. Before: {remembered}."));
        let ran = fleet.session(id);
        assert_eq!((&ran["status"], &ran["messageCount"]), (&"paused".into(), &(at + 2).into()));
        let said = fleet.run(&["session", "resume", id, "-p", "more"]).ok();
        assert!(said.contains(&format!("Before: {remembered} | other.")), "{said}");
    }
    assert_eq!(fleet.files_of(&source), before, "the source was written to");
    let said = fleet.run(&["trigger", "coder", "-p", "p4"]).ok();
    assert_eq!(said.trim(), "Turn 4: p4. Before: p1 | p2 | p3.", "a fork is not the agent's own");
}

#[test]
fn a_cut_that_is_not_safe_moves_to_the_nearest_before_it_and_that_is_said() {
    let (fleet, source) = with_turns(2);
    let fork = fleet.fork(&[&source, "--at-message", "3"]);
    assert_eq!((&fork["atMessage"], &fork["askedFor"]), (&2.into(), &3.into()));
    let told = fleet.run(&["session", "fork", &source, "--at-message", "3"]);
    assert!(told.stderr.contains("message 3 is no possible fork point"), "{}", told.stderr);
    let told = fleet.run(&["session", "fork", &source, "--at-message", "1"]).fails(5);
    assert!(told.contains("--history"), "{told}");
    let told = fleet.run(&["session", "fork", &source, "--at-message", "9"]).fails(5);
    assert!(told.contains("there is no message 9: the session has 4"), "{told}");
    fleet.run(&["session", "fork", "sess-00000000"]).fails(4);
}

#[test]
fn a_fork_can_be_forked_before_it_has_begun_and_many_run_side_by_side() {
    let (fleet, source) = with_turns(2);
    let first = fleet.fork(&[&source, "-m", "2"])["id"].as_str().unwrap().to_owned();
    let second = fleet.fork(&[&first])["id"].as_str().unwrap().to_owned();
    let resume = |id: &str, prompt: &str| {
        fleet
            .command(&["session", "resume", id, "-p", prompt])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let forks = [(first, "a"), (second, "b")];
    let running: Vec<_> = forks.iter().map(|(id, prompt)| resume(id, prompt)).collect();
    for (ran, (_, prompt)) in running.into_iter().zip(&forks) {
        let said = String::from_utf8(ran.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(said.trim(), format!("Turn 2: {prompt}. Before: p1."));
    }
    let tree = fleet.json(&["session", "list", "--json"]);
    assert_eq!(tree["total"], 3);
}

#[test]
fn a_fork_may_run_at_once_and_be_another_agents() {
    let agents = [
        ("coder", scripted(REMEMBERS)),
        ("critic", scripted("{say: 'I, {prompt}: {remembered}'}")),
        ("shell", "runtime: command\ncommand: 'true'".to_owned()),
    ];
    let fleet = fleet(&agents.each_ref().map(|(name, keys)| (*name, keys.as_str())));
    fleet.run(&["trigger", "coder", "-p", "p1"]).ok();
    let source = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let source = source.as_str().unwrap();
    let said =
        fleet.run(&["session", "fork", source, "--as", "critic", "--run", "-p", "judge"]).ok();
    assert_eq!(said.trim(), "I, judge: p1");
    let told = fleet.run(&["session", "fork", source, "--as", "shell"]).fails(5);
    assert!(told.contains("is a command"), "{told}");
}

#[test]
fn a_job_is_forked_behind_its_own_end() {
    let (fleet, source) = with_turns(3);
    let jobs = fleet.json(&["jobs", "--json"])["jobs"].as_array().unwrap().clone();
    let second = jobs[1]["id"].as_str().unwrap();
    let fork = fleet.json(&["jobs", "fork", second, "--json"]);
    assert_eq!((&fork["parent"], &fork["atMessage"]), (&Json::from(source), &4.into()));
    fleet.run(&["jobs", "fork", "job-2020-01-01-aaaaaa"]).fails(4);
}

#[test]
fn the_last_session_of_an_agent_goes_on() {
    let (fleet, _) = with_turns(1);
    let said = fleet.run(&["agent", "resume", "coder", "-p", "again"]).ok();
    assert_eq!(said.trim(), "Turn 2: again. Before: p1.");
    let said = fleet.run(&["agent", "resume", "coder"]).ok();
    assert!(said.starts_with("Turn 3: You were stopped before you had finished."), "{said}");
}

#[test]
fn a_deleted_session_is_in_the_trash_until_it_is_restored_or_purged() {
    let (fleet, source) = with_turns(2);
    let log = fleet.session(&source)["log"].as_str().map(PathBuf::from).unwrap();
    let fork = fleet.fork(&[&source])["id"].as_str().unwrap().to_owned();
    let told = fleet.run(&["session", "delete", &source]).fails(5);
    assert!(told.contains(&fork), "a fork that has not begun needs it: {told}");
    fleet.run(&["session", "delete", &fork]).ok();
    let bytes = std::fs::read(&log).unwrap();
    fleet.run(&["session", "delete", &source]).ok();
    assert_eq!(fleet.json(&["session", "list", "--json"])["total"], 0);
    wait_for("the log to move", || (!log.exists()).then_some(()));
    let trashed = fleet.file(&format!(".heeler/trash/sessions/{source}"));
    assert_eq!(std::fs::read(trashed.join(log.file_name().unwrap())).unwrap(), bytes);
    fleet.run(&["session", "delete", &source]).fails(5);

    fleet.run(&["session", "restore", &source]).ok();
    wait_for("the log to come back", || log.exists().then_some(()));
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
    let said = fleet.run(&["session", "resume", &source, "-p", "p3"]).ok();
    assert_eq!(said.trim(), "Turn 3: p3. Before: p1 | p2.");

    // What a fork in the trash may need stays.
    fleet.run(&["session", "delete", &fork, "--purge", "--yes"]).ok();
    let told = fleet.run(&["session", "delete", &source, "--purge"]).fails(5);
    assert!(told.contains("cannot be undone"), "{told}");
    fleet.run(&["session", "delete", &source, "--purge", "--yes"]).ok();
    wait_for("the files to go", || (!log.exists() && !trashed.exists()).then_some(()));
    let told = fleet.run(&["session", "restore", &source]).fails(4);
    assert!(told.contains("purged"), "{told}");
}

#[test]
fn a_cleanup_takes_what_is_completed_or_expired_and_old_enough() {
    let agents = [
        ("once", scripted("{say: Done.}")),
        ("kept", format!("session: {{mode: persistent}}\n{}", scripted("{say: Hi.}"))),
    ];
    let fleet = fleet(&agents.each_ref().map(|(name, keys)| (*name, keys.as_str())));
    fleet.run(&["trigger", "once"]).ok();
    fleet.run(&["trigger", "kept"]).ok();
    let status = |agent: &str| {
        let list = fleet.json(&["session", "list", "--agent", agent, "--json"]);
        list["sessions"][0]["status"].as_str().unwrap_or("gone").to_owned()
    };
    assert_eq!((status("once"), status("kept")), ("completed".into(), "paused".into()));
    let told = fleet.json(&["session", "cleanup", "--json"]);
    assert_eq!(told["total"], 0, "neither is older than a week");
    let old = ["session", "cleanup", "--older-than", "1s", "--dry-run", "--json"];
    let told = wait_for("it to be a second old", || {
        Some(fleet.json(&old)).filter(|told| told["total"] != 0)
    });
    assert_eq!((&told["total"], &told["dryRun"]), (&1.into(), &true.into()));
    let told = fleet.json(&["session", "cleanup", "--older-than", "1s", "--json"]);
    assert_eq!(told["total"], 1);
    assert_eq!((status("once"), status("kept")), ("gone".into(), "paused".into()));
}

#[test]
fn a_deleted_session_is_not_gone_on_with_nor_does_its_tombstone_take_anothers_log() {
    let (fleet, source) = with_turns(1);
    let own = fleet.session(&source)["agentSessionId"].as_str().unwrap().to_owned();
    let log = fleet.session(&source)["log"].as_str().map(PathBuf::from).unwrap();
    fleet.run(&["session", "export", &source, "-o", "s.json"]).ok();
    fleet.run(&["session", "delete", &source]).ok();
    let told = fleet.run(&["session", "resume", &source, "-p", "x"]).fails(4);
    assert!(told.contains(&format!("session {source} is deleted")), "{told}");
    let told = fleet.run(&["trigger", "coder", "--session", &own, "-p", "x"]).fails(5);
    assert!(told.contains(&format!("heeler session restore {source}")), "{told}");
    let told = fleet.run(&["session", "import", "s.json"]).fails(5);
    assert!(told.contains("it is in the trash"), "{told}");
    let listed = fleet.json(&["session", "restore", "--json"]);
    assert_eq!(listed["sessions"][0]["id"], source.as_str());

    fleet.run(&["session", "delete", &source, "--purge", "--yes"]).ok();
    wait_for("the log to go", || (!log.exists()).then_some(()));
    let taken = fleet.json(&["session", "import", "s.json", "--json"]);
    let id = taken["id"].as_str().unwrap();
    assert_ne!(id, source, "a purged id is not used again");
    let bytes = std::fs::read(&log).unwrap();
    // Every change of sessions has tombstones looked at.
    let fork = fleet.fork(&[id])["id"].as_str().unwrap().to_owned();
    fleet.run(&["session", "delete", &fork]).ok();
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
    let said = fleet.run(&["session", "resume", id, "-p", "p2"]).ok();
    assert_eq!(said.trim(), "Turn 2: p2. Before: p1.");
}

#[test]
fn a_session_that_a_job_waits_for_is_not_deleted() {
    let agent = format!(
        "instances: {{max_concurrent: 1}}\n{}",
        scripted("{run: 'read line < gate'}, {say: Hi.}")
    );
    let fleet = fleet(&[("coder", &agent)]);
    let gate = fleet.file("gate");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &gate,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let mut open = std::fs::File::options().read(true).write(true).open(gate).unwrap();
    std::io::Write::write_all(&mut open, b"\n").unwrap();
    fleet.run(&["trigger", "coder"]).ok();
    let first = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let first = first.as_str().unwrap();
    // Another job keeps the agent busy, so that this one waits.
    fleet.run(&["trigger", "coder", "--detach"]).ok();
    let waits = fleet.run(&["trigger", "coder", "--session", first, "--detach", "-q"]).ok();
    let told = fleet.run(&["session", "delete", first]).fails(5);
    assert!(told.contains(waits.trim()), "{told}");
    fleet.run(&["jobs", "cancel", waits.trim()]).ok();
    fleet.run(&["session", "delete", first]).ok();
    std::io::Write::write_all(&mut open, b"\n").unwrap();
    wait_for("the other job to end", || {
        let jobs = fleet.json(&["jobs", "--status", "running", "--json"]);
        (jobs["total"] == 0).then_some(())
    });
}

#[test]
fn jobs_that_find_the_context_full_go_on_from_it_one_after_the_other() {
    let agent =
        "session: {mode: persistent, max_context_tokens: 1}\ninstances: {max_concurrent: 2}";
    let agent =
        format!("{agent}\n{}", scripted("{usage: {input: 50, output: 5}}, {say: '{remembered}'}"));
    let fleet = fleet(&[("coder", &agent)]);
    fleet.run(&["trigger", "coder", "-p", "p1"]).ok();
    for prompt in ["p2", "p3"] {
        fleet.run(&["trigger", "coder", "-p", prompt, "--detach"]).ok();
    }
    wait_for("both to end", || {
        let jobs = fleet.json(&["jobs", "--status", "completed", "--json"]);
        (jobs["total"] == 3).then_some(())
    });
    let said = fleet.run(&["trigger", "coder", "-p", "p4"]).ok();
    let at = |prompt: &str| said.find(prompt).unwrap_or_else(|| panic!("{prompt} is lost: {said}"));
    assert!(at("p1") < at("p2").min(at("p3")), "{said}");
    let sessions = fleet.json(&["session", "list", "--json"]);
    assert_eq!(sessions["total"], 4, "each went on from the one before: {sessions}");
}

#[test]
fn what_is_ours_is_listed_and_removed_only_when_nobody_uses_it() {
    let (fleet, _) = with_turns(1);
    let listed = fleet.json(&["doctor", "--footprint", "--json"]);
    let whats: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect();
    assert!(whats.contains(&"state") && whats.contains(&"home"), "{listed}");
    fleet.run(&["start", "-d"]).ok();
    let told = fleet.run(&["doctor", "--footprint", "--remove", "--yes"]).fails(5);
    assert!(told.contains("in use"), "{told}");
    fleet.run(&["stop"]).ok();
    let told = fleet.run(&["doctor", "--footprint", "--remove"]).fails(5);
    assert!(told.contains("cannot be undone") && fleet.file(".heeler").exists(), "{told}");
    fleet.run(&["doctor", "--footprint", "--remove", "--yes"]).ok();
    assert!(!fleet.file(".heeler").exists() && !fleet.file("home/.heeler").exists());
    assert!(fleet.file("heeler.yaml").exists(), "the config is the user's");
}

#[test]
fn a_session_that_was_not_used_for_too_long_expires_and_can_still_be_named() {
    let agent = format!("session: {{mode: persistent, timeout: 1s}}\n{}", scripted(REMEMBERS));
    let fleet = fleet(&[("coder", &agent)]);
    fleet.run(&["trigger", "coder", "-p", "p1"]).ok();
    let first = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let first = first.as_str().unwrap();
    let used: jiff::Timestamp =
        fleet.session(first)["lastActiveAt"].as_str().unwrap().parse().unwrap();
    wait_for("the second to pass", || {
        (jiff::Timestamp::now().duration_since(used).as_millis() > 1100).then_some(())
    });
    let said = fleet.run(&["trigger", "coder", "-p", "p2"]).ok();
    assert_eq!(said.trim(), "Turn 1: p2. Before: nothing.");
    assert_eq!(fleet.session(first)["status"], "expired");
    let said = fleet.run(&["session", "resume", first, "-p", "p3"]).ok();
    assert_eq!(said.trim(), "Turn 2: p3. Before: p1.");
    assert_eq!(fleet.session(first)["status"], "paused");
}
