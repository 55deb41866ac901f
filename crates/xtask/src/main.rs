//! Development tasks: `cargo xtask setup | check | test | audit | prove | bench | soak | docs | dist |
//! measure`.
//!
//! CI runs `cargo xtask test`, so a laptop and CI run the same code. Nothing here ships.
#![expect(clippy::disallowed_methods, reason = "chores start programs and read the environment")]

mod agents;
mod audit;
mod axe;
mod bench;
mod check;
mod claude;
mod conformance;
mod dist;
mod dist_test;
mod elf;
mod imports;
mod inside;
mod measure;
mod packages;
mod schemathesis;
mod setup;
mod shell;
mod site;
mod soak;
mod source;
mod test_runner;
mod test_times;
#[cfg(test)]
mod tidy;
mod unstable_tests;

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use crate::packages::install_cargo_tool;
use crate::shell::{Step, has_nextest, run, step};

/// Repetitions of each proof under `prove`.
const PROVE_SCALE: u32 = 10_000;

/// Name of the proof that is the conformance suite.
const AGENTS_PROOF: &str = "agents";
/// Page with the table of the conformance suite.
const AGENTS_PAGE: &str = "docs/agents.md";

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of Heeler")]
enum Chore {
    /// Install the programs that the tests need (safe to repeat)
    Setup {
        /// Also fetch the agents that only `cargo xtask prove agents` needs
        #[arg(long)]
        agents: bool,
    },
    /// Build the static first process of containers, beside `heeler`
    Inside,
    /// Check changed crates: format, lints, unit tests (no network, no browser)
    Check,
    /// Run everything that CI runs: setup, format, lints, tests, docs, audit
    Test,
    /// Check licences, bans and sources of the dependencies with cargo-deny
    Audit,
    /// Run the long versions of the proofs
    Prove {
        /// Number of repetitions of each proof
        #[arg(long, default_value_t = PROVE_SCALE)]
        scale: u32,
        /// Seed printed by a failed proof, to repeat it
        #[arg(long)]
        seed: Option<u64>,
        /// Run only proofs with this text in their name; `agents` runs the conformance suite with every
        /// certified agent
        filter: Option<String>,
    },
    /// Fuzz a parser (needs a nightly toolchain)
    Fuzz {
        /// Target: transcript, config, chat_frames, webhook_calls, or agent_ with acp, claude, codex or qwen
        target: String,
        /// Duration in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Measure Heeler against its alternatives and print the ratios
    Bench {
        /// Run only this group, such as `transcripts`, `jobs` or `runs`
        group: Option<String>,
    },
    /// Put rising and falling load on one daemon for hours, and print its resources
    Soak {
        /// Duration in minutes
        #[arg(long, default_value_t = 180)]
        minutes: u64,
        /// Program to use [default: a release build]
        #[arg(long)]
        program: Option<std::path::PathBuf>,
    },
    /// Regenerate the reference documents in docs/, and build the site in target/site
    Docs {
        /// Only build the site
        #[arg(long)]
        site: bool,
    },
    /// Make the files of a release: archive, packages, image, install script
    Dist(dist::DistArgs),
    /// Install each file of a release in a bare system and use it (needs root)
    DistTest(dist_test::DistTestArgs),
    /// Print figures about the code base: names, prose, sizes
    Measure,
    /// Print the circles of source files that need each other, with the imports that tie them
    Circles,
}

fn main() -> Result<()> {
    // All paths of the chores are relative to the root.
    std::env::set_current_dir(shell::workspace_root()?)?;
    match Chore::parse() {
        Chore::Setup { agents } => {
            setup::all()?;
            if agents { agents::fetch_others() } else { Ok(()) }
        }
        Chore::Inside => inside::build_static_program(),
        Chore::Check => check::run_check(),
        Chore::Test => test(),
        Chore::Audit => audit::audit(),
        Chore::Prove { scale, seed, filter } => prove(scale, seed, filter.as_deref()),
        Chore::Fuzz { target, seconds } => fuzz(&target, seconds),
        Chore::Bench { group } => bench::figures(group.as_deref()),
        Chore::Soak { minutes, program } => soak::soak(minutes, program),
        Chore::Docs { site } => {
            if !site {
                regenerate_references()?;
            }
            site::build()
        }
        Chore::Dist(args) => dist::make(&args),
        Chore::DistTest(args) => dist_test::run_all(&args),
        Chore::Measure => measure::print_table(),
        Chore::Circles => measure::print_circles(),
    }
}

fn test() -> Result<()> {
    step("setup", setup::all)?;
    let before: [Step; 2] = [
        ("format", &["cargo", "fmt", "--all", "--check"], &[]),
        (
            "lints",
            &["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            &[],
        ),
    ];
    for (name, command, env) in before {
        step(name, || run(command, env))?;
    }
    step("tests", tests)?;
    let docs = ["cargo", "doc", "--workspace", "--no-deps", "--document-private-items"];
    step("docs", || run(&docs, &[("RUSTDOCFLAGS", "-D warnings")]))?;
    step("dependencies", audit::audit_if_changed)?;
    eprintln!("xtask: all checks passed");
    Ok(())
}

fn tests() -> Result<()> {
    if has_nextest() {
        let threads = test_runner::test_threads()?.to_string();
        run(
            &[
                "cargo",
                "nextest",
                "run",
                "--profile",
                "ci",
                "--workspace",
                "--test-threads",
                &threads,
            ],
            &[],
        )?;
        test_times::print_slowest()?;
        return unstable_tests::check_report();
    }
    eprintln!("xtask: cargo-nextest is not installed; using the built-in test runner");
    test_runner::run_all()
}

fn prove(scale: u32, seed: Option<u64>, filter: Option<&str>) -> Result<()> {
    setup::all()?;
    install_cargo_tool("cargo-nextest", "0.9.143")?;
    if filter == Some(AGENTS_PROOF) {
        return prove_agents();
    }
    let expression = match filter {
        Some(name) => format!("test(proof_) & test({name})"),
        None => "test(proof_)".to_owned(),
    };
    let scale = scale.to_string();
    let seed = seed.map(|seed| seed.to_string());
    let mut env = vec![("HEELER_PROOF_SCALE", scale.as_str())];
    env.extend(seed.as_deref().map(|seed| ("HEELER_PROOF_SEED", seed)));
    // Proofs of the model are pure computation: optimised, they are much faster.
    let model: &[&str] = &["--release", "-p", "heeler-model"];
    let rest: &[&str] = &["--workspace", "--exclude", "heeler-model"];
    for (name, packages) in [("prove the model", model), ("prove the rest", rest)] {
        let mut command = vec!["cargo", "nextest", "run", "--profile", "prove"];
        command.extend(packages);
        command.extend(["--no-tests", "pass", "-E", &expression]);
        step(name, || run(&command, &env))?;
    }
    Ok(())
}

/// Runs the conformance suite with every certified agent, and not only with those of CI. A batch per
/// agent keeps one slow agent from using up the time of a test.
fn prove_agents() -> Result<()> {
    agents::fetch_others()?;
    let page = std::fs::read_to_string(AGENTS_PAGE)?;
    let report = std::env::temp_dir().join(format!("heeler-agents-{}.tsv", std::process::id()));
    let report_path = report.to_str().context("the temporary directory is not text")?;
    // With other packages than those of the test suite, everything would be compiled again.
    let command = ["cargo", "nextest", "run", "--profile", "prove", "--workspace", "-E"];
    let mut failed = Vec::new();
    for agent in conformance::certified_agents(&page) {
        let env = [("HEELER_TESTED_AGENTS", agent), ("HEELER_AGENTS_REPORT", report_path)];
        let scenarios = "package(heeler) & test(/^agents::/) \
             & !test(/^agents::(detection|deviations|fleets)::/)";
        if step(agent, || run(&[&command[..], &[scenarios]].concat(), &env)).is_err() {
            failed.push(agent);
        }
    }
    let others = "package(heeler) & test(/^agents::(detection|deviations|fleets)::/)";
    step("fleets of agents", || run(&[&command[..], &[others]].concat(), &[]))?;
    let passed = std::fs::read_to_string(&report).unwrap_or_default();
    let missing = conformance::cells_without_a_pass(&page, &passed);
    if !missing.is_empty() || !failed.is_empty() {
        bail!(
            "failed agents: {failed:?}; cells of {AGENTS_PAGE} without a passing run: {missing:#?}"
        );
    }
    std::fs::remove_file(&report)?;
    Ok(())
}

fn fuzz(target: &str, seconds: u32) -> Result<()> {
    install_cargo_tool("cargo-fuzz", "0.13.2")?;
    let time = format!("-max_total_time={seconds}");
    run(&["cargo", "+nightly", "fuzz", "run", target, "--", &time], &[])
}

/// Regenerates the documents that are golden files of tests, by letting the tests write them.
fn regenerate_references() -> Result<()> {
    let update = [("UPDATE_EXPECT", "1")];
    if has_nextest() {
        return run(&["cargo", "nextest", "run", "--workspace", "-E", "test(golden)"], &update);
    }
    run(&["cargo", "test", "--workspace", "golden"], &update)
}
