//! The scripted agent as a process: signals, exit codes, what it leaves behind.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Instant;

use heeler_testkit::{ProofSettings, WAIT_MAX};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::fleet::Fleet;

/// The session that is played in.
const SESSION: &str = "5e550000-0000-4000-8000-000000000001";

struct Player {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Player {
    /// Starts a player, and its script with a prompt.
    fn start(fleet: &Fleet, steps: Json) -> Player {
        let mut command = fleet.command(&play_args(fleet, &steps));
        Player::of(&mut command)
    }

    fn of(command: &mut Command) -> Player {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let message = json!({"role": "user", "content": "go"});
        writeln!(input, "{}", json!({"type": "user", "message": message})).unwrap();
        Player { child, input: Some(input), lines }
    }

    /// Reads up to a line of this type.
    #[track_caller]
    fn until(&mut self, kind: &str) -> Json {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no line of type {kind}");
            let line: Json = serde_json::from_str(&line).unwrap();
            if line["type"] == kind {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Closes the input and waits.
    fn end(mut self) -> (ExitStatus, String) {
        self.input = None;
        let output = self.child.wait_with_output().unwrap();
        (output.status, String::from_utf8(output.stderr).unwrap())
    }
}

fn play_args<'a>(fleet: &Fleet, steps: &Json) -> [&'a str; 7] {
    fleet.write("script.json", &json!({"steps": steps, "secrets": []}).to_string());
    ["play", "--script", "script.json", "--home", "home", "--session-id", SESSION]
}

/// Waits until a file has something in it, and returns that.
#[track_caller]
fn eventually(fleet: &Fleet, name: &str) -> String {
    let until = Instant::now() + WAIT_MAX;
    loop {
        match std::fs::read_to_string(fleet.file(name)) {
            Ok(text) if text.ends_with('\n') => return text,
            _ => assert!(Instant::now() < until, "{name} does not come"),
        }
        std::thread::yield_now();
    }
}

fn pid_in(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

#[track_caller]
fn gone(pid: Pid) {
    let until = Instant::now() + WAIT_MAX;
    // A zombie is gone; whoever is to reap it may take its time.
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < until, "{stat} is still there");
        std::thread::yield_now();
    }
}

#[test]
fn a_signal_ends_a_player_and_its_command_with_the_code_that_claude_has() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 0), (Signal::HUP, 129)] {
        let fleet = Fleet::empty();
        let player = Player::start(&fleet, json!([{"run": "echo $$ > pid; exec sleep 600"}]));
        let pid = pid_in(&eventually(&fleet, "pid"));
        player.signal(signal);
        assert_eq!(player.end().0.code(), Some(code), "{signal:?}");
        gone(pid);
    }
}

#[test]
fn a_player_that_nobody_reads_from_still_ends_at_a_signal() {
    let fleet = Fleet::empty();
    let steps = json!([{"run": "echo on > started"}, {"flood": 1_000_000}]);
    let mut player = Player::start(&fleet, steps);
    eventually(&fleet, "started");
    player.until("user");
    player.signal(Signal::TERM);
    let status = player.child.wait().unwrap();
    assert_eq!(status.code(), Some(143));
}

#[test]
fn a_stubborn_hang_outlives_signals_but_not_an_interrupt() {
    let fleet = Fleet::empty();
    let steps = json!([{"say": "here"}, {"hang": true, "ignore_term": true}]);
    let mut player = Player::start(&fleet, steps);
    player.until("assistant");
    // The hang has begun when a request is answered after it.
    let ping =
        json!({"type": "control_request", "request_id": "p", "request": {"subtype": "mcp_status"}});
    writeln!(player.input.as_mut().unwrap(), "{ping}").unwrap();
    player.until("control_response");
    player.signal(Signal::TERM);
    player.signal(Signal::HUP);
    let interrupt =
        json!({"type": "control_request", "request_id": "i", "request": {"subtype": "interrupt"}});
    writeln!(player.input.as_mut().unwrap(), "{interrupt}").unwrap();
    assert_eq!(player.until("result")["terminal_reason"], "aborted_streaming");
    assert_eq!(player.end().0.code(), Some(1));
}

#[test]
fn a_deaf_hang_answers_nothing() {
    let fleet = Fleet::empty();
    let steps = json!([{"say": "here"}, {"hang": true, "ignore_interrupt": true}]);
    let mut player = Player::start(&fleet, steps);
    player.until("assistant");
    let input = player.input.as_mut().unwrap();
    for (id, subtype) in [("p", "mcp_status"), ("i", "interrupt"), ("q", "mcp_status")] {
        let request = json!({"subtype": subtype});
        writeln!(
            input,
            "{}",
            json!({"type": "control_request", "request_id": id, "request": request})
        )
        .unwrap();
    }
    assert_eq!(player.until("control_response")["response"]["request_id"], "p");
    assert_eq!(player.until("control_response")["response"]["request_id"], "q");
    player.signal(Signal::KILL);
    assert_eq!(player.end().0.signal(), Some(9));
}

