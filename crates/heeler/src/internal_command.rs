//! Commands that Heeler starts itself: the runner of each run, and its helpers.
//!
//! They are parsed apart from people's commands. To build the whole command line takes longer than
//! these commands need to start. Start at [`InternalCommand::from_arguments`].

use std::ffi::OsString;

use clap::Parser;

use crate::commands;
use crate::failure::CommandResult;

/// Command that Heeler starts itself.
#[derive(Parser)]
#[command(name = "heeler")]
pub(crate) enum InternalCommand {
    /// Supervise one run in a prepared folder (started by the daemon)
    Runner(commands::runner::RunnerArgs),
    /// Act as a scripted agent (started by a run)
    Play(commands::play::PlayArgs),
    /// Take a snapshot of this folder (started by a run)
    Snapshot(commands::snapshot::SnapshotArgs),
}

/// Names of these commands.
const NAMES: [&str; 3] = ["play", "runner", "snapshot"];

impl InternalCommand {
    /// Returns the command if the arguments name one. Invalid arguments end the process.
    pub(crate) fn from_arguments(arguments: &[OsString]) -> Option<InternalCommand> {
        let name = arguments.get(1)?.to_str()?;
        NAMES.contains(&name).then(|| InternalCommand::parse_from(arguments))
    }

    pub(crate) fn run(self) -> CommandResult {
        match self {
            InternalCommand::Runner(args) => commands::runner::run(&args),
            InternalCommand::Play(args) => commands::play::run(args),
            InternalCommand::Snapshot(args) => commands::snapshot::run(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_internal_command_is_named_and_no_command_of_people_is() {
        let internal = InternalCommand::command();
        let mut names: Vec<&str> =
            internal.get_subcommands().map(clap::Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(names, NAMES);
        let people = crate::command();
        assert!(people.get_subcommands().all(|command| !NAMES.contains(&command.get_name())));
    }
}
