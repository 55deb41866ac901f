//! The figures of `cargo xtask bench`: ours, the alternative's and the ratio, from one run.
//!
//! Nothing here asserts: a loaded machine makes every figure worse, on both sides. The prepared
//! files stay in the target folder for the next run.
#![expect(clippy::disallowed_methods, reason = "benchmarks start programs")]

#[path = "figures/agent.rs"]
mod agent;
#[path = "figures/api.rs"]
mod api;
#[path = "figures/chat.rs"]
mod chat;
#[path = "figures/daemon.rs"]
mod daemon;
#[path = "figures/hosts.rs"]
mod hosts;
#[path = "figures/isolation.rs"]
mod isolation;
#[path = "figures/jobs.rs"]
mod jobs;
#[path = "figures/links.rs"]
mod links;
#[path = "figures/live.rs"]
mod live;
#[path = "figures/load.rs"]
mod load;
#[path = "figures/protocol_agent.rs"]
mod protocol_agent;
#[path = "figures/recovery.rs"]
mod recovery;
#[path = "figures/runs.rs"]
mod runs;
#[path = "figures/scene.rs"]
mod scene;
#[path = "figures/sessions.rs"]
mod sessions;
#[path = "figures/shipped_rows.rs"]
mod shipped_rows;
#[path = "figures/transcripts.rs"]
mod transcripts;
#[path = "figures/workflows.rs"]
mod workflows;
#[path = "figures/workspaces.rs"]
mod workspaces;

use std::process::Command;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

/// One line of the result.
pub(crate) struct Figure {
    pub(crate) what: String,
    /// Ours, per operation.
    pub(crate) ours: Amount,
    /// What must be reached.
    pub(crate) goal: Goal,
    /// What a user would have instead, and the same of it.
    pub(crate) alternative: Option<(String, Amount)>,
}

/// What was measured.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Amount {
    Time(Duration),
    Bytes(u64),
    PerSecond(f64),
    Count(u64),
    /// Parts of a core.
    Share(f64),
    /// How many times as much as something else.
    Times(f64),
}

impl From<Duration> for Amount {
    fn from(time: Duration) -> Amount {
        Amount::Time(time)
    }
}

pub(crate) enum Goal {
    AtMost(Amount),
    AtLeast(Amount),
    /// A lower bound for the ratio.
    TimesFaster(f64),
    /// It is only told.
    None,
}

/// Where prepared files lie, and the alternative's scripts.
pub(crate) struct Bench {
    pub(crate) folder: Utf8PathBuf,
    pub(crate) node: Utf8PathBuf,
}

fn main() {
    if let Ok(script) = std::env::var(agent::VARIABLE) {
        return agent::play(&script);
    }
    // `cargo test --benches` and nextest list benches too; measuring is only for `cargo bench`.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let folder = Utf8PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let node =
        Utf8PathBuf::from(std::env::var("HEELER_BENCH_NODE").expect("run `cargo xtask bench`"));
    let bench = Bench { folder, node };
    // `cargo xtask bench runs` measures only these.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wants = |group: &str| wanted.is_empty() || wanted.iter().any(|word| word == group);
    let mut figures = Vec::new();
    if wants("transcripts") {
        figures.extend(transcripts::figures(&bench));
    }
    if wants("jobs") {
        figures.extend(jobs::figures(&bench));
    }
    if wants("sessions") {
        figures.extend(sessions::figures(&bench));
    }
    if wants("runs") {
        figures.extend(runs::figures(&bench));
    }
    if wants("agents") {
        figures.extend(runs::agent_figures(&bench));
    }
    if wants("daemon") {
        figures.extend(daemon::figures(&bench));
    }
    if wants("live") {
        figures.extend(live::figures(&bench));
    }
    if wants("load") {
        figures.extend(load::figures(&bench));
    }
    if wants("api") {
        figures.extend(api::figures(&bench));
    }
    if wants("recovery") {
        figures.push(recovery::figure(&bench));
    }
    if wants("workflows") {
        figures.extend(workflows::figures(&bench));
    }
    if wants("chat") {
        figures.extend(chat::figures(&bench));
    }
    if wants("links") {
        figures.extend(links::figures(&bench));
    }
    if wants("hosts") {
        figures.extend(hosts::figures(&bench));
    }
    // Part of the hosts, which can be measured alone.
    if wants("hosts") || wants("shipped-rows") {
        figures.extend(shipped_rows::figures(&bench));
    }
    if wants("isolation") {
        figures.extend(isolation::figures(&bench));
    }
    if wants("workspaces") {
        figures.extend(workspaces::figures(&bench));
    }
    print(&figures);
}

impl Bench {
    /// Runs one of the Node.js scripts, which prints seconds.
    pub(crate) fn node(&self, script: &str, args: &[&str]) -> Duration {
        Duration::from_secs_f64(self.node_number(script, args))
    }

    /// Runs one of the Node.js scripts, which prints a number.
    pub(crate) fn node_number(&self, script: &str, args: &[&str]) -> f64 {
        let output = Command::new("node").arg(self.node.join(script)).args(args).output();
        let output = output.expect("node is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.trim().parse::<f64>();
        number.unwrap_or_else(|_| panic!("{script}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Returns the memory that only this process has.
pub(crate) fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
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
        let ratio = figure.alternative.as_ref().and_then(|(_, theirs)| figure.ours.ratio(*theirs));
        let (goal, reached) = match figure.goal {
            Goal::AtMost(limit) => (format!("≤ {}", limit.short()), figure.ours <= limit),
            Goal::AtLeast(limit) => (format!("≥ {}", limit.short()), figure.ours >= limit),
            Goal::TimesFaster(times) => (format!("≥ {times}x"), ratio.is_some_and(|r| r >= times)),
            Goal::None => (String::new(), true),
        };
        let alternative = match (&figure.alternative, ratio) {
            (Some((name, theirs)), Some(ratio)) => {
                format!("{name} {} ({ratio:.1}x)", theirs.short())
            }
            (Some((name, theirs)), None) => format!("{name} {}", theirs.short()),
            (None, _) => String::new(),
        };
        let mark = if reached { ' ' } else { '!' };
        println!("{:<46} {:>10} {mark}{goal:>9}  {alternative}", figure.what, figure.ours.short());
    }
    println!("\n`!` marks a goal that this run did not reach.");
}

impl Amount {
    /// Returns how many times better this is than `theirs`.
    fn ratio(self, theirs: Amount) -> Option<f64> {
        match (self, theirs) {
            (Amount::Time(ours), Amount::Time(theirs)) => Some(theirs.div_duration_f64(ours)),
            (Amount::Bytes(ours), Amount::Bytes(theirs)) => Some(theirs as f64 / ours as f64),
            (Amount::Share(ours), Amount::Share(theirs)) => Some(theirs / ours),
            (Amount::PerSecond(ours), Amount::PerSecond(theirs)) => Some(ours / theirs),
            _ => None,
        }
    }

    fn short(self) -> String {
        match self {
            Amount::Time(time) => short(time),
            Amount::Bytes(bytes) => format!("{:.1} MB", bytes as f64 / 1e6),
            Amount::PerSecond(rate) => format!("{rate:.0}/s"),
            Amount::Count(count) => count.to_string(),
            Amount::Share(share) => format!("{:.2} %", share * 100.0),
            Amount::Times(times) => format!("{times:.2}x"),
        }
    }
}

fn short(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000 => format!("{} ns", time.as_nanos()),
        1_000..1_000_000 => format!("{:.1} µs", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}
