//! `heeler conduct`: one job from its request to its record. `trigger` starts it and may die.

use std::io::{Read as _, Write as _};

use clap::Args;
use heeler_engine::{JobRequest, Notice};
use heeler_model::chain;

use crate::cli::Global;
use crate::failure::{Code, Failure, Outcome};
use crate::place;

/// Arguments of `conduct`.
#[derive(Args)]
pub(crate) struct ConductArgs {
    /// The agent, for those who look at processes
    _agent: String,
}

/// Conducts the job whose request comes on standard input.
pub(crate) fn run(global: &Global) -> Outcome {
    // The terminal of whoever asked may close, and its Ctrl-C is not ours.
    let _session = rustix::process::setsid();
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text)?;
    let request: JobRequest = serde_json::from_slice(&text).map_err(|error| {
        let message = format!("what came on standard input is no request ({:?})", error.classify());
        Failure::message(Code::Usage, message)
    })?;
    drop(text);
    let state_dir = global.state_dir.as_deref();
    let state_dir = state_dir.ok_or_else(|| Failure::message(Code::Usage, "no --state-dir"))?;
    let fleet = place::engine(state_dir, &place::environment())?;
    let mut is_started = false;
    let done = heeler_engine::conduct(&fleet, &request, &mut |notice| {
        is_started |= matches!(notice, Notice::Started { .. });
        tell(notice);
    });
    match done {
        Ok(_) => Ok(()),
        Err(error) if is_started => Err(Failure::new(Code::Failed, error)),
        Err(error) => {
            tell(&Notice::Refused { kind: error.refusal(), reason: chain(&error) });
            Err(Failure::silent(Code::Refused))
        }
    }
}

/// Tells whoever asked, who may have gone meanwhile.
fn tell(notice: &Notice) {
    let mut line = serde_json::to_vec(notice).expect("a notice is JSON");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    drop(out.write_all(&line).and_then(|()| out.flush()));
}
