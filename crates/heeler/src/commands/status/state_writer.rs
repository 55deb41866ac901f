//! Who keeps a fleet's schedules, as whoever reads wants to know.

use heeler_engine::{DaemonFile, DaemonMode};
use heeler_server::DaemonClient;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;

/// Who writes a fleet's state, and whether that is a daemon that answers.
#[derive(Default)]
pub(crate) struct StateWriterInfo {
    /// Who writes the state, in words.
    pub(super) writer: Option<String>,
    /// The daemon.
    pub(super) daemon: Option<DaemonFile>,
}

impl StateWriterInfo {
    /// Looks who is there.
    pub(crate) fn find(place: &CommandContext) -> CommandResult<StateWriterInfo> {
        Ok(StateWriterInfo::connect(place)?.0)
    }

    /// Looks who is there, and connects to the daemon.
    pub(super) fn connect(
        place: &CommandContext,
    ) -> CommandResult<(StateWriterInfo, Option<DaemonClient>)> {
        let mut keeper = StateWriterInfo { writer: daemon::find_writer(place)?, daemon: None };
        if keeper.writer.is_none() {
            return Ok((keeper, None));
        }
        let file = daemon::read_daemon_file(place)?;
        let client = daemon::connect(place)?;
        let (Some(file), Some(client)) = (file, client) else { return Ok((keeper, None)) };
        if client.daemon_info().pid != file.pid {
            return Ok((keeper, None));
        }
        keeper.daemon = Some(file);
        Ok((keeper, Some(client)))
    }

    /// Returns what people must know before they trust what they see.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        match self.daemon.as_ref().map(|daemon| daemon.mode) {
            Some(DaemonMode::Permanent) => None,
            Some(DaemonMode::UntilIdle) => Some(
                "the daemon that runs ends when it is idle and keeps no schedules: heeler start -d",
            ),
            None => Some("no daemon runs, so nothing starts by itself: heeler start -d"),
        }
    }
}
