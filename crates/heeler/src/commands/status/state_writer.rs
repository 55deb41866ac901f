//! The process that writes a fleet's state, and warnings that follow from it. Start at
//! [`StateWriterInfo`].

use heeler_engine::DaemonMode;
use heeler_server::DaemonClient;
use heeler_store::DaemonFile;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandResult, FailureCode};

/// Process that writes a fleet's state, and its daemon file if it is a daemon that answers.
#[derive(Default)]
pub(crate) struct StateWriterInfo {
    /// Description of the process.
    pub(super) writer: Option<String>,
    pub(super) daemon: Option<DaemonFile>,
}

impl StateWriterInfo {
    pub(crate) fn find(context: &CommandContext) -> CommandResult<StateWriterInfo> {
        Ok(StateWriterInfo::connect(context)?.0)
    }

    /// Finds the process, and connects to it if it is a daemon.
    pub(super) fn connect(
        context: &CommandContext,
    ) -> CommandResult<(StateWriterInfo, Option<DaemonClient>)> {
        let mut writer = StateWriterInfo { writer: daemon::find_writer(context)?, daemon: None };
        // A daemon file without a lock is left over from a killed daemon.
        if writer.writer.is_none() {
            return Ok((writer, None));
        }
        let file = daemon::read_daemon_file(context)?;
        let client = match daemon::connect(context) {
            // The state can be shown without a daemon that proves to be the fleet's.
            Err(failure) if failure.code == FailureCode::Refused => None,
            client => client?,
        };
        let (Some(mut file), Some(client)) = (file, client) else { return Ok((writer, None)) };
        // The daemon was replaced between the two calls, so file and client do not fit together.
        if client.daemon_info().pid != file.pid {
            return Ok((writer, None));
        }
        // An agent can write the file, so the daemon itself tells what leads people somewhere.
        let info = client.daemon_info();
        (file.mode, file.url) = (info.mode.unwrap_or(file.mode), info.url.clone());
        writer.daemon = Some(file);
        Ok((writer, Some(client)))
    }

    /// Returns a warning if schedules do not run at present.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        match self.daemon.as_ref().map(|daemon| daemon.mode) {
            Some(DaemonMode::Permanent) => None,
            Some(DaemonMode::UntilIdle) => {
                Some("the running daemon is temporary and runs no schedules: heeler start -d")
            }
            None => Some(
                "no daemon is running, so schedules and queued jobs do not start: heeler start -d",
            ),
        }
    }
}
