//! Directory for control sockets: accessible only to the user, with a short path.
//!
//! A socket address holds 108 bytes and a deep checkout has a longer path, so sockets are not in
//! the state directory. Start at [`ensure_socket_folder`].

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::SOCKET_NAME_LEN;
use thiserror::Error;

/// Maximum length of a socket path without NUL: 107 bytes on Linux, 103 on macOS.
const ADDRESS_BYTES_MAX: usize = 103;

/// Maximum length of the directory's path, which is followed by a slash and the socket's name.
const FOLDER_BYTES_MAX: usize = ADDRESS_BYTES_MAX - 1 - SOCKET_NAME_LEN;

/// Failure to provide a directory for sockets.
#[derive(Debug, Error)]
pub enum SocketFolderError {
    /// The directory cannot be created or inspected.
    #[error("cannot use {path} for control sockets")]
    Io {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Other users may have access to the directory.
    #[error(
        "{path} is not a folder that only you can enter; remove it, or set XDG_RUNTIME_DIR to one \
         that is"
    )]
    NotOurs { path: Utf8PathBuf },
}

/// Returns the directory for sockets and creates it if needed: in `runtime_dir` (XDG_RUNTIME_DIR)
/// if that belongs to the user, else in the first of `temp_dirs` that exists and has a short enough
/// path, else in `/tmp`.
pub fn ensure_socket_folder(
    runtime_dir: Option<&Utf8Path>,
    temp_dirs: &[&Utf8Path],
) -> Result<Utf8PathBuf, SocketFolderError> {
    if let Some(parent) = runtime_dir
        && parent.is_absolute()
        && is_private_folder(parent).unwrap_or(false)
    {
        let folder = parent.join("heeler");
        if folder.as_str().len() <= FOLDER_BYTES_MAX {
            return create_folder(folder);
        }
    }
    let name = format!("heeler-{}", rustix::process::geteuid().as_raw());
    // A directory that does not exist is passed over like one with a long path: the variable may
    // come from another machine or another login.
    let fits = |parent: &&&Utf8Path| {
        parent.join(&name).as_str().len() <= FOLDER_BYTES_MAX && parent.is_dir()
    };
    let parent = temp_dirs.iter().find(fits).copied().unwrap_or(Utf8Path::new("/tmp"));
    create_folder(parent.join(&name))
}

/// Returns the directories in which sockets may be, most likely first. Nothing is created.
///
/// `owner` is another user whose directories count, too: root controls the fleets of others.
/// `hint` names a further directory, for a daemon with another environment. It is not believed:
/// it counts only if no other user can enter it.
pub fn known_socket_folders(
    runtime_dir: Option<&Utf8Path>,
    temp_dirs: &[&Utf8Path],
    owner: u32,
    hint: Option<&Utf8Path>,
) -> Vec<Utf8PathBuf> {
    let name = format!("heeler-{}", rustix::process::geteuid().as_raw());
    let mut folders: Vec<Utf8PathBuf> =
        runtime_dir.map(|it| it.join("heeler")).into_iter().collect();
    folders.extend(temp_dirs.iter().map(|parent| parent.join(&name)));
    folders.push(Utf8Path::new("/tmp").join(&name));
    folders.extend(hint.map(Utf8Path::to_owned));
    let mut known: Vec<Utf8PathBuf> = Vec::new();
    for folder in folders {
        let is_private = is_private_folder_of(&folder, owner).unwrap_or(false);
        if folder.is_absolute() && is_private && !known.contains(&folder) {
            known.push(folder);
        }
    }
    known
}

fn create_folder(folder: Utf8PathBuf) -> Result<Utf8PathBuf, SocketFolderError> {
    let failed = |source| SocketFolderError::Io { path: folder.clone(), source };
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        // It may have been made by another user, which is checked below.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(failed(source)),
    }
    match is_private_folder(&folder).map_err(failed)? {
        true => Ok(folder),
        false => Err(SocketFolderError::NotOurs { path: folder }),
    }
}

/// Returns true for a directory, not a link to one, that belongs to this user and that no other
/// user can enter.
fn is_private_folder(folder: &Utf8Path) -> io::Result<bool> {
    is_private_folder_of(folder, rustix::process::geteuid().as_raw())
}

