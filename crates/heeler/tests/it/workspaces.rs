//! Sessions with their files: what changed, forks with a worktree, and all of it on another machine.

use std::io::{self, Read as _, Write as _};
use std::process::Command;

use serde_json::{Value as Json, json};

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted, wait_for};

/// A turn of three messages: the prompt, the call of a tool, the answer.
const WORKS: &str = "{run: 'cat next >> notes'}, {say: 'Before: {remembered}.'}";

impl Fleet {
    /// What git says in a folder of this fleet.
    #[track_caller]
    fn git(&self, folder: &str, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(args);
        let done = command.current_dir(self.file(folder)).output().unwrap();
        assert!(done.status.success(), "{done:#?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Has the agent add a line to its notes.
    #[track_caller]
    fn turn(&self, session: Option<&str>, line: &str) -> String {
        let folder = match session {
            Some(id) => {
                self.json(&["session", "show", id, "--json"])["session"]["workspace"].clone()
            }
            None => Json::Null,
        };
        let folder = folder.as_str().map_or(self.file("work"), Into::into);
        std::fs::write(folder.join("next"), format!("{line}\n")).unwrap();
        let given = session.map(|id| ["--session", id]);
        let mut args = vec!["trigger", "coder", "-q", "-p", line];
        args.extend(given.iter().flatten());
        self.run(&args).ok()
    }

    fn only_session(&self) -> String {
        let list = self.json(&["session", "list", "--json"]);
        list["sessions"][0]["id"].as_str().unwrap().to_owned()
    }
}

/// A fleet whose agent works in a repository with a file that the user has changed.
fn in_a_repository() -> Fleet {
    in_a_repository_with("")
}

/// The same, with further keys of the agent.
fn in_a_repository_with(more: &str) -> Fleet {
    let keys = format!(
        "working_directory: work\nsession: {{mode: persistent}}\n{more}{}",
        scripted(WORKS)
    );
    let fleet = fleet(&[("coder", &keys)]);
    fleet.write("work/mine", "old\n");
    fleet.write("work/.gitignore", "next\n");
    fleet.git("work", &["init", "-q", "-b", "trunk"]);
    fleet.git("work", &["add", "."]);
    fleet.git("work", &["commit", "-q", "-m", "first"]);
    fleet.write("work/mine", "changed by the user\n");
    fleet
}

fn added(patch: &str) -> Vec<&str> {
    let lines = patch.lines().filter(|line| line.starts_with('+') && !line.starts_with("+++"));
    lines.map(|line| &line[1..]).collect()
}

#[test]
fn what_a_session_changed_is_told_from_what_the_user_had_changed_before() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    fleet.turn(None, "two");
    let id = fleet.only_session();
    let all = fleet.run(&["session", "diff", &id]);
    assert_eq!((added(&all.stdout), all.stderr.as_str()), (vec!["one", "two"], ""));
    let lines = fleet.run(&["session", "diff", &id, "--stat"]).ok();
    assert_eq!(lines, " notes | 2 ++\n 1 file changed, 2 insertions(+)\n");
    // At a message, and at one where nothing was recorded.
    let exact = fleet.run(&["session", "diff", &id, "-m", "3"]);
    assert_eq!((added(&exact.stdout), exact.stderr.as_str()), (vec!["two"], ""));
    let near = fleet.run(&["session", "diff", &id, "-m", "5"]);
    assert_eq!(added(&near.stdout), ["two"]);
    assert!(
        near.stderr.contains("the last one before it, at message 3, is used"),
        "{}",
        near.stderr
    );
    let begin = fleet.run(&["session", "diff", &id, "-m", "1"]);
    assert_eq!(added(&begin.stdout), ["one", "two"]);
    assert!(begin.stderr.contains("before the first turn"), "{}", begin.stderr);
    fleet.run(&["session", "diff", &id, "-m", "9"]).fails(5);

    // A fork without files of its own begins with what is there when it begins.
    let fork = fleet.json(&["session", "fork", &id, "-m", "3", "--json"]);
    let fork = fork["id"].as_str().unwrap();
    fleet.turn(Some(fork), "three");
    let told = fleet.run(&["session", "diff", fork]).ok();
    assert_eq!(added(&told), ["three"]);
}

#[test]
fn files_go_back_to_a_message_and_forward_again() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    fleet.turn(None, "two");
    let id = fleet.only_session();
    let plan = fleet.run(&["session", "rewind", &id, "-m", "3", "--dry-run"]);
    assert_eq!(plan.stdout, "replaced  notes\n");
    assert_eq!(fleet.read("work/notes"), "one\ntwo\n");
    let back = fleet.run(&["session", "rewind", &id, "-m", "3"]);
    assert_eq!(
        (back.stdout.as_str(), back.code),
        ("replaced  notes\n", Some(0)),
        "{}",
        back.stderr
    );
    assert_eq!(fleet.read("work/notes"), "one\n");
    // The user's own change from before the session is still there.
    assert_eq!(fleet.read("work/mine"), "changed by the user\n");
    let state = back.stderr.split_whitespace().next_back().unwrap();
    let listed = fleet.run(&["session", "rewind", &id, "--list"]).ok();
    assert_eq!(listed.trim(), state);
    fleet.run(&["session", "rewind", &id, "--to", state]).ok();
    assert_eq!(fleet.read("work/notes"), "one\ntwo\n");
    fleet.run(&["session", "rewind", &id, "--start"]).ok();
    assert!(!fleet.file("work/notes").exists());
    let same = fleet.run(&["session", "rewind", &id, "--start"]);
    assert!(same.stderr.contains("nothing was changed"), "{}", same.stderr);
    // Mistakes are told, and change nothing.
    fleet.run(&["session", "rewind", &id]).fails(2);
    fleet.run(&["session", "rewind", &id, "--to", "rewind-1"]).fails(4);
    fleet.run(&["session", "rewind", &id, "--to", "../other"]).fails(2);
    fleet.run(&["session", "rewind", &id, "-m", "99"]).fails(5);
}

