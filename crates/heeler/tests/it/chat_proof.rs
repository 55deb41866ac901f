//! kill -9 of `heeler chat` at any moment: everything that was on the screen is in the resumed session.
//!
//! On the screen is what a whole frame has shown; one that the kill has cut off half drawn shows what
//! nobody wrote. All of it are entries, which are in their file by then, but for words at the end, which
//! may still be coming: the entry that follows begins with them.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use heeler_testkit::ProofSettings;
use rustix::process::Signal;
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::pty::{ENTER, Pty};

/// A round takes about a second: more of them would take hours.
const ROUNDS_MAX: u64 = 2_000;
/// How often a session is killed before it is looked at as a whole.
const ROUNDS_PER_SESSION: u64 = 10;
/// Two sessions.
const ROUNDS_IN_CI: u64 = 2 * ROUNDS_PER_SESSION;
/// How many things a turn says and does.
const STEPS: usize = 25;
/// How long after it was seen a program lives at most.
const LIFE_MS_MAX: u64 = 400;

/// Something in a transcript or on a screen.
#[derive(Debug, Clone, PartialEq)]
enum Item {
    Person(String),
    Words(String),
    /// A tool was called, and gave something or not yet.
    Tool(String, bool),
    Note(String),
}

impl Item {
    /// Says whether it shows what is kept: what a tool gave may have come since.
    fn shows(&self, kept: &Item) -> bool {
        match (self, kept) {
            (Item::Tool(shown, has_given), Item::Tool(kept, gave)) => {
                shown == kept && (!has_given || *gave)
            }
            _ => self == kept,
        }
    }
}

/// A fleet, and the session that is killed again and again.
struct World {
    herd: Herd,
    life: Life,
    session: Option<String>,
    done: BTreeSet<String>,
    prompts: usize,
    /// Prompts whose run was killed, perhaps.
    cut: BTreeSet<String>,
    /// Words at the end of a screen of which there was no entry yet.
    coming: Vec<String>,
    context: String,
}

impl World {
    fn new() -> World {
        let script = format!(
            "[{{repeat: {STEPS}, do: [{{say: '{{prompt}} says {{n}} in a few words.', chunks: 5, delay: 3ms}}, \
             {{tool: Look, input: {{path: '{{prompt}}-{{n}}'}}, result: 'seen'}}]}}, {{say: '{{prompt}} is done.'}}]"
        );
        let herd =
            Herd::of(&format!("agents: [{{name: lead, runtime: scripted, script: {script}}}]\n"));
        let life = herd.begin(&[]).0;
        let (session, done, cut) = (None, BTreeSet::new(), BTreeSet::new());
        let (coming, context) = (Vec::new(), String::new());
        World { herd, life, session, done, prompts: 0, cut, coming, context }
    }

    /// Opens a terminal with the session, or with a new one.
    fn open(&self) -> Pty {
        match &self.session {
            Some(id) => Pty::start(&self.herd.fleet, &["--resume", id, "--no-insights"]),
            None => Pty::start(&self.herd.fleet, &["chat", "--no-insights"]),
        }
    }

    /// One life of the program, from its start to kill -9.
    fn round(&mut self, random: &mut fastrand::Rng) {
        let mut pty = self.open();
        if random.u8(0..8) > 0 {
            let screen = pty.shows("\nlead");
            let waits = random.bool();
            if waits || !screen.contains("Esc interrupts") {
                self.say_next(&pty);
            }
        }
        std::thread::sleep(Duration::from_millis(random.u64(0..LIFE_MS_MAX)));
        let others = random.u8(0..10);
        if others == 0 {
            self.kill_runs();
        }
        if others == 1 {
            self.life.kill();
            std::thread::sleep(Duration::from_millis(random.u64(0..50)));
        }
        pty.signal(Signal::KILL);
        pty.ended();
        if others == 1 {
            self.begin_again();
        }
        self.find_session();
        self.look_at(&pty);
    }

    /// Says something when the agent is ready for it: what was not sent, or something new.
    fn say_next(&mut self, pty: &Pty) {
        let screen = pty.hides("Esc interrupts");
        if !screen.contains("Enter sends it now") {
            self.prompts += 1;
            pty.type_in(&format!("go{}", self.prompts));
        }
        pty.type_in(ENTER);
    }