fn is_private_folder_of(folder: &Utf8Path, owner: u32) -> io::Result<bool> {
    let found = folder.symlink_metadata()?;
    let users = [owner, rustix::process::geteuid().as_raw()];
    Ok(found.is_dir() && users.contains(&found.uid()) && found.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use heeler_model::RunId;
    use heeler_model::run::socket_name;

    use super::*;

    fn temp(mode: u32) -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::Builder::new().prefix("s").tempdir_in("/tmp").unwrap();
        let path = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (temp, path)
    }

    #[test]
    fn the_runtime_folder_is_used_when_it_is_the_users_own() {
        let ((_a, runtime), (_b, tmp)) = (temp(0o700), temp(0o777));
        let found = ensure_socket_folder(Some(&runtime), &[&tmp]).unwrap();
        assert_eq!(found, runtime.join("heeler"));
        assert!(is_private_folder(&found).unwrap());
        assert_eq!(
            ensure_socket_folder(Some(&runtime), &[&tmp]).unwrap(),
            found,
            "it may be there already"
        );
    }

    #[test]
    fn a_runtime_folder_that_others_enter_is_passed_over() {
        let ((_a, runtime), (_b, tmp)) = (temp(0o755), temp(0o777));
        let uid = rustix::process::geteuid().as_raw();
        let expected = tmp.join(format!("heeler-{uid}"));
        assert_eq!(ensure_socket_folder(Some(&runtime), &[&tmp]).unwrap(), expected);
        assert_eq!(
            ensure_socket_folder(Some(Utf8Path::new("/nonexistent")), &[&tmp]).unwrap(),
            expected
        );
    }

    #[test]
    fn folders_that_do_not_exist_are_passed_over() {
        let (_temp, tmp) = temp(0o777);
        let (runtime, missing) = (tmp.join("none"), tmp.join("neither"));
        let found = ensure_socket_folder(Some(&runtime), &[&missing, &tmp]).unwrap();
        assert_eq!(found.parent(), Some(&*tmp));
        assert!(!runtime.exists() && !missing.exists());
        let found = ensure_socket_folder(Some(&runtime), &[&missing]).unwrap();
        assert_eq!(found.parent(), Some(Utf8Path::new("/tmp")));
    }

    #[test]
    fn a_folder_that_somebody_else_may_have_prepared_is_refused() {
        let (_temp, tmp) = temp(0o777);
        let folder = tmp.join(format!("heeler-{}", rustix::process::geteuid().as_raw()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(
            ensure_socket_folder(None, &[&tmp]),
            Err(SocketFolderError::NotOurs { .. })
        ));
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(matches!(
            ensure_socket_folder(None, &[&tmp]),
            Err(SocketFolderError::NotOurs { .. })
        ));
    }

    #[test]
    fn only_private_folders_are_known_and_a_hint_is_checked() {
        let ((_a, runtime), (_b, open), (_c, hint)) = (temp(0o700), temp(0o755), temp(0o700));
        let uid = rustix::process::geteuid().as_raw();
        let made = ensure_socket_folder(Some(&runtime), &[]).unwrap();
        let known = |hint: &Utf8Path| known_socket_folders(Some(&runtime), &[], uid, Some(hint));
        assert_eq!(known(&hint).first(), Some(&made));
        assert!(known(&hint).contains(&hint));
        assert!(!known(&open).contains(&open), "others can enter it");
        let link = runtime.join("link");
        std::os::unix::fs::symlink(&hint, &link).unwrap();
        assert!(!known(&link).contains(&link), "it may lead elsewhere next time");
    }

    #[test]
    fn a_path_that_no_socket_fits_in_is_passed_over() {
        let ((_a, long), (_b, short)) = (temp(0o700), temp(0o700));
        let below = |len: usize| {
            let left = len - long.as_str().len() - "//heeler".len();
            let folder = long.join("x".repeat(left));
            std::fs::create_dir(&folder).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
            folder
        };
        let (fits, no_more) = (below(FOLDER_BYTES_MAX), below(FOLDER_BYTES_MAX + 1));
        let found = ensure_socket_folder(Some(&no_more), &[&no_more, &short]).unwrap();
        assert!(found.starts_with(&short), "{found}");
        let found = ensure_socket_folder(Some(&fits), &[&short]).unwrap();
        assert_eq!(found.as_str().len(), FOLDER_BYTES_MAX);
        let socket = found.join(socket_name(RunId::mint(jiff::Timestamp::UNIX_EPOCH, [7; 10])));
        std::os::unix::net::UnixListener::bind(socket).unwrap();
    }
}
