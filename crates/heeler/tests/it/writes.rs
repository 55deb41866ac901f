//! Making fleets, taking over foreign state, repair, backup.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use heeler_model::JobStatus;

use crate::fleet::{Fleet, job};
use crate::web::{link_path, send};

#[test]
fn init_makes_a_fleet_that_is_valid_at_once_and_overwrites_nothing() {
    let fleet = Fleet::empty();
    fleet.write(".gitignore", "target");
    let said = fleet.run(&["init"]).ok();
    assert!(said.contains("Next: heeler trigger greeter\nThen: heeler start"), "{said}");
    let said = fleet.run(&["trigger", "greeter"]).ok();
    assert!(said.starts_with("Hello! I am a scripted agent of this fleet.\n"), "{said}");
    assert_eq!(fleet.read(".gitignore"), "target\n.heeler/\n.env\n");
    let ran = fleet.run(&["config", "validate"]);
    assert_eq!(ran.stderr, "", "a new fleet has no warnings");
    assert!(ran.ok().contains("1 agent: greeter"));
    let before = fleet.read("heeler.yaml");
    assert!(fleet.run(&["init"]).fails(5).contains("exists; nothing was changed"));
    assert_eq!(fleet.read("heeler.yaml"), before);
}

#[test]
fn an_agent_is_added_once() {
    let fleet = Fleet::new();
    fleet.run(&["init", "agent", "coder"]).ok();
    assert!(fleet.run(&["config", "validate"]).ok().contains("2 agents: greeter, coder"));
    fleet.run(&["init", "agent", "coder"]).fails(5);
    assert!(fleet.run(&["init", "agent", "../evil"]).fails(2).contains("is not a name"));
    assert!(Fleet::empty().run(&["init", "agent", "coder"]).fails(2).contains("heeler init"));
}

#[test]
fn every_fault_of_a_config_is_told_in_one_go() {
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", "fleet:\n  nmae: x\nagents:\n  - name: a\n    max_turns: many\n");
    let told = fleet.run(&["config", "validate"]).fails(2);
    assert!(told.contains("heeler.yaml:2:3") && told.contains("did you mean `name`?"), "{told}");
    assert!(told.contains("heeler.yaml:5:16"), "{told}");
    let ran = fleet.run(&["config", "validate", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&value["valid"], value["errors"].as_array().unwrap().len()), (&false.into(), 2));
    assert_eq!(ran.code, Some(2));
}

#[test]
fn workflows_are_checked_with_the_config() {
    let fleet = Fleet::empty();
    let agents = "agents:\n  - {name: coder, runtime: command, command: 'true'}\n";
    fleet.write("heeler.yaml", agents);
    fleet.write(
        "workflows/build.yaml",
        "name: build\nphases:\n  - {name: a, prompt: prompts/a.md}\n",
    );
    fleet.write("workflows/prompts/a.md", "Do ${b.output}\n");
    fleet.write("workflows/prompts/no-workflow.yaml", "nothing: here\n");
    fleet.write(
        "workflows/deep/nightly.yml",
        "kind: cron\nname: n\nschedule: '@daily'\nworkflow: build\n",
    );
    let told = fleet.run(&["config", "validate"]).fails(2);
    assert!(told.contains("workflows/prompts/a.md:1:6"), "{told}");
    assert!(told.contains("there is no phase `b`"), "{told}");
    fleet.write("workflows/prompts/a.md", "Do it\n");
    let told = fleet.run(&["config", "validate"]).ok();
    assert!(told.contains("(4 files, 1 agent: coder, 1 workflow: build)"), "{told}");
    let ran = fleet.run(&["config", "validate", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(value["workflows"], serde_json::json!(["build"]));
    fleet.write("heeler.yaml", &format!("{agents}workflows: {{folder: other, agent: nobody}}\n"));
    assert!(fleet.run(&["config", "validate"]).fails(2).contains("there is no agent `nobody`"));
    fleet.write("heeler.yaml", &format!("{agents}workflows: {{folder: other}}\n"));
    assert!(!fleet.run(&["config", "validate"]).ok().contains("workflow:"));
    assert!(fleet.run(&["config", "schema", "--workflow"]).ok().contains("generic_loop"));
}

#[test]
fn what_lies_beside_a_herdctl_project_is_no_workflow() {
    let fleet = Fleet::empty();
    fleet.write("herdctl.yaml", "version: 1\nfleet: {name: x}\nagents: []\n");
    fleet.write("workflows/ci.yaml", "on: [push]\njobs: {}\n");
    fleet.run(&["config", "validate"]).ok();
    fleet.write("heeler-workflows/w.yaml", "name: w\nphases: [{name: a, type: context}]\n");
    assert!(fleet.run(&["config", "validate"]).ok().contains("1 workflow: w"));
}

#[test]
fn variables_come_from_the_environment_and_then_from_dotenv() {
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        "max_concurrent: ${JOBS}\nagents:\n  - name: a\n    max_turns: ${TURNS}\n",
    );
    fleet.write(".env", "TURNS=7\nJOBS=1\n");
    let mut command = fleet.command(&["config", "show", "--json"]);
    let output = command.env("JOBS", "5").output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&shown["agents"][0]["max_turns"], &shown["fleet"]["max_concurrent"]),
        (&7.into(), &5.into())
    );
    assert!(shown["configPath"].as_str().unwrap().ends_with("heeler.yaml"));
}

