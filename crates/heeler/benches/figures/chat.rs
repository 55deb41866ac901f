//! Conversations on a screen, through a real terminal: how soon a long one is there, how soon a key shows
//! while an agent talks, how soon many sessions are listed.
//!
//! The terminal is util-linux's `script`, whose own start is in the times of ours.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, UNIX_EPOCH};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_testkit::{ApiRequest, MessagesApi, claude};
use serde_json::json;

use crate::scene::{Scene, until};
use crate::{Amount, Bench, Figure, Goal, memory};

const LONG_BYTES: u64 = 1_000_000_000;
const LAST_WORDS: &str = "the-very-last-words";
/// Letters that nothing else on the screen has.
const KEYS: &[u8] = b"QZJXKVWYUG";
const KEYS_TYPED: usize = 400;
/// Between two keys; it shares no factor with a frame's time.
const KEYS_PAUSE: Duration = Duration::from_millis(23);
/// Clears the line that is typed; leaves.
const CLEAR: &[u8] = b"\x15";
const LEAVE: &[u8] = b"\x04";
const STARTS: usize = 10;
/// Turns of a conversation, and the time in which a reply is on the screen.
const TURNS: usize = 9;
const TURN_PAUSE: Duration = Duration::from_secs(2);
const TERMINAL_START: Duration = Duration::from_secs(5);
const KEY: &str = "sk-ant-a-key-of-the-benchmark";
const SESSIONS: u64 = 10_000;
const ENTRIES: usize = 20;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = open(bench);
    figures.extend(typing(bench));
    figures.push(list(bench));
    figures.push(turns(bench));
    figures
}

/// `heeler` in a terminal of 100 columns and 30 rows.
struct Screen {
    script: Child,
    /// What was drawn, and when it came.
    drawn: Receiver<(Instant, Vec<u8>)>,
}

impl Screen {
    fn start(scene: &Scene<'_>, home: &Utf8Path, args: &str) -> Screen {
        Screen::of(scene, home, &format!("{} {args}", env!("CARGO_BIN_EXE_heeler")), &[])
    }

    /// The same for any program, with more variables.
    fn of(scene: &Scene<'_>, home: &Utf8Path, program: &str, more: &[(&str, &str)]) -> Screen {
        let line = format!("stty cols 100 rows 30; exec {program}");
        let mut script = Command::new("script");
        script.args(["-qefc", &line, "/dev/null"]).current_dir(&scene.root);
        // The state directory is where it is found without being named.
        let envs = scene.heeler();
        let envs = envs.get_envs().filter(|(name, _)| *name != "HEELER_STATE_DIR");
        script.envs(envs.filter_map(|(name, value)| Some((name, value?))));
        script.env("HOME", home).env("HEELER_HOME", home).env("TERM", "xterm-256color");
        script.envs(more.iter().copied());
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().expect("util-linux is installed");
        let mut out = script.stdout.take().expect("it was asked for");
        let (tell, drawn) = channel();
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 16];
            while let Ok(count @ 1..) = out.read(&mut piece) {
                if tell.send((Instant::now(), piece[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        Screen { script, drawn }
    }

    /// Waits until something is drawn; returns when it was.
    fn wait_for(&self, text: &[u8]) -> Instant {
        let mut seen = Vec::new();
        loop {
            let (at, piece) = self.drawn.recv().unwrap_or_else(|_| {
                panic!("it ended without it: {}", String::from_utf8_lossy(&seen))
            });
            let from = seen.len().saturating_sub(text.len());
            seen.extend(piece);
            if seen[from..].windows(text.len()).any(|part| part == text) {
                return at;
            }
        }
    }

    fn press(&mut self, keys: &[u8]) -> Instant {
        let at = Instant::now();
        let keyboard = self.script.stdin.as_mut().expect("it was asked for");
        keyboard.write_all(keys).expect("it reads");
        at
    }

    /// Returns the memory of `heeler` itself.
    fn memory(&self) -> u64 {
        let id = self.script.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).map_or(0, memory)
    }

    /// Ends it with these keys, unless it has ended.
    fn leave(mut self, keys: &[u8]) {
        let keyboard = self.script.stdin.as_mut().expect("it was asked for");
        drop(keyboard.write_all(keys));
        self.script.wait().expect("it was started");
    }
}

fn scene<'a>(bench: &'a Bench, name: &str, steps: &str) -> Scene<'a> {
    let scene = Scene::new(bench, name, 0, |_| String::new());
    let config = format!("agents:\n  - {{name: lead, runtime: scripted, script: [{steps}]}}\n");
    std::fs::write(scene.root.join("heeler.yaml"), config).expect("disk has space");
    scene
}

/// Returns the median time from a start until something is seen.
fn until_seen(start: impl Fn() -> Screen, text: &str, mut leave: impl FnMut(Screen)) -> Duration {
    let mut times: Vec<Duration> = (0..STARTS)
        .map(|_| {
            let began = Instant::now();
            let screen = start();
            let time = screen.wait_for(text.as_bytes()) - began;
            leave(screen);
            time
        })
        .collect();
    times.sort_unstable();
    times[STARTS / 2]
}