#[test]
fn files_in_which_an_agent_works_are_not_restored() {
    let agent = |steps| format!("working_directory: work\n{}", scripted(steps));
    let (coder, other) = (agent(WORKS), agent("{run: 'sleep 60'}"));
    let fleet = fleet(&[("coder", &coder), ("other", &other)]);
    fleet.write("work/.gitignore", "next\n");
    fleet.git("work", &["init", "-q", "-b", "trunk"]);
    fleet.turn(None, "one");
    let id = fleet.only_session();
    let job = fleet.run(&["trigger", "other", "--detach", "-q", "-p", "wait"]).ok();
    wait_for("the other agent", || {
        let jobs = fleet.json(&["jobs", "--status", "running", "--json"]);
        jobs["jobs"].as_array().filter(|jobs| !jobs.is_empty()).map(Vec::len)
    });
    let refused = fleet.run(&["session", "rewind", &id, "--start"]).fails(5);
    assert!(refused.contains(job.trim()) && refused.contains("works in"), "{refused}");
    assert_eq!(fleet.read("work/notes"), "one\n");
    fleet.run(&["cancel", job.trim()]).ok();
}

#[test]
fn the_files_of_a_sandboxed_session_are_recorded() {
    let fleet = in_a_repository_with("sandbox: true\n");
    fleet.turn(None, "one");
    let told = fleet.run(&["session", "diff", &fleet.only_session()]);
    assert_eq!((added(&told.stdout), told.stderr.as_str()), (vec!["one"], ""));
}

#[test]
fn a_fork_has_the_files_of_its_message_and_they_go_on_apart() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    fleet.turn(None, "two");
    let id = fleet.only_session();
    let fork = fleet.json(&["session", "fork", &id, "-m", "3", "--workspace", "--json"]);
    let (fork, place) = (fork["id"].as_str().unwrap(), fork["workspace"].as_str().unwrap());
    let notes = |place: &str| std::fs::read_to_string(format!("{place}/notes")).unwrap();
    assert_eq!(notes(place), "one\n");
    assert_eq!(fleet.turn(Some(fork), "other").trim(), "Before: one.");
    assert_eq!(
        (notes(place).as_str(), fleet.read("work/notes").as_str()),
        ("one\nother\n", "one\ntwo\n")
    );
    assert_eq!(added(&fleet.run(&["session", "diff", fork]).ok()), ["other"]);
}