#[test]
fn secrets_that_stand_in_the_files_are_shown_only_on_request() {
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        "telemetry: {endpoint: 'http://localhost:4318', headers: {authorization: Bearer told-telemetry}}
agents:
  - name: a
    env: {API_KEY: told-environment, OTHER_KEY: '${FROM_OUTSIDE}', MODE: fast}
    mcp_servers: {m: {url: 'https://example.org/?token=told-address'}}
    hooks: {after_run: [{type: webhook, url: 'https://example.org', headers: {X-Api-Key: told-header}}]}
",
    );
    fleet.write(".env", "FROM_OUTSIDE=told-outside\n");
    for json in [&[][..], &["--json"]] {
        let shown = |more: &[&str]| fleet.run(&[&["config", "show"], more, json].concat()).ok();
        let (hidden, told) = (shown(&[]), shown(&["--secrets"]));
        assert!(!hidden.contains("told-"), "{hidden}");
        for kept in ["API_KEY", "fast", "${FROM_OUTSIDE}", "X-Api-Key"] {
            assert!(hidden.contains(kept) && told.contains(kept), "{kept}: {hidden}");
        }
        for secret in ["telemetry", "environment", "address", "header"] {
            assert!(told.contains(&format!("told-{secret}")), "{secret}: {told}");
        }
        assert!(!told.contains("told-outside"), "{told}");
    }
}

#[test]
fn the_config_is_found_from_a_folder_below() {
    let fleet = Fleet::new();
    std::fs::create_dir_all(fleet.file("deep/er")).unwrap();
    let mut command = fleet.command(&["config", "validate"]);
    assert!(command.current_dir(fleet.file("deep/er")).output().unwrap().status.success());
    assert!(fleet.run(&["-c", "nowhere.yaml", "status"]).fails(2).contains("no config file"));
}

#[test]
fn an_edit_is_saved_only_when_the_fleet_is_valid() {
    let fleet = Fleet::new();
    let edit = |script: &str| {
        let mut command = fleet.command(&["config", "edit"]);
        crate::fleet::Ran::from(command.env("EDITOR", script).output().unwrap())
    };
    let before = fleet.read("heeler.yaml");
    let told = edit("sed -i s/fleet:/flete:/").fails(2);
    assert!(
        told.contains("did you mean `fleet`?") && told.contains("your edit is kept in"),
        "{told}"
    );
    assert_eq!(fleet.read("heeler.yaml"), before);
    assert!(edit("true").stderr.contains("nothing changed"));
    assert!(edit("sed -i s/30m/45m/").ok().contains("saved"));
    assert_eq!(fleet.read("heeler.yaml"), before.replace("30m", "45m"));
    edit("false").fails(1);
}

