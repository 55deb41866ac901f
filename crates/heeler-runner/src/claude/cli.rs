//! Claude for one prompt, without the control protocol (`runtime: cli`).
//!
//! The prompt goes in, messages come out, and that is all there is: nobody can be asked, so Claude
//! itself denies what would need approval, and nothing more can be said. Start at [`Cli`].

#[cfg(test)]
mod tests;

use heeler_model::message::read_line;
use heeler_model::run::SessionStart;
use rustix::process::Signal;
use uuid::Uuid;

use super::allowed::{Allowed, Refusal};
use super::args::Setup;
use super::progress::Progress;
use crate::process::Launch;
use crate::runtime::{Runtime, Step};

/// Claude for one prompt.
pub(crate) struct Cli {
    prompt: String,
    setup: Setup,
    allowed: Option<Allowed>,
    progress: Progress,
}

impl Cli {
    /// Makes the runtime, unless its list of allowed tools cannot be held.
    pub(crate) fn new(prompt: String, setup: Setup) -> Result<Cli, Refusal> {
        let allowed = Allowed::of(&setup.brief, &setup.injected)?;
        allowed.as_ref().map_or(Ok(()), Allowed::by_name_only)?;
        Ok(Cli { prompt, setup, allowed, progress: Progress::default() })
    }
}

impl Runtime for Cli {
    fn launch(&self, session: &SessionStart) -> Launch {
        self.setup.cli(self.allowed.as_ref(), session)
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<Step> {
        self.progress = Progress::default();
        vec![Step::Write(self.prompt.clone().into_bytes()), Step::CloseInput]
    }

    fn line(&mut self, line: &[u8]) -> Vec<Step> {
        let message = read_line(line);
        self.progress.message(&message);
        let mut steps = vec![Step::Message(message)];
        if self.progress.newly_done() {
            steps.push(Step::Done);
        }
        steps
    }

    fn interrupt(&mut self) -> Vec<Step> {
        self.progress.end();
        vec![Step::Signal(Signal::INT)]
    }

    fn waits_for_tool(&self) -> bool {
        self.progress.waits_for_tool()
    }
}
