//! kill -9 of an appending process, at any instant.

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_testkit::ProofSettings;
use heeler_transcript::{
    TranscriptDurability, TranscriptEntry, TranscriptFaultKind, TranscriptOpenError,
    TranscriptScanner, TranscriptWriter, TranscriptWriterOptions,
};

use crate::{folder, open};

const CHILD_PATH: &str = "HEELER_TEST_APPEND_TO";
const CHILD_SEED: &str = "HEELER_TEST_APPEND_SEED";
/// A file takes so many rounds before a new one is begun.
const ROUNDS_PER_FILE: u64 = 50;

#[test]
fn proof_kill_9_of_an_appending_process_loses_no_acknowledged_line() {
    if let ControlFlow::Break(()) = be_the_child() {
        return;
    }
    let proof = ProofSettings::new(100);
    let (_temp, folder) = folder();
    let mut checked = Checked::new(&folder, 0);
    let mut torn = 0;
    for round in 0..proof.rounds {
        if round % ROUNDS_PER_FILE == 0 {
            checked = Checked::new(&folder, round);
        }
        let mut random = proof.random(round);
        let child_seed = random.u64(..);
        let acknowledged = run_and_kill(&checked.path, child_seed, &mut random);
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        torn += u64::from(checked.check(child_seed, acknowledged, &context));
    }
    println!("{} kills, {torn} of them tore a line", proof.rounds);
}

/// Starts the child, kills it after a random number of acknowledgments and a random moment more,
/// and returns the number of lines it acknowledged.
fn run_and_kill(path: &Utf8Path, seed: u64, random: &mut fastrand::Rng) -> u64 {
    let mut child = start_child(path, seed);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = 0;
    let wanted = random.u64(0..30);
    while acknowledged < wanted {
        let line = lines.next().expect("the child does not end by itself").unwrap();
        acknowledged = parse_ack(&line).unwrap_or(acknowledged);
    }
    if acknowledged > 0 {
        let busy = TranscriptWriter::open(path, TranscriptWriterOptions::default()).unwrap_err();
        assert!(matches!(busy, TranscriptOpenError::Busy { .. }), "{busy}");
    }
    // Without this the kill would always come right after an acknowledgment. Long enough to reach
    // the child's start, too.
    let moment = Duration::from_micros(random.u64(0..if wanted == 0 { 8000 } else { 1500 }));
    let waited = Instant::now();
    while waited.elapsed() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    for line in lines {
        acknowledged = parse_ack(&line.unwrap()).unwrap_or(acknowledged);
    }
    child.wait().unwrap();
    acknowledged
}