/// A herdctl project with a job that a crash left running.
fn herdctl_project() -> Fleet {
    let fleet = Fleet::empty();
    fleet.write("herdctl.yaml", "version: 1\nagents: []\nunknown_key: 1\n");
    fleet.write(".herdctl/state.yaml", "fleet: {}\nagents:\n  coder:\n    schedules: {}\n");
    let job = "id: job-2024-01-19-abc123\nagent: coder\nschedule: null\ntrigger_type: manual\nstatus: running\nexit_reason: null\nsession_id: null\nforked_from: null\nstarted_at: 2024-01-19T09:00:00Z\nfinished_at: null\nduration_seconds: null\nprompt: Do it.\nsummary: null\noutput_file: null\nmine: kept\n";
    fleet.write(".herdctl/jobs/job-2024-01-19-abc123.yaml", job);
    fleet.write(
        ".herdctl/jobs/job-2024-01-19-abc123.jsonl",
        "{\"type\":\"assistant\",\"content\":\"hi\"}\n{\"type\":",
    );
    fleet
}

#[test]
fn a_herdctl_project_is_adopted_at_the_first_command_with_one_line() {
    let fleet = herdctl_project();
    let ran = fleet.run(&["jobs", "--json"]);
    assert_eq!(
        ran.stderr.lines().filter(|line| line.starts_with("adopted herdctl's state")).count(),
        1
    );
    let value: serde_json::Value = serde_json::from_str(&ran.ok()).unwrap();
    assert_eq!(value["jobs"][0]["status"], "failed");
    assert!(fleet.file(".herdctl/.before-heeler/jobs/job-2024-01-19-abc123.yaml").exists());
    assert_eq!(fleet.run(&["jobs"]).stderr, "");
    let yaml = fleet.read(".herdctl/jobs/job-2024-01-19-abc123.yaml");
    assert!(yaml.contains("status: failed") && yaml.contains("mine: kept"), "{yaml}");
}