    /// Starts a daemon where one was killed. A conversation that was without may have started another
    /// meanwhile, which is killed too.
    fn begin_again(&mut self) {
        let fleet = &self.herd.fleet;
        self.life = loop {
            let mut life = self.herd.start(&[]);
            if self.herd.connect(&mut life).is_some() {
                break life;
            }
            for pid in fleet.processes("--in-background") {
                fleet.signal(pid, "--in-background", Signal::KILL);
            }
        };
    }

    fn kill_runs(&mut self) {
        let fleet = &self.herd.fleet;
        for pid in fleet.processes("runner") {
            fleet.signal(pid, "runner", Signal::KILL);
        }
        self.cut.insert(format!("go{}", self.prompts));
    }

    fn find_session(&mut self) {
        let names = fs::read_dir(self.herd.fleet.file("home/.heeler/sessions"));
        let names = names.into_iter().flatten().map(|it| it.unwrap().file_name());
        let ids = names.filter_map(|it| it.to_str()?.strip_suffix(".json").map(str::to_owned));
        let mut ids = ids.filter(|id| !id.starts_with('.') && !self.done.contains(id));
        self.session = ids.next();
    }

    /// What the session's file has, in the order in which it is shown.
    fn kept(&self) -> Vec<Item> {
        let Some(id) = &self.session else { return Vec::new() };
        let log = format!("home/.heeler/sessions/{id}.transcript.ndjson");
        let log = fs::read_to_string(self.herd.fleet.file(&log)).unwrap_or_default();
        let mut kept: Vec<Item> = Vec::new();
        // Half a line at the end is what a kill has cut off: nobody has seen it, and it is said again.
        for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let entry: Json = serde_json::from_str(line).unwrap();
            let text = entry["content"].as_str().unwrap_or_default().to_owned();
            match entry["role"].as_str().unwrap() {
                "user" => kept.push(Item::Person(text)),
                "assistant" => kept.push(Item::Words(text)),
                "system" => kept.push(Item::Note(text)),
                "tool" if entry["args"].is_object() => {
                    kept.push(Item::Tool(
                        entry["args"]["path"].as_str().unwrap().to_owned(),
                        false,
                    ));
                }
                _ => match kept.last_mut() {
                    Some(Item::Tool(_, gave)) if !*gave => *gave = true,
                    other => panic!("{other:?} gave something; {}", self.context),
                },
            }
        }
        kept
    }

    /// All that a terminal has shown is in the file, in one piece.
    #[track_caller]
    fn look_at(&mut self, pty: &Pty) {
        let kept = self.kept();
        let is_kept = |shown: &[Item]| {
            shown.is_empty()
                || kept
                    .windows(shown.len())
                    .any(|part| shown.iter().zip(part).all(|(shown, kept)| shown.shows(kept)))
        };
        for shown in frames(&pty.bytes()) {
            if is_kept(&shown) {
                continue;
            }
            let Some((Item::Words(words), entries)) = shown.split_last() else {
                panic!("{shown:?} was on the screen, kept is {kept:?}; {}", self.context);
            };
            assert!(
                is_kept(entries),
                "{shown:?} was on the screen, kept is {kept:?}; {}",
                self.context
            );
            self.coming.push(words.clone());
        }
    }

    /// Resumes the session, and looks whether each turn is in it once, in order, and whole unless its
    /// run was killed.
    fn end_session(&mut self) {
        let mut pty = self.open();
        pty.shows("\nlead");
        self.say_next(&pty);
        pty.hides(&format!("› go{}\nlead", self.prompts));
        pty.shows(&format!("● go{} is done.", self.prompts));
        pty.hides("Esc interrupts");
        pty.signal(Signal::TERM);
        assert_eq!(pty.wait().code(), Some(0), "{}", self.context);
        pty.ended();
        self.find_session();
        self.look_at(&pty);
        let kept = self.kept();
        let turns: Vec<&[Item]> =
            kept.chunk_by(|_, next| !matches!(next, Item::Person(_))).collect();
        let mut allowed: Vec<String> = Vec::new();
        for (at, turn) in turns.iter().enumerate() {
            let Some((Item::Person(prompt), rest)) = turn.split_first() else {
                panic!("{turn:?}; {}", self.context)
            };
            let whole = whole(prompt);
            if *rest == whole[..] {
                continue;
            }
            let was_said_again = turns.get(at + 1).is_some_and(|next| next[0] == turn[0]);
            if rest.is_empty() && was_said_again {
                continue;
            }
            let Some((Item::Note(_), body)) = rest.split_last() else {
                panic!("{turn:?} is not whole; {}", self.context)
            };
            assert!(self.cut.contains(prompt), "{turn:?} was not cut; {}", self.context);
            let is_beginning = body.len() <= whole.len()
                && body.iter().zip(&whole).all(|(shown, all)| shown.shows(all));
            assert!(is_beginning, "{turn:?} has gaps; {}", self.context);
            // What was being said when the run was killed is nowhere.
            allowed.extend(whole.get(body.len()).map(words));
        }
        allowed.extend(kept.iter().map(words));
        for coming in std::mem::take(&mut self.coming) {
            let is_said = allowed.iter().any(|words| words.starts_with(&coming));
            assert!(
                is_said,
                "{coming:?} was on the screen, {allowed:?} was said; {}",
                self.context
            );
        }
        self.done.extend(self.session.take());
    }
}