#[test]
fn the_files_of_two_messages_are_compared_whatever_they_are_now() {
    let fleet = in_a_repository();
    for line in ["one", "two", "three"] {
        fleet.turn(None, line);
    }
    let id = fleet.only_session();
    let home = camino::Utf8PathBuf::from_path_buf(fleet.file("home/.heeler")).unwrap();
    let dir = heeler_store::StateDir::open(&fleet.state_dir()).unwrap();
    let records = heeler_query::FleetReader::new(dir, move || heeler_query::QueryContext {
        config: None,
        loaded: None,
        env: Default::default(),
        home: Some(home.clone()),
        zone: jiff::tz::TimeZone::UTC,
    });
    let lines = |from: Option<u64>, to: Option<u64>| {
        let diff = records.diff_to(&id, from, to, crate::fleet::at(0)).unwrap();
        added(&diff.patch.unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(lines(Some(3), Some(6)), ["two"]);
    assert_eq!(lines(None, Some(3)), ["one"]);
    assert_eq!(lines(Some(6), Some(6)), [""; 0]);
    fleet.write("work/notes", "one\ntwo\nthree\nby hand\n");
    assert_eq!(lines(Some(6), Some(9)), ["three"], "what came later does not count");
    assert_eq!(lines(Some(6), None), ["three", "by hand"]);
    std::fs::rename(fleet.file("work"), fleet.file("moved")).unwrap();
    assert_eq!(lines(Some(3), Some(6)), ["two"], "nor is the folder needed");
}

/// Serves a fleet over TCP until it is dropped.
struct Served<'f> {
    fleet: &'f Fleet,
    url: String,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.fleet.run(&["stop", "--force", "-q"]);
    }
}

impl Served<'_> {
    fn new(fleet: &Fleet) -> Served<'_> {
        let text = fleet.read("heeler.yaml");
        fleet.write("heeler.yaml", &format!("web: {{port: auto, token_file: true}}\n{text}"));
        let mut start = fleet.command(&["start", "-d", "--json"]);
        let told = start.env_remove("HEELER_NO_WEB").output().unwrap();
        let told: Json = serde_json::from_slice(&told.stdout).unwrap();
        Served { fleet, url: told["url"].as_str().unwrap().to_owned() }
    }

    /// Downloads a session; returns the code of the reply, what came of it and whether it is whole.
    #[track_caller]
    fn export(&self, token: &str, id: &str, query: &str) -> (u16, Vec<u8>, io::Result<()>) {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let address = format!("{}/api/v1/sessions/{id}/export{query}", self.url);
        let request = agent.get(address).header("authorization", format!("Bearer {token}"));
        let mut reply = request.call().unwrap();
        let mut body = Vec::new();
        let read = reply.body_mut().as_reader().read_to_end(&mut body);
        (reply.status().as_u16(), body, read.map(drop))
    }
}