#[test]
fn adoption_is_refused_while_herdctl_lives() {
    let fleet = herdctl_project();
    let mut herdctl = Command::new("sh")
        .arg0("herdctl")
        .args(["-c", "while :; do read line || exit; done"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    fleet.write(".herdctl/herdctl.pid", &herdctl.id().to_string());
    let told = fleet.run(&["jobs"]).fails(5);
    assert!(told.contains("stop it first") && told.contains(&herdctl.id().to_string()), "{told}");
    assert!(!fleet.file(".herdctl/heeler.db").exists());
    drop(herdctl.stdin.take());
    herdctl.wait().unwrap();
    fleet.run(&["jobs"]).ok();
}

#[test]
fn importing_twice_imports_once() {
    let source = herdctl_project();
    let fleet = Fleet::new();
    let path = source.path().to_str().unwrap();
    let first = fleet.json(&["import", "herdctl", path, "--json"]);
    assert_eq!(first["byKind"]["jobs"]["imported"], 1);
    let second = fleet.json(&["import", "herdctl", path, "--json"]);
    assert_eq!(
        (&second["imported"], &second["byKind"]["jobs"]["alreadyThere"]),
        (&0.into(), &1.into())
    );
    assert!(fleet.run(&["jobs", "logs", "job-2024"]).ok().contains("hi"));
    fleet.run(&["import", "herdctl", "/nonexistent"]).fails(2);
    fleet.run(&["import", "unknown", path]).fails(2);
}

#[test]
fn a_backup_brings_back_what_was_there() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let id = job("coder", 1).head.id;
    fleet.write(
        &format!(".heeler/jobs/{id}.jsonl"),
        "{\"type\":\"assistant\",\"content\":\"kept\"}\n",
    );
    assert!(fleet.run(&["backup", "b.tar.gz"]).ok().contains("1 job"));
    assert!(fleet.run(&["backup", "b.tar.gz"]).fails(5).contains("--force"));
    fleet.run(&["backup", "b.zip"]).fails(2);
    std::fs::remove_dir_all(fleet.file(".heeler")).unwrap();
    assert!(fleet.run(&["restore", "b.tar.gz"]).ok().contains("restored 1 job"));
    assert!(fleet.run(&["jobs", "logs", id.as_str()]).ok().contains("kept"));
    assert!(fleet.run(&["restore", "b.tar.gz"]).fails(5).contains("--yes"));
    assert!(fleet.run(&["restore", "b.tar.gz", "--yes"]).ok().contains("the previous state is in"));
    fleet.write("broken.tar", "not an archive");
    assert!(
        fleet.run(&["restore", "broken.tar", "--yes"]).fails(1).contains("nothing was changed")
    );
    assert_eq!(fleet.json(&["jobs", "--json"])["total"], 1);
}

#[test]
fn doctor_says_what_is_wrong_and_fixes_it() {
    let mut stuck = job("coder", 1);
    stuck.head.status = JobStatus::Running;
    let fleet = Fleet::new().with_jobs(vec![stuck]);
    std::fs::set_permissions(fleet.file(".heeler/heeler.db"), Permissions::from_mode(0o644))
        .unwrap();
    let told = fleet.run(&["doctor"]);
    assert_eq!(told.code, Some(1));
    assert!(told.stdout.contains("heeler.db") && told.stdout.contains("fix:"), "{}", told.stdout);
    assert!(fleet.run(&["doctor", "--fix"]).ok().contains("fixed"));
    assert_eq!(fleet.json(&["jobs", "--json"])["jobs"][0]["status"], "failed");
    let mode = std::fs::metadata(fleet.file(".heeler/heeler.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(fleet.run(&["doctor"]).ok().contains("no problems found"));
}

#[test]
fn a_lost_database_is_rebuilt_from_what_is_beside_it() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1), job("coder", 2)]);
    std::fs::write(fleet.file(".heeler/heeler.db"), "garbage").unwrap();
    for side in ["-wal", "-shm"] {
        drop(std::fs::remove_file(fleet.file(&format!(".heeler/heeler.db{side}"))));
    }
    assert!(fleet.run(&["jobs"]).fails(1).contains("heeler doctor"));
    fleet.run(&["doctor", "--rebuild"]).fails(5);
    assert!(fleet.run(&["doctor", "--rebuild", "--yes"]).ok().contains("trash"));
    assert_eq!(fleet.json(&["jobs", "--json"])["total"], 2);
}

#[test]
fn the_demo_runs_as_the_readme_says() {
    let fleet = Fleet::empty();
    let text = fleet.run(&["demo", "shown"]).ok();
    for shown in [
        "scout   | I see a fleet of three agents.",
        "builder | It says: Hello from a program that an agent wrote.",
        "tester  | All 3 agents are there.",
        // A fork knows what was said before it, and neither what is said to the other later.
        "You told me: Look around. | The password is tulip. | The goal is Paris.\n",
        "You told me: Look around. | The password is tulip. | The goal is Rome.\n",
        "none torn",
    ] {
        assert_eq!(text.matches(shown).count(), 1, "{shown} is missing:\n{text}");
    }
    assert!(text.contains("greeting.txt says Hello. Looks good."), "{text}");
    assert_eq!(fleet.read("shown/mixed/greeting.txt"), "Hello\n");
    let project = fleet.file("shown/fleet");
    // What it says to try are commands.
    let (_, explore) = text.split_once("Yours to explore:\n").unwrap();
    assert_eq!(explore.lines().count(), 7, "{explore}");
    let mut explored = Command::new("sh");
    explored.arg("-ec").arg(explore).env("HOME", fleet.file("home")).stdin(Stdio::null());
    let explored = explored.output().unwrap();
    assert!(explored.status.success(), "{explored:?}");
    let left = fleet.command(&["session", "list", "--json"]).current_dir(project).output().unwrap();
    let left: serde_json::Value = serde_json::from_slice(&left.stdout).unwrap();
    assert_eq!(left["total"], 5);
    let told = fleet.run(&["demo", "shown"]).fails(5);
    assert!(
        told.contains("shown is in use") && told.contains("try: heeler demo shown-2"),
        "{told}"
    );
}