fn words(item: &Item) -> String {
    if let Item::Words(words) = item { words.clone() } else { String::new() }
}

/// What a turn comes to.
fn whole(prompt: &str) -> Vec<Item> {
    let step = |n: usize| {
        let words = Item::Words(format!("{prompt} says {n} in a few words."));
        [words, Item::Tool(format!("{prompt}-{n}"), true)]
    };
    let done = Item::Words(format!("{prompt} is done."));
    (1..=STEPS).flat_map(step).chain([done]).collect()
}

/// What each whole frame has shown. A frame ends with the cursor being shown again.
fn frames(bytes: &[u8]) -> Vec<Vec<Item>> {
    const END: &[u8] = b"\x1b[?25h";
    let mut parser = crate::pty::parser();
    let mut frames: Vec<Vec<Item>> = Vec::new();
    let mut from = 0;
    while let Some(at) = bytes[from..].windows(END.len()).position(|part| part == END) {
        parser.process(&bytes[from..from + at + END.len()]);
        from += at + END.len();
        let screen = parser.screen();
        // What comes after is no screen of the conversation.
        if !screen.alternate_screen() {
            continue;
        }
        let rows: Vec<String> = screen.rows(0, screen.size().1.get()).collect();
        let rule = rows.iter().rposition(|row| row.starts_with("────"));
        let items = rows[..rule.unwrap_or(0)].iter().filter_map(|row| item(row.trim_end()));
        let items: Vec<Item> = items.collect();
        if frames.last() != Some(&items) {
            frames.push(items);
        }
    }
    frames
}

/// Reads a row of a transcript; what else is told there is no part of it.
fn item(row: &str) -> Option<Item> {
    let call = |rest: &str| rest.split_whitespace().next().unwrap_or_default().to_owned();
    let is_note = |text: &&str| ["failed: ", "error: "].iter().any(|it| text.starts_with(it));
    let note = || row.strip_prefix("  ").filter(is_note);
    if let Some(text) = row.strip_prefix("› ") {
        return Some(Item::Person(text.to_owned()));
    }
    if let Some(text) = row.strip_prefix("● ") {
        return Some(Item::Words(text.to_owned()));
    }
    if let Some(rest) = row.strip_prefix("  · Look ") {
        return Some(Item::Tool(call(rest), false));
    }
    if let Some(rest) = row.strip_prefix("  ✓ Look ") {
        return Some(Item::Tool(call(rest), true));
    }
    note().map(|text| Item::Note(text.to_owned()))
}

#[test]
fn proof_everything_on_the_screen_is_in_the_resumed_session() {
    let proof = ProofSettings::new(ROUNDS_IN_CI);
    let rounds = proof.rounds.min(ROUNDS_MAX);
    let mut world = World::new();
    for round in 0..rounds {
        world.context = format!("seed {}, round {round}", proof.seed);
        world.round(&mut proof.random(round));
        if round % ROUNDS_PER_SESSION == ROUNDS_PER_SESSION - 1 || round == rounds - 1 {
            world.end_session();
        }
    }
    world.life.kill();
}