#[test]
fn a_session_that_is_downloaded_is_the_file_that_the_command_writes() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    fleet.turn(None, "two");
    let id = fleet.only_session();
    let served = Served::new(&fleet);
    let admin = fleet.read(".heeler/api-token").trim().to_owned();
    for (flag, query) in [(None, ""), (Some("--workspace"), "?workspace=true")] {
        let mut args = vec!["session", "export", &id, "-q", "-o", "s.json"];
        args.extend(flag);
        fleet.run(&args).ok();
        let (code, bytes, whole) = served.export(&admin, &id[..10], query);
        whole.unwrap();
        assert_eq!(code, 200);
        assert!(bytes == std::fs::read(fleet.file("s.json")).unwrap(), "{query}");
        std::fs::write(fleet.file("s.json"), bytes).unwrap();
        let other = elsewhere(&fleet, "s.json");
        let taken = other.json(&["session", "import", "s.json", "--json"]);
        let snapshots = if flag.is_some() { json!(3) } else { json!(0) };
        assert_eq!((&taken["id"], &taken["snapshots"]), (&json!(id), &snapshots), "{query}");
    }
    let made = |scope: &str| fleet.run(&["token", "create", scope, "--scope", scope, "-q"]).ok();
    let (read, operate) = (made("read"), made("operate"));
    let code = |token: &str, query: &str| served.export(token.trim(), &id, query).0;
    assert_eq!((code(&read, ""), code(&operate, ""), code("wrong", "")), (403, 200, 401));
    assert_eq!((code(&operate, "?workspace=true"), code(&admin, "?files=1")), (403, 400));
    assert_eq!(served.export(&admin, "sess-none", "").0, 404);

    // A line that no reader takes, behind more than is sent at once: the reply has no end.
    let shown = fleet.json(&["session", "show", &id, "--json"]);
    let log = shown["session"]["log"].as_str().unwrap();
    let mut log = std::fs::OpenOptions::new().append(true).open(log).unwrap();
    log.write_all("{\"type\":\"system\"}\n".repeat(20_000).as_bytes()).unwrap();
    let length = log.metadata().unwrap().len();
    log.set_len(length + heeler_transcript::LINE_BYTES_MAX as u64 + 2).unwrap();
    let (code, bytes, whole) = served.export(&admin, &id, "");
    assert!(code == 200 && bytes.len() > 64 << 10 && whole.is_err(), "{code} {whole:?}");
    std::fs::write(fleet.file("s.json"), bytes).unwrap();
    let refused = elsewhere(&fleet, "s.json").run(&["session", "import", "s.json"]);
    assert_ne!(refused.code, Some(0), "{}", refused.stdout);
}

/// Another machine with the same agent, to which a file was brought.
fn elsewhere(from: &Fleet, file: &str) -> Fleet {
    let keys =
        format!("working_directory: work\nsession: {{mode: persistent}}\n{}", scripted(WORKS));
    let other = fleet(&[("coder", &keys)]);
    std::fs::create_dir(other.file("work")).unwrap();
    std::fs::copy(from.file(file), other.file(file)).unwrap();
    other
}