#[test]
fn a_demo_that_is_interrupted_says_what_was_cancelled_and_what_stays() {
    let fleet = Fleet::empty();
    std::fs::create_dir(fleet.file("shown")).unwrap();
    let mut demo = fleet.command(&["demo", "shown"]);
    demo.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let begun = lines.find(|line| line.as_ref().unwrap().contains("I write a program."));
    assert!(begun.is_some());
    // As a terminal does it: to everything that the demo has started, too.
    let group = rustix::process::Pid::from_raw(demo.id().cast_signed()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
    let shown: Vec<String> = lines.map(Result::unwrap).collect();
    let mut told = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130), "{shown:#?} {told}");
    assert!(told.contains("interrupted: ") && told.contains("the demo's files are kept"), "{told}");
    assert!(!shown.iter().any(|line| line.contains("Yours to explore")), "{shown:#?}");
    assert!(fleet.file("shown/fleet/heeler.yaml").exists());
}

/// Lists the processes that were given a folder by their environment, as all are that a command
/// started.
fn processes_of(folder: &std::path::Path) -> Vec<String> {
    let folder = folder.as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let own = all.filter(|process| {
        let env = std::fs::read(process.path().join("environ")).unwrap_or_default();
        env.windows(folder.len()).any(|part| part == folder)
    });
    let line = |process: std::fs::DirEntry| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ")
    };
    own.map(line).collect()
}

#[test]
fn a_demo_that_is_served_lives_until_ctrl_c_and_leaves_nothing() {
    for named in [None, Some("shown")] {
        let fleet = Fleet::empty();
        let args: Vec<&str> = ["demo", "--serve"].into_iter().chain(named).collect();
        let mut demo = fleet.command(&args);
        demo.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut demo = demo.spawn().unwrap();
        let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
        let link = lines.find(|line| line.trim().starts_with("http://"));
        let link = link.expect("it prints its link");
        let port = link.split(".localhost:").nth(1).and_then(|it| it.split('/').next()).unwrap();
        let address = format!("127.0.0.1:{port}");
        // Whatever the demo is called, its folder is the only one here with a fleet.
        let folders = std::fs::read_dir(fleet.path()).unwrap().map(|entry| entry.unwrap().path());
        let folder = folders.map(|it| it.join("living")).find(|it| it.is_dir()).unwrap();
        let path = link_path(&link, &address);
        let (_, head, _) = send(&address, &format!("GET {path}"), &[], "");
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
        let (_, _, answer) = send(&address, "GET /api/v1/fleet", &[&cookie], "");
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["fleet"]["name"], "demo", "{answer:#}");
        assert!(processes_of(fleet.path()).len() > 1, "a daemon runs beside the demo");
        let group = rustix::process::Pid::from_child(&demo);
        rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
        let mut told = String::new();
        demo.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!((demo.wait().unwrap().code(), told.as_str()), (Some(0), ""));
        // The port is not asked: another test's daemon may hold it by now.
        assert_eq!(processes_of(fleet.path()), Vec::<String>::new());
        assert_eq!(folder.exists(), named.is_some(), "only what the user named stays");
    }
}

/// Starts a served demo, and waits until it is ready.
fn served_demo(fleet: &Fleet) -> std::process::Child {
    let mut demo = fleet.command(&["demo", "--serve"]);
    demo.stdout(Stdio::piped()).process_group(0);
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("ends the fleet")).expect("it says how to end it");
    demo
}

