//! The process that writes a fleet's state, and warnings that follow from it. Start at
//! [`StateWriterInfo`].

use heeler_engine::DaemonMode;
use heeler_server::DaemonClient;
use heeler_store::DaemonFile;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandResult, FailureCode};
use crate::process_env;

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
        let client = match daemon::connect(context) {
            // The state can be shown without a daemon that proves to be the fleet's.
            Err(failure) if failure.code == FailureCode::Refused => None,
            client => client?,
        };
        let Some(client) = client else { return Ok((writer, None)) };
        // An agent can write the file, so the daemon itself tells what leads people somewhere.
        let info = client.daemon_info();
        let file = daemon::read_daemon_file(context)?.filter(|file| file.pid == info.pid);
        // The time of its start is only shown.
        let since = file.as_ref().map_or_else(process_env::now, |file| file.since);
        let mode = info.mode.or_else(|| Some(file.as_ref()?.mode));
        let mut file = DaemonFile::this_process(
            client.socket().to_owned(),
            since,
            &info.version,
            mode.unwrap_or(DaemonMode::Permanent),
        );
        (file.pid, file.surroundings, file.url) = (info.pid, info.surroundings, info.url.clone());
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
