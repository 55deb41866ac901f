//! Which commands may run something of a fleet, and which only read. Start at [`CommandEffect::of`].

use clap::ArgMatches;

use tracing::subscriber::NoSubscriber;

use crate::config_changes;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::trust::{self, UnlistedFleet};

/// Effect of a command on a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandEffect {
    /// Runs nothing of the fleet, and never asks whether it is trusted.
    Reads,
    /// Starts a daemon if none runs, and the daemon runs what the config says.
    Runs,
    /// Becomes or replaces the daemon; asks by itself, after its own preparations.
    Starts,
}

/// Commands that become or replace the daemon.
const STARTING: [&str; 2] = ["start", "restart"];

/// Commands that start a daemon if none runs: all others.
#[cfg(test)]
const RUNNING: [&str; 52] = [
    "agent disable",
    "agent enable",
    "agent forget-hosts",
    "agent forget-permissions",
    "agent reset",
    "agent resume",
    "approvals approve",
    "approvals reject",
    "approvals reply",
    "cancel",
    "chat",
    "connect discord",
    "connect github",
    "connect slack",
    "connect telegram",
    "costs set",
    "host drain",
    "host lost",
    "jobs cancel",
    "jobs fork",
    "jobs rename",
    "jobs resume",
    "jobs retry",
    "notify remove",
    "notify test",
    "password remove",
    "password set",
    "schedule disable",
    "schedule enable",
    "schedule reset",
    "schedule set",
    "schedule trigger",
    "session adopt",
    "session cleanup",
    "session delete",
    "session fork",
    "session import",
    "session move",
    "session rename",
    "session restore",
    "session resume",
    "sessions resume",
    "token create",
    "token revoke",
    "trigger",
    "workflow cancel",
    "workflow disable",
    "workflow enable",
    "workflow reset",
    "workflow retry",
    "workflow run",
    "workflow watch",
];

/// Commands that run nothing of a fleet. `demo` runs its own.
const READING: [&str; 61] = [
    "agent add",
    "agent capabilities",
    "agent list",
    "agent remove",
    "agent show",
    "approvals list",
    "approvals show",
    "backup",
    "completions",
    "config edit",
    "config schema",
    "config show",
    "config validate",
    "costs",
    "demo",
    "doctor",
    "host list",
    "host remove",
    "host show",
    "image build",
    "import",
    "init agent",
    "init fleet",
    "init",
    "job",
    "jobs logs",
    "jobs show",
    "jobs why",
    "jobs",
    "logs",
    "man",
    "migrate store",
    "messages",
    "notify browsers",
    "notify list",
    "open",
    "password list",
    "reload",
    "restore",
    "schedule list",
    "schedule show",
    "search",
    "self-update",
    "session diff",
    "session export",
    "session list",
    "session rewind",
    "session show",
    "sessions",
    "status",
    "stop",
    "token list",
    "trust",
    "version",
    "workflow example",
    "workflow graph",
    "workflow list",
    "workflow logs",
    "workflow runs",
    "workflow show",
    "workflow validate",
];

impl CommandEffect {
    /// Returns the effect of the command that was typed.
    pub(crate) fn of(given: &ArgMatches) -> CommandEffect {
        let (mut given, mut path) = (given, Vec::new());
        while let Some((name, of_subcommand)) = given.subcommand() {
            path.push(name);
            given = of_subcommand;
        }
        CommandEffect::of_path(&path.join(" "))
    }

    fn of_path(path: &str) -> CommandEffect {
        match () {
            () if READING.contains(&path) => CommandEffect::Reads,
            () if STARTING.contains(&path) => CommandEffect::Starts,
            // One that is in no list is not let through; a test keeps the lists complete.
            () => CommandEffect::Runs,
        }
    }
}

/// Before a command that may start a daemon: makes sure that a person has agreed to what the daemon
/// would run. A daemon that runs already has been agreed to, but scripts may have changed since.
pub(crate) fn require_trust(global: &GlobalArgs, effect: CommandEffect) -> CommandResult {
    if effect != CommandEffect::Runs {
        return Ok(());
    }
    // The command itself reports why there is no fleet, and what it ignores.
    let quiet = GlobalArgs { quiet: true, ..global.clone() };
    let found =
        tracing::subscriber::with_default(NoSubscriber::new(), || CommandContext::find(&quiet));
    let Ok(context) = found else { return Ok(()) };
    if context.config.is_none() {
        return Ok(());
    }
    let is_current = daemon::is_current(&context)?;
    let without_entry = match is_current {
        true => UnlistedFleet::Allow,
        false => UnlistedFleet::Ask,
    };
    trust::require(&context, without_entry)?;
    // A daemon that is used as it is loads nothing.
    if is_current { Ok(()) } else { config_changes::require(&context) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every command that can be typed, below `command`.
    fn paths(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name()).trim().to_owned();
            if !sub.has_subcommands() || !sub.is_subcommand_required_set() {
                found.push(path.clone());
            }
            paths(sub, &path, found);
        }
    }

    #[test]
    fn every_command_is_in_exactly_one_list() {
        let mut typed = Vec::new();
        paths(&crate::command(), "", &mut typed);
        let lists = [&READING[..], &RUNNING[..], &STARTING[..]].concat();
        let count = |path: &str| lists.iter().filter(|known| **known == path).count();
        let wrong: Vec<_> = typed.iter().filter(|path| count(path) != 1).collect();
        assert!(wrong.is_empty(), "say whether these run something of a fleet: {wrong:?}");
        let gone: Vec<_> =
            lists.iter().filter(|known| !typed.iter().any(|path| path == *known)).collect();
        assert!(gone.is_empty(), "there are no such commands: {gone:?}");
    }

    #[test]
    fn a_command_that_is_in_no_list_needs_trust() {
        assert_eq!(CommandEffect::of_path("new thing"), CommandEffect::Runs);
        assert_eq!(CommandEffect::of_path("status"), CommandEffect::Reads);
    }
}