#[test]
fn a_process_ends_as_the_script_says() {
    for (exit, code, signal) in [
        (json!(7), Some(7), None),
        (json!(0), Some(0), None),
        (json!("SIGKILL"), None, Some(9)),
        (json!("SIGSEGV"), None, Some(11)),
        // Handled as if it came from outside.
        (json!("SIGTERM"), Some(143), None),
    ] {
        let fleet = Fleet::empty();
        let steps = json!([{"say": "bye"}, {"stderr": "oops"}, {"exit": exit}]);
        let mut player = Player::start(&fleet, steps);
        player.until("assistant");
        let (status, stderr) = player.end();
        assert_eq!((status.code(), status.signal()), (code, signal), "{exit}");
        assert_eq!(stderr, "oops\n");
    }
}

#[test]
fn a_process_is_left_behind_as_the_script_says() {
    let fleet = Fleet::empty();
    let look = "cat /proc/$$/stat > NAME.stat; cat /proc/$$/environ | tr '\\0' '\\n' > NAME.env; \
                grep SigIgn /proc/$$/status > NAME.ignored; echo $$ > NAME.pid; exec sleep 600";
    let look = |name: &str| look.replace("NAME", name);
    let steps = json!([
        {"spawn": look("plain")},
        {"spawn": look("free"), "setsid": true, "ignore_term": true, "clear_env": true},
        {"say": "done"},
    ]);
    let mut player = Player::start(&fleet, steps);
    player.until("result");
    let own = player.child.id();
    assert_eq!(player.end().0.code(), Some(0));
    let (plain, free) = (eventually(&fleet, "plain.pid"), eventually(&fleet, "free.pid"));
    let session = |name: &str| {
        let stat = fleet.read(name);
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        after_name.split(' ').nth(3).unwrap().to_owned()
    };
    assert_eq!(session("free.stat"), free.trim());
    assert_ne!(session("plain.stat"), plain.trim());
    assert_ne!(plain.trim(), own.to_string());
    assert!(fleet.read("plain.env").contains("HOME="));
    assert!(!fleet.read("free.env").contains("HOME="), "{}", fleet.read("free.env"));
    let ignores_term = |name: &str| {
        let line = fleet.read(name);
        let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        mask & (1 << (15 - 1)) != 0
    };
    assert!(ignores_term("free.ignored") && !ignores_term("plain.ignored"));
    for pid in [plain, free] {
        kill_process(pid_in(&pid), Signal::KILL).unwrap();
    }
}

#[test]
fn what_a_player_inherits_its_commands_do_not() {
    let fleet = Fleet::empty();
    let steps = json!([{"run": "ls /proc/self/fd | tr '\\n' ' '"}, {"say": "{output}"}]);
    let args = play_args(&fleet, &steps);
    let mut command = Command::new("sh");
    // As the runner hands over the script and the lock of the session.
    command.args(["-c", "exec \"$0\" \"$@\" 8<script.json 9<script.json"]);
    command.arg(env!("CARGO_BIN_EXE_heeler")).args(args).current_dir(fleet.path());
    let mut player = Player::of(&mut command);
    let result = player.until("result");
    assert_eq!(result["result"], "0 1 2 3");
    player.end();
}

#[test]
fn a_player_without_a_session_or_with_two_is_refused() {
    let fleet = Fleet::empty();
    let args = play_args(&fleet, &json!([{"say": "hi"}]));
    let ran = fleet.run(&args[..5]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let both = [&args[..], &["--resume", "x"]].concat();
    assert_eq!(fleet.run(&both).code, Some(2));
    let faulty = play_args(&fleet, &json!([{"sya": "hi"}]));
    let ran = fleet.run(&faulty);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("step 1: unknown step `sya`; did you mean `say`?"),
        "{}",
        ran.stderr
    );
}

/// Whatever was seen of a session is in its file, so a resume knows it, however its process ended.
#[test]
fn proof_a_killed_player_leaves_a_session_that_can_be_resumed() {
    let proof = ProofSettings::new(20);
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let fleet = Fleet::empty();
        let steps = json!([
            {"when": {"turn": 1}, "do": [{"flood": 100_000, "size": random.usize(20..1_000)}]},
            {"say": "turn {turn}, I remember {remembered}"},
        ]);
        let mut player = Player::start(&fleet, steps);
        let lines = random.usize(0..300);
        let mut seen = Vec::new();
        for _ in 0..lines {
            seen.extend(player.until("assistant")["uuid"].as_str().map(str::to_owned));
        }
        if lines == 0 {
            player.until("system");
        }
        player.signal(Signal::KILL);
        player.end();
        let resume = ["play", "--script", "script.json", "--home", "home", "--resume", SESSION];
        let mut player = Player::of(&mut fleet.command(&resume));
        let context = format!("seed {}, round {round}", proof.seed);
        assert_eq!(player.until("result")["result"], "turn 2, I remember go", "{context}");
        assert_eq!(player.end().0.code(), Some(0), "{context}");
        let kept = session_file(&fleet);
        let kept: HashSet<&str> = kept.split("\"uuid\":\"").map(|rest| &rest[..36]).collect();
        for uuid in seen {
            assert!(kept.contains(uuid.as_str()), "{uuid} is lost; {context}");
        }
    }
}

fn session_file(fleet: &Fleet) -> String {
    let projects = fleet.file("home/scripted/projects");
    let project = std::fs::read_dir(projects).unwrap().next().unwrap().unwrap().path();
    std::fs::read_to_string(project.join(format!("{SESSION}.jsonl"))).unwrap()
}