/// Opens a long session whose entries nobody has counted.
fn open(bench: &Bench) -> Vec<Figure> {
    let scene = scene(bench, "chat-long", "{say: Hi.}");
    let (home, long) = (scene.root.join("home"), bench.folder.join("1gb-chat.ndjson"));
    long_transcript(&long);
    let sessions = home.join("sessions");
    std::fs::create_dir_all(&sessions).expect("disk has space");
    std::fs::write(sessions.join("long.json"), session("long", &scene.root))
        .expect("disk has space");
    std::fs::hard_link(&long, sessions.join("long.transcript.ndjson")).expect("one file system");
    let mut held = 0;
    let start = || Screen::start(&scene, &home, "chat --no-insights --resume long");
    let ours = until_seen(start, LAST_WORDS, |screen| {
        held = held.max(screen.memory());
        screen.leave(LEAVE);
    });
    let theirs = bench.node("chat-tail.mjs", &[long.as_str(), "50", "seconds"]);
    let theirs_held = bench.node_number("chat-tail.mjs", &[long.as_str(), "50", "memory"]);
    vec![
        Figure {
            what: "chat: 1 GB session, start to first screen".to_owned(),
            ours: ours.into(),
            goal: Goal::AtMost(Duration::from_millis(60).into()),
            alternative: Some(("node reads its tail".to_owned(), theirs.into())),
        },
        Figure {
            what: "chat: 1 GB session, RssAnon".to_owned(),
            ours: Amount::Bytes(held),
            goal: Goal::AtMost(Amount::Bytes(40_000_000)),
            alternative: Some(("node".to_owned(), Amount::Bytes(theirs_held as u64))),
        },
    ]
}

/// Types while an agent talks as fast as 500 messages a second.
fn typing(bench: &Bench) -> Vec<Figure> {
    let talk = "{repeat: 1000000, do: [{flood: 5, size: 120}, {sleep: 8ms}]}";
    let scene = scene(bench, "chat-typing", talk);
    let home = scene.root.join("home");
    let mut screen = Screen::start(&scene, &home, "chat --no-insights --workers stop");
    screen.wait_for(b"lead");
    screen.press(b"go\r");
    let sessions = home.join("sessions");
    let entries = || transcript_lines(&sessions);
    until(Duration::from_millis(20), || (entries() > 500).then_some(())).expect("it talks");
    let (first, start) = (entries(), Instant::now());
    let mut times: Vec<Duration> = (0..KEYS_TYPED)
        .map(|number| {
            std::thread::sleep(KEYS_PAUSE);
            while screen.drawn.try_recv().is_ok() {}
            let key = [KEYS[number % KEYS.len()]];
            let pressed = screen.press(&key);
            let time = screen.wait_for(&key) - pressed;
            screen.press(CLEAR);
            time
        })
        .collect();
    let rate = (entries() - first) as f64 / start.elapsed().as_secs_f64();
    screen.press(LEAVE);
    screen.leave(LEAVE);
    times.sort_unstable();
    let what = "chat: key to screen while an agent talks";
    vec![
        Figure {
            what: format!("{what}, p99"),
            ours: times[times.len() * 99 / 100].into(),
            goal: Goal::AtMost(Duration::from_millis(16).into()),
            alternative: None,
        },
        Figure {
            what: "chat: entries that were shown meanwhile".to_owned(),
            ours: Amount::PerSecond(rate),
            goal: Goal::AtLeast(Amount::PerSecond(450.0)),
            alternative: None,
        },
    ]
}

/// Lists many sessions to choose from.
fn list(bench: &Bench) -> Figure {
    let scene = scene(bench, "chat-list", "{say: Hi.}");
    let home = bench.folder.join("10k-chats");
    let sessions = many_sessions(&home, &scene.root);
    let newest = format!("question-{}", SESSIONS - 1);
    let start = || Screen::start(&scene, &home, "--resume");
    let ours = until_seen(start, &newest, |screen| screen.leave(b"\x03"));
    let theirs = bench.node("session-files.mjs", &[sessions.as_str(), "50"]);
    Figure {
        what: "chat: 10k sessions, start to first screen".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_millis(150).into()),
        alternative: Some(("node parses the JSON files".to_owned(), theirs.into())),
    }
}

