//! Publication and removal of `daemon.json`, with the fault points between their steps.

use std::io;

use heeler_store::{DaemonFile, DaemonFileError, StateDir};

use crate::fault::{self, FaultPoint};

/// Writes the file. Only the holder of the state directory's lock may call this.
pub fn write_daemon_file(file: &DaemonFile, dir: &StateDir) -> Result<(), DaemonFileError> {
    fault::reach(FaultPoint::BeforeDaemonFile);
    file.write(dir)?;
    fault::reach(FaultPoint::AfterDaemonFile);
    Ok(())
}

/// Removes the file and the socket. Must be called before the state directory's lock is released.
pub fn remove_daemon_file(file: &DaemonFile, dir: &StateDir) {
    fault::reach(FaultPoint::BeforeFileRemoved);
    // The file goes first, so that no client finds a file that names a missing socket.
    let files = [
        (dir.daemon_file(), FaultPoint::AfterFileRemoved),
        (file.socket.clone(), FaultPoint::AfterSocketRemoved),
    ];
    for (path, removed) in files {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "cannot remove {path}");
            }
            _ => {}
        }
        fault::reach(removed);
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use heeler_model::daemon_status::DaemonMode;
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_daemon_says_where_it_listens_until_it_ends() {
        let temp = tempfile::tempdir().unwrap();
        let dir = &StateDir::open(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        let (since, mode) = (Timestamp::UNIX_EPOCH, DaemonMode::UntilIdle);
        let file = DaemonFile::this_process("/run/x/d.sock".into(), since, "1.2.3", mode);
        write_daemon_file(&file, dir).unwrap();
        assert_eq!(DaemonFile::read(dir).unwrap(), Some(file.clone()));
        remove_daemon_file(&file, dir);
        assert_eq!(DaemonFile::read(dir).unwrap(), None);
    }
}
