//! `heeler runner`: one run of one agent, as a process of its own. The engine starts it.

use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::run::{Brief, SETTLE_BUSY, SETTLE_NEVER};
use heeler_runner::{Host, SettleError};

use crate::failure::{Code, Failure, Outcome};
use crate::{door, files, logging, place};

/// Arguments of `runner`.
#[derive(Args)]
pub(crate) struct RunnerArgs {
    /// The run's folder; its spec is there. --settle takes several
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<Utf8PathBuf>,
    /// Give a run whose runner died its result, instead of running it
    #[arg(long)]
    settle: bool,
    /// Only end what a run has left running whose folder cannot be used
    #[arg(long, conflicts_with = "settle")]
    end: bool,
}

/// Runs or settles.
pub(crate) fn run(args: &RunnerArgs) -> Outcome {
    // Started from within another run, we would end with it.
    heeler_runner::shed_marker()?;
    files::give_back(&place::environment());
    // Nobody's terminal, and nobody's Ctrl-C. Whoever leads a session already has none to leave.
    let _session = rustix::process::setsid();
    let [dir] = &args.dirs[..] else { return settle_all(args) };
    if args.end {
        let ended = heeler_runner::end_left(dir, place::now);
        return ended.map_err(|error| Failure::new(Code::Failed, error));
    }
    if args.settle {
        return heeler_runner::settle(dir, &home()?, place::now)
            .map(|_| ())
            .map_err(|error| Failure::new(settle_code(&error, dir), error));
    }
    let mut host = Host::new(place::program()?, place::now, read_brief()?);
    if let Some(door) = door::of_run(dir) {
        host = host.with_door(door);
    }
    logging::keep_out(host.redactor());
    heeler_runner::run(dir, &host).map_err(anyhow::Error::from)?;
    Ok(())
}

/// Settles what can be settled. What cannot be is told again by whoever tries it alone.
fn settle_all(args: &RunnerArgs) -> Outcome {
    if !args.settle {
        return Err(Failure::message(Code::Usage, "only --settle takes several folders"));
    }
    let settled = heeler_runner::settle_all(&args.dirs, &home()?, place::now);
    match settled.into_iter().find_map(Result::err) {
        Some(error) => Err(Failure::new(Code::Failed, error)),
        None => Ok(()),
    }
}

fn home() -> Outcome<Utf8PathBuf> {
    let env = place::environment();
    place::home(&env, &place::working_directory()?)
        .ok_or_else(|| Failure { code: Code::Failed, ..place::no_home() })
}

/// By the code the engine tells whether to wait, to give up or to try again later.
fn settle_code(error: &SettleError, folder: &Utf8Path) -> Code {
    const { assert!(Code::Refused as u8 == SETTLE_BUSY && Code::Unusable as u8 == SETTLE_NEVER) };
    match error {
        // A run that lives where its folder was copied from is nothing to wait for.
        SettleError::Running { dir, .. } if dir == folder => Code::Refused,
        error if error.is_lasting() => Code::Unusable,
        _ => Code::Failed,
    }
}

fn read_brief() -> Outcome<Brief> {
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| {
        // The document holds secrets: not even the place of the fault is told with its text.
        let message = format!("what came on standard input is no brief ({:?})", error.classify());
        Failure::message(Code::Usage, message)
    })
}