/// From Enter to the request to the model, beside claude's own terminal, with the same prompts.
fn turns(bench: &Bench) -> Figure {
    let api = MessagesApi::start();
    let scene = Scene::new(bench, "chat-turns", 0, |_| String::new());
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "session": { "keep_agent": true },
    });
    let config = json!({ "agents": [lead] }).to_string();
    std::fs::write(scene.root.join("heeler.yaml"), config).expect("disk has space");
    let home = scene.root.join("home");
    let settings = home.join("claude");
    std::fs::create_dir_all(&settings).expect("disk has space");
    // What a person has answered who uses the terminal every day.
    let answered = json!({
        "hasCompletedOnboarding": true, "theme": "dark", "numStartups": 9,
        "customApiKeyResponses": { "approved": [&KEY[KEY.len() - 20..]], "rejected": [] },
        "projects": { scene.root.as_str(): {
            "hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true,
        } },
    });
    std::fs::write(settings.join(".claude.json"), answered.to_string()).expect("disk has space");
    let envs = [
        ("ANTHROPIC_BASE_URL", api.url()),
        ("ANTHROPIC_API_KEY", KEY),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("CLAUDE_CONFIG_DIR", settings.as_str()),
    ];
    let heeler = concat!(env!("CARGO_BIN_EXE_heeler"), " chat --no-insights");
    let ours = turn_time(&api, Screen::of(&scene, &home, heeler, &envs), "heeler");
    let theirs = turn_time(&api, Screen::of(&scene, &home, claude().as_str(), &envs), "claude");
    Figure {
        what: "chat: Enter to the request to the model, from the second turn on".to_owned(),
        ours: ours.into(),
        goal: Goal::TimesFaster(1.0 / 1.1),
        alternative: Some(("claude's own terminal".to_owned(), theirs.into())),
    }
}

/// Returns the median time from Enter to the request, without the first turn.
fn turn_time(api: &MessagesApi, mut screen: Screen, who: &str) -> Duration {
    std::thread::sleep(TERMINAL_START);
    let mut times: Vec<Duration> = (0..TURNS)
        .map(|turn| {
            let words = format!("{who}-turn-{turn}");
            screen.press(words.as_bytes());
            std::thread::sleep(TURN_PAUSE);
            let mut seen = api.messages().len();
            let pressed = screen.press(b"\r");
            loop {
                api.wait_for_messages(seen + 1);
                let at = pressed.elapsed();
                let sent = api.messages();
                // Small requests of the terminal itself have no tools.
                let is_turn = |request: &ApiRequest| {
                    let has_tools =
                        request.body["tools"].as_array().is_some_and(|it| !it.is_empty());
                    has_tools && request.body.to_string().contains(&words)
                };
                if sent[seen..].iter().any(is_turn) {
                    std::thread::sleep(TURN_PAUSE);
                    break at;
                }
                seen = sent.len();
            }
        })
        .collect();
    screen.press(LEAVE);
    std::thread::sleep(TURN_PAUSE);
    screen.leave(LEAVE);
    times.remove(0);
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns how many lines the only transcript of a folder has.
fn transcript_lines(sessions: &Utf8Path) -> usize {
    let mut names = sessions.read_dir_utf8().into_iter().flatten().flatten();
    let log = names.find(|it| it.file_name().ends_with(".transcript.ndjson"));
    let text = log.and_then(|log| std::fs::read(log.path()).ok()).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count()
}

/// A session's file, as agents-fleet documents it, with ours in it.
fn session(id: &str, folder: &Utf8Path) -> String {
    let ours = json!({ "agent": "lead", "folder": folder });
    let session = json!({
        "id": id, "schemaVersion": 3, "transcript": [], "createdAt": "2026-11-15T00:00:00.000Z",
        "transcriptPath": format!("{id}.transcript.ndjson"), "heeler": ours,
    });
    format!("{session:#}\n")
}

/// A transcript of a gigabyte; made once.
fn long_transcript(path: &Utf8Path) {
    if std::fs::metadata(path).is_ok_and(|file| file.len() >= LONG_BYTES) {
        return;
    }
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).expect("disk has space"));
    let text = "x".repeat(1500);
    let turn: String = [
        json!({ "role": "user", "content": text }),
        json!({ "role": "tool", "name": "Bash", "args": { "command": text } }),
        json!({ "role": "assistant", "content": text }),
    ]
    .map(|entry| format!("{entry}\n"))
    .concat();
    for _ in 0..LONG_BYTES / turn.len() as u64 + 1 {
        out.write_all(turn.as_bytes()).expect("disk has space");
    }
    let last = json!({ "role": "assistant", "content": LAST_WORDS });
    writeln!(out, "{last}").and_then(|()| out.flush()).expect("disk has space");
}

/// Sessions, each a minute older than the next; made once.
fn many_sessions(home: &Utf8Path, folder: &Utf8Path) -> Utf8PathBuf {
    let sessions = home.join("sessions");
    if sessions.join(format!("chat-{:08x}.json", SESSIONS - 1)).exists() {
        return sessions;
    }
    std::fs::create_dir_all(&sessions).expect("disk has space");
    for number in 0..SESSIONS {
        let id = format!("chat-{number:08x}");
        let asked = json!({ "role": "user", "content": format!("question-{number}") });
        let said = json!({ "role": "assistant", "content": "x".repeat(400) });
        let text = format!("{asked}\n") + &format!("{said}\n").repeat(ENTRIES);
        for (name, text) in [("transcript.ndjson", text), ("json", session(&id, folder))] {
            let path = sessions.join(format!("{id}.{name}"));
            std::fs::write(&path, text).expect("disk has space");
            let file = File::options().append(true).open(&path).expect("it was written");
            let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + 60 * number);
            file.set_modified(at).expect("it is ours");
        }
    }
    sessions
}