#[test]
fn a_served_demo_that_is_ended_or_killed_leaves_nothing() {
    use rustix::process::{Pid, Signal, kill_process_group};
    let fleet = Fleet::empty();
    let folders = || {
        let entries = std::fs::read_dir(fleet.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.join("living").is_dir()).collect::<Vec<_>>()
    };
    // The demo itself cannot act on the last one, so the next demo cleans up.
    let mut killed = served_demo(&fleet);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = folders();
    assert_eq!(left.len(), 1);
    for signal in [Signal::TERM, Signal::HUP] {
        let mut demo = served_demo(&fleet);
        assert!(!left[0].exists(), "the folder of the demo that was killed is gone");
        kill_process_group(Pid::from_child(&demo), signal).unwrap();
        assert_eq!(demo.wait().unwrap().code(), Some(0), "{signal:?}");
        assert_eq!(folders(), Vec::<std::path::PathBuf>::new(), "{signal:?}");
        assert_eq!(processes_of(fleet.path()), Vec::<String>::new(), "{signal:?}");
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_can_be_read() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let state = fleet.state_dir();
    let set = |mode: u32| std::fs::set_permissions(&state, Permissions::from_mode(mode)).unwrap();
    set(0o500);
    let jobs = fleet.run(&["jobs", "--json"]);
    set(0o700);
    assert!(jobs.ok().contains("did thing 1"));
}

#[test]
fn a_second_writer_is_refused_and_told_who_holds_the_directory() {
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let dir = heeler_store::StateDir::open(&fleet.state_dir()).unwrap();
    let store = heeler_store::Store::open(&dir, "start", crate::fleet::at(0)).unwrap().store;
    let source = herdctl_project();
    let told = fleet.run(&["import", "herdctl", source.path().to_str().unwrap()]).fails(5);
    let holder = format!("`heeler start`, process {}", std::process::id());
    assert!(told.contains(&holder), "{told}");
    assert!(fleet.run(&["status"]).ok().contains(&holder));
    drop(store);
}

#[test]
fn everything_in_the_state_directory_is_private() {
    let source = herdctl_project();
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    fleet.run(&["import", "herdctl", source.path().to_str().unwrap()]).ok();
    fleet.run(&["backup", ".heeler/backup.tar"]).ok();
    let mut folders = vec![fleet.file(".heeler")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        let mode =
            |path: &std::path::Path| path.symlink_metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.is_symlink() {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 5, "{files}");
}

#[test]
fn a_status_reset_by_hand_is_taken_over_and_told() {
    let source = herdctl_project();
    let fleet = Fleet::new().with_jobs(vec![job("coder", 1)]);
    let dir = heeler_store::StateDir::open(&fleet.state_dir()).unwrap();
    let store = heeler_store::Store::open(&dir, "test", crate::fleet::at(0)).unwrap().store;
    let stuck = heeler_model::AgentState {
        status: heeler_model::AgentStatus::Error,
        error_message: Some("boom".to_owned()),
        ..heeler_model::AgentState::default()
    };
    store.write(move |tx| tx.put_agent("coder", &stuck)).unwrap();
    store.publish_views(crate::fleet::at(1)).unwrap();
    drop(store);
    let reset = fleet.read(".heeler/state.yaml").replace("status: error", "status: idle");
    fleet.write(".heeler/state.yaml", &reset);
    let ran = fleet.run(&["import", "herdctl", source.path().to_str().unwrap()]);
    assert!(ran.stderr.contains("coder is now idle, it was error"), "{}", ran.stderr);
    assert_eq!(fleet.json(&["status", "--json"])["agents"][1]["status"], "idle");
}

#[test]
fn an_agent_is_added_beside_its_fleet_whatever_the_folder_is_called() {
    let fleet = Fleet::empty();
    fleet.run(&["init", "herdctl.old"]).ok();
    let mut command = fleet.command(&["init", "agent", "coder"]);
    assert!(command.current_dir(fleet.file("herdctl.old")).output().unwrap().status.success());
    assert!(fleet.read("herdctl.old/agents/coder.yaml").contains("../.heeler/schema"));
}