#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn start_child(path: &Utf8Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::proof_kill_9_of_an_appending_process_loses_no_acknowledged_line"])
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD_PATH, path)
        .env(CHILD_SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn parse_ack(line: &str) -> Option<u64> {
    line.strip_prefix("ack ")?.parse().ok()
}

/// In the child: appends until it is killed, and tells after each append how many lines it made.
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn be_the_child() -> ControlFlow<()> {
    let Ok(path) = std::env::var(CHILD_PATH) else { return ControlFlow::Continue(()) };
    let seed: u64 = std::env::var(CHILD_SEED).unwrap().parse().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let durability =
        if random.bool() { TranscriptDurability::Event } else { TranscriptDurability::Interval };
    let options = TranscriptWriterOptions { durability, ..TranscriptWriterOptions::default() };
    let mut log = TranscriptWriter::open(Utf8Path::new(&path), options).unwrap().writer;
    let mut out = std::io::stdout().lock();
    let mut appended = 0;
    // Ends the line that the test harness has begun.
    writeln!(out).unwrap();
    loop {
        let count = if random.u8(0..4) == 0 { random.u64(2..6) } else { 1 };
        let lines: Vec<String> = (appended..appended + count).map(|n| line(seed, n)).collect();
        let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        log.append_all(&bytes).unwrap();
        appended += count;
        if writeln!(out, "ack {appended}").and_then(|()| out.flush()).is_err() {
            return ControlFlow::Break(());
        }
    }
}

/// Mostly short, sometimes so long that a kill can come in the middle of its write.
fn line(seed: u64, n: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed ^ n);
    let len = match random.u8(0..10) {
        0 => random.usize(100_000..800_000),
        1..4 => random.usize(1_000..20_000),
        _ => random.usize(0..200),
    };
    format!(r#"{{"seed":{seed},"n":{n},"pad":"{}"}}"#, "x".repeat(len))
}

/// A file, and how far it is known to be right.
struct Checked {
    path: Utf8PathBuf,
    end: u64,
}

impl Checked {
    fn new(folder: &Utf8Path, round: u64) -> Self {
        for old in folder.read_dir_utf8().unwrap() {
            std::fs::remove_file(old.unwrap().path()).unwrap();
        }
        Self { path: folder.join(format!("{round}.jsonl")), end: 0 }
    }

    /// Checks what the killed process wrote, and that the next append is clean; returns whether a
    /// line was torn.
    fn check(&mut self, seed: u64, acknowledged: u64, context: &str) -> bool {
        if !self.path.exists() {
            assert_eq!(acknowledged, 0, "{context}");
            return false;
        }
        let mut torn = false;
        let mut found = 0;
        for entry in TranscriptScanner::open_at(&self.path, self.end).unwrap() {
            match entry.unwrap() {
                TranscriptEntry::Record(record) => {
                    assert!(record.text == line(seed, found), "{context}: line {found} is wrong");
                    found += 1;
                    self.end = record.next;
                }
                TranscriptEntry::Fault(fault) => {
                    assert_eq!(fault.kind, TranscriptFaultKind::TornTail, "{context}");
                    torn = true;
                }
            }
        }
        assert!(found >= acknowledged, "{context}: {found} lines of {acknowledged} are there");
        let mut log = open(&self.path);
        // A torn tail that is whole but for its newline is completed, and never acknowledged.
        log.append(br#"{"clean":true}"#).unwrap();
        let after: Vec<TranscriptEntry> =
            TranscriptScanner::open_at(&self.path, self.end).unwrap().map(Result::unwrap).collect();
        let completed = line(seed, found);
        for (at, entry) in after.iter().enumerate() {
            let TranscriptEntry::Record(record) = entry else { panic!("{context}: {entry:?}") };
            let last = at == after.len() - 1;
            let expected = if last { r#"{"clean":true}"# } else { &completed };
            assert!(record.text == expected, "{context}: the next append is not clean");
        }
        assert!(after.len() == 1 || after.len() == 2, "{context}");
        self.end = log.end();
        torn
    }
}

#[test]
fn proof_many_writers_take_turns_and_never_mix() {
    const WRITERS: usize = 4;
    let proof = ProofSettings::new(100);
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let turns = proof.rounds;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &path;
            scope.spawn(move || {
                for turn in 0..turns {
                    let mut log = loop {
                        match TranscriptWriter::open(path, TranscriptWriterOptions::default()) {
                            Ok(opened) => {
                                assert_eq!(opened.repair, None);
                                break opened.writer;
                            }
                            Err(TranscriptOpenError::Busy { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    for n in 0..3 {
                        let line = format!(r#"{{"writer":{writer},"turn":{turn},"n":{n}}}"#);
                        log.append(line.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    let (records, faults) = crate::read_all(&path);
    assert_eq!(faults, []);
    assert_eq!(records.len() as u64, 3 * turns * WRITERS as u64);
    for turn in records.chunks(3) {
        let texts: Vec<String> =
            turn.iter().map(|record| record.text.replace(r#""n":"#, "")).collect();
        let same = |n: usize| texts[n].strip_suffix(&format!("{n}}}")).unwrap().to_owned();
        assert!(same(0) == same(1) && same(1) == same(2), "{texts:?}");
    }
}
