//! The project's chores: `cargo xtask setup | test | prove | bench | docs`.
//!
//! Everything CI does is here, so that a laptop and CI run the same code. Nothing here ships.
#![expect(clippy::disallowed_methods, reason = "chores start programs and read the environment")]

mod axe;
mod bench;
mod claude;
mod schemathesis;
mod setup;
mod shell;

use anyhow::Result;
use clap::Parser;

use crate::shell::{Step, run, step};

/// How often each proof repeats itself under `prove`.
const PROVE_SCALE: u32 = 10_000;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Heeler's chores")]
enum Chore {
    /// Installs every outside part that the checks need; says what it does; safe to repeat
    Setup,
    /// Runs everything CI runs: setup, format, lints, tests, docs, dependency rules
    Test,
    /// Runs the long versions of the proofs
    Prove {
        /// How often each proof repeats itself
        #[arg(long, default_value_t = PROVE_SCALE)]
        scale: u32,
        /// Repeats a failure: the seed that a failed proof printed
        #[arg(long)]
        seed: Option<u64>,
        /// Only proofs whose name contains this
        filter: Option<String>,
    },
    /// Fuzzes one of the readers (needs a nightly toolchain)
    Fuzz {
        /// The target: transcript or config
        target: String,
        /// For how long
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Measures ours and the alternatives in one run, and prints the ratios
    Bench {
        /// Only this group: `transcripts`, `jobs` or `runs`.
        group: Option<String>,
    },
    /// Writes the generated references under docs/ again
    Docs,
}

fn main() -> Result<()> {
    std::env::set_current_dir(shell::workspace_root()?)?;
    match Chore::parse() {
        Chore::Setup => setup::all(),
        Chore::Test => test(),
        Chore::Prove { scale, seed, filter } => prove(scale, seed, filter.as_deref()),
        Chore::Fuzz { target, seconds } => fuzz(&target, seconds),
        Chore::Bench { group } => bench::figures(group.as_deref()),
        Chore::Docs => docs(),
    }
}

fn test() -> Result<()> {
    step("setup", setup::all)?;
    let steps: [Step; 5] = [
        ("format", &["cargo", "fmt", "--all", "--check"], &[]),
        (
            "lints",
            &["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            &[],
        ),
        ("tests", &["cargo", "nextest", "run", "--workspace"], &[]),
        (
            "docs",
            &["cargo", "doc", "--workspace", "--no-deps", "--document-private-items"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
        (
            // Advisories need a database that only the network has; `cargo deny check` on a
            // connected machine covers them.
            "dependencies",
            &["cargo", "deny", "check", "bans", "licenses", "sources"],
            &[],
        ),
    ];
    for (name, command, env) in steps {
        step(name, || run(command, env))?;
    }
    eprintln!("xtask: all checks passed");
    Ok(())
}

fn prove(scale: u32, seed: Option<u64>, filter: Option<&str>) -> Result<()> {
    setup::all()?;
    let expression = match filter {
        Some(name) => format!("test(proof_) & test({name})"),
        None => "test(proof_)".to_owned(),
    };
    let scale = scale.to_string();
    let seed = seed.map(|seed| seed.to_string());
    let mut env = vec![("HEELER_PROOF_SCALE", scale.as_str())];
    env.extend(seed.as_deref().map(|seed| ("HEELER_PROOF_SEED", seed)));
    let command =
        ["cargo", "nextest", "run", "--workspace", "--profile", "prove", "-E", &expression];
    step("prove", || run(&command, &env))
}

fn fuzz(target: &str, seconds: u32) -> Result<()> {
    setup::cargo_tool("cargo-fuzz", "0.13.2")?;
    let time = format!("-max_total_time={seconds}");
    run(&["cargo", "+nightly", "fuzz", "run", target, "--", &time], &[])
}

/// The generated documents are golden files of tests; this lets the tests write them.
fn docs() -> Result<()> {
    run(
        &["cargo", "nextest", "run", "--workspace", "-E", "test(golden)"],
        &[("UPDATE_EXPECT", "1")],
    )
}
