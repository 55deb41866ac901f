//! Moves a file that is not what it claims to be to another name, where a person can look at it.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::{DiskBackend as _, DiskError, OsDisk};

/// Most files that are kept for one name. A process that creates bad files without end must not
/// fill the folder.
const KEPT_MAX: u32 = 8;

/// Renames `path` to `<path>.<suffix>`, or `<path>.<suffix>-2` and so on if that name is taken.
/// Returns the new name. If all names are taken, the file is removed.
pub fn set_file_aside(path: &Utf8Path, suffix: &str) -> Result<Option<Utf8PathBuf>, DiskError> {
    let failed = |source| DiskError { action: "set aside", path: path.to_owned(), source };
    for number in 1..=KEPT_MAX {
        let name = match number {
            1 => Utf8PathBuf::from(format!("{path}.{suffix}")),
            number => Utf8PathBuf::from(format!("{path}.{suffix}-{number}")),
        };
        match OsDisk.rename_new(path, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map(|()| Some(name)).map_err(failed),
        }
    }
    // It may be a folder, which takes the name just as well.
    let removed = match path.symlink_metadata().map_err(failed)?.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    removed.map(|()| None).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_gets_a_name_of_its_own_up_to_the_limit() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("result.json");
        for number in 1..=KEPT_MAX {
            std::fs::write(&path, number.to_string()).unwrap();
            let aside = set_file_aside(&path, "refused").unwrap().unwrap();
            assert_eq!(std::fs::read_to_string(&aside).unwrap(), number.to_string());
        }
        std::fs::create_dir_all(path.join("in")).unwrap();
        assert_eq!(set_file_aside(&path, "refused").unwrap(), None);
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), KEPT_MAX as usize);
        set_file_aside(&path, "refused").unwrap_err();
    }
}