#[test]
fn an_exported_session_takes_its_files_along() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    fleet.turn(None, "two");
    let id = fleet.only_session();
    let plain = fleet.run(&["session", "export", &id]);
    assert!(!plain.stderr.contains("secrets"), "{}", plain.stderr);
    let told = fleet.run(&["session", "export", &id, "--workspace", "-o", "s.json"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stderr.contains("warning: 3 snapshots may contain secrets"), "{}", told.stderr);

    let other = elsewhere(&fleet, "s.json");
    let taken = other.json(&["session", "import", "s.json", "--json"]);
    assert_eq!((&taken["id"], &taken["snapshots"]), (&json!(id), &json!(3)));
    other.run(&["session", "export", &id, "--workspace", "-o", "again.json"]).ok();
    assert!(fleet.read("s.json") == other.read("again.json"), "a round trip gives equal bytes");
    let without = other.run(&["session", "export", &id]).ok();
    assert!(without == plain.stdout, "with or without files");

    // The folder is not on this machine: what was last recorded counts.
    assert_eq!(added(&other.run(&["session", "diff", &id]).ok()), ["one", "two"]);
    assert_eq!(added(&other.run(&["session", "diff", &id, "-m", "3"]).ok()), ["two"]);
    let fork = other.json(&["session", "fork", &id, "-m", "3", "--workspace", "--json"]);
    let (fork, place) = (fork["id"].as_str().unwrap(), fork["workspace"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(format!("{place}/notes")).unwrap(), "one\n");
    assert_eq!(std::fs::read_to_string(format!("{place}/mine")).unwrap(), "changed by the user\n");
    assert_eq!(other.turn(Some(fork), "here").trim(), "Before: one.");
    assert_eq!(added(&other.run(&["session", "diff", fork]).ok()), ["here"]);
    assert_eq!(other.turn(Some(&id), "three").trim(), "Before: one | two.");

    // What the fork has of both machines goes on to a third.
    other.run(&["session", "export", fork, "--workspace", "-o", "fork.json"]).ok();
    let third = elsewhere(&other, "fork.json");
    third.run(&["session", "import", "fork.json"]).ok();
    assert_eq!(added(&third.run(&["session", "diff", fork]).ok()), ["here"]);
}

#[test]
fn files_that_nobody_recorded_are_not_exported_and_that_is_said() {
    let keys = format!("session: {{mode: persistent}}\n{}", scripted("{say: Hi.}"));
    let fleet = fleet(&[("coder", &keys)]);
    fleet.run(&["trigger", "coder"]).ok();
    let id = fleet.only_session();
    let told = fleet.run(&["session", "export", &id, "--workspace", "-o", "s.json"]).fails(5);
    assert!(told.contains("no snapshot") && !fleet.file("s.json").exists(), "{told}");
}

#[test]
fn a_fork_that_has_not_begun_is_exported_as_what_it_goes_on_from() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    fleet.turn(None, "two");
    let id = fleet.only_session();
    let fork = fleet.json(&["session", "fork", &id, "-m", "3", "--json"]);
    let fork = fork["id"].as_str().unwrap();
    let told = fleet.run(&["session", "export", fork, "-o", "s.json"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(!told.stderr.contains("not continue"), "{}", told.stderr);
    assert!(!fleet.read("s.json").contains("two"), "it knows nothing of what came later");
    let other = elsewhere(&fleet, "s.json");
    other.run(&["session", "import", "s.json"]).ok();
    other.run(&["session", "export", fork, "-o", "again.json"]).ok();
    assert!(fleet.read("s.json") == other.read("again.json"), "a round trip gives equal bytes");
    assert_eq!(other.turn(Some(fork), "here").trim(), "Before: one.");
}

#[test]
fn a_worktree_that_is_gone_is_noticed_and_made_again_when_its_session_goes_on() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    let id = fleet.only_session();
    let fork = fleet.json(&["session", "fork", &id, "--workspace", "--json"]);
    let (fork, place) = (fork["id"].as_str().unwrap(), fork["workspace"].as_str().unwrap());
    fleet.turn(Some(fork), "two");
    // A daemon may still be publishing what it did.
    let is_told = || fleet.run(&["doctor"]).stdout.contains("worktree");
    assert!(!is_told());
    std::fs::remove_dir_all(place).unwrap();
    let told = fleet.run(&["doctor"]);
    assert_eq!(told.code, Some(1), "{}", told.stdout);
    assert!(
        told.stdout.contains(&format!("{fork}: its worktree {place} is missing")),
        "{}",
        told.stdout
    );
    assert!(told.stdout.contains(&format!("heeler session resume {fork}")), "{}", told.stdout);

    let said = fleet.run(&["session", "resume", fork, "-q", "-p", "on"]).ok();
    // What is ignored is in no snapshot.
    assert!(
        std::fs::read_to_string(format!("{place}/notes")).unwrap().starts_with("one\ntwo\n"),
        "{said}"
    );
    assert!(!std::path::Path::new(place).join("next").exists());
    assert_eq!(fleet.turn(Some(fork), "three").trim(), "Before: one | two | on.");
    assert!(!is_told());
    let jobs = fleet.json(&["jobs", "--json"])["jobs"].clone();
    let job = jobs[1]["id"].as_str().unwrap();
    let rows = fleet.read(&format!(".heeler/jobs/{job}.jsonl"));
    assert!(rows.contains("its worktree was missing and was recreated"), "{rows}");

    // Without snapshots there is nothing to make it of.
    std::fs::remove_dir_all(place).unwrap();
    std::fs::remove_dir_all(fleet.file(".heeler/workspaces")).unwrap();
    let told = fleet.run(&["session", "resume", fork, "-q", "-p", "on"]).fails(5);
    assert!(told.contains("no longer exist") && told.contains("snapshots"), "{told}");
}

#[test]
fn a_backup_says_that_it_has_no_files_of_sessions() {
    let fleet = in_a_repository();
    fleet.turn(None, "one");
    let told = fleet.run(&["backup", "all.tar"]).ok();
    assert!(told.contains("left out: workspaces/") && told.contains("--workspace"), "{told}");
    let told = fleet.json(&["backup", "again.tar", "--json"]);
    assert_eq!(told["without"], json!(["workspaces"]));
}
