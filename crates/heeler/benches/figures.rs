//! The figures of `cargo xtask bench`: ours, the alternative's and the ratio, from one run.
//!
//! Nothing here asserts: a loaded machine makes every figure worse, on both sides. The prepared
//! files stay in the target folder for the next run.
#![expect(clippy::disallowed_methods, reason = "benchmarks start programs")]

#[path = "figures/jobs.rs"]
mod jobs;
#[path = "figures/transcripts.rs"]
mod transcripts;

use std::process::Command;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

/// One line of the result.
pub(crate) struct Figure {
    pub(crate) what: String,
    /// Our time per operation.
    pub(crate) ours: Duration,
    /// What must be reached: an upper bound for our time, or a lower bound for the ratio.
    pub(crate) goal: Goal,
    /// What a user would have instead, and its time for the same.
    pub(crate) alternative: Option<(String, Duration)>,
}

pub(crate) enum Goal {
    AtMost(Duration),
    TimesFaster(f64),
}

/// Where prepared files lie, and the alternative's scripts.
pub(crate) struct Bench {
    pub(crate) folder: Utf8PathBuf,
    pub(crate) node: Utf8PathBuf,
}

fn main() {
    // `cargo test --benches` and nextest list benches too; measuring is only for `cargo bench`.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let folder = Utf8PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let node =
        Utf8PathBuf::from(std::env::var("HEELER_BENCH_NODE").expect("run `cargo xtask bench`"));
    let bench = Bench { folder, node };
    let mut figures = transcripts::figures(&bench);
    figures.extend(jobs::figures(&bench));
    print(&figures);
}

impl Bench {
    /// Runs one of the Node.js scripts, which prints seconds.
    pub(crate) fn node(&self, script: &str, args: &[&str]) -> Duration {
        let output = Command::new("node").arg(self.node.join(script)).args(args).output();
        let output = output.expect("node is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        let seconds = text.trim().parse::<f64>();
        let complain = || panic!("{script}: {}", String::from_utf8_lossy(&output.stderr));
        Duration::from_secs_f64(seconds.unwrap_or_else(|_| complain()))
    }
}

/// Returns the median time of a call, after one to warm up.
pub(crate) fn median(rounds: usize, mut call: impl FnMut()) -> Duration {
    call();
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[rounds / 2]
}

/// Returns the median time of a whole process.
pub(crate) fn process(rounds: usize, program: &str, args: &[&str], dir: &Utf8Path) -> Duration {
    median(rounds, || {
        let output = Command::new(program).args(args).current_dir(dir).output();
        let output = output.unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

fn print(figures: &[Figure]) {
    println!("\n{:<46} {:>10}  {:>9}  alternative", "what", "ours", "goal");
    for figure in figures {
        let ratio =
            figure.alternative.as_ref().map(|(_, theirs)| theirs.div_duration_f64(figure.ours));
        let (goal, reached) = match figure.goal {
            Goal::AtMost(limit) => (format!("≤ {}", short(limit)), figure.ours <= limit),
            Goal::TimesFaster(times) => (format!("≥ {times}x"), ratio.is_some_and(|r| r >= times)),
        };
        let alternative = match (&figure.alternative, ratio) {
            (Some((name, time)), Some(ratio)) => format!("{name} {} ({ratio:.0}x)", short(*time)),
            _ => String::new(),
        };
        let mark = if reached { ' ' } else { '!' };
        println!("{:<46} {:>10} {mark}{goal:>9}  {alternative}", figure.what, short(figure.ours));
    }
    println!("\n`!` marks a goal that this run did not reach.");
}

fn short(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000 => format!("{} ns", time.as_nanos()),
        1_000..1_000_000 => format!("{:.1} µs", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}
