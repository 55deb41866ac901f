//! Takes away the temp files that a crash left. The caller holds the state lock, so nobody else
//! who writes views lives.

use camino::Utf8Path;

use crate::layout::StateDir;

/// Removes `.<name>.tmp.<16 hex>` from the folders that views and backups are written to, and
/// returns how many there were. What cannot be removed stays, and is reported.
pub(crate) fn sweep(dir: &StateDir) -> usize {
    let folders = [dir.root().to_owned(), dir.jobs(), dir.sessions(), dir.backups()];
    folders.iter().map(|folder| sweep_folder(folder)).sum()
}

fn sweep_folder(folder: &Utf8Path) -> usize {
    let Ok(entries) = folder.read_dir_utf8() else { return 0 };
    let temps = entries.filter_map(Result::ok).filter(|entry| is_temp(entry.file_name()));
    temps
        .filter(|entry| match std::fs::remove_file(entry.path()) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(path = %entry.path(), %error, "cannot remove a temp file");
                false
            }
        })
        .count()
}

/// Says whether a file name is one of a temp file of ours.
pub(crate) fn is_temp(name: &str) -> bool {
    let Some((before, random)) = name.rsplit_once(".tmp.") else { return false };
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    before.len() > 1 && before.starts_with('.') && random.len() == 16 && random.bytes().all(is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_temp_files_are_recognised() {
        assert!(is_temp(".state.yaml.tmp.0123456789abcdef"));
        for name in [
            "state.yaml.tmp.0123456789abcdef",
            ".state.yaml.tmp.0123",
            ".state.yaml.tmp.0123456789ABCDEF",
            ".tmp.0123456789abcdef",
            ".state.yaml.swp",
        ] {
            assert!(!is_temp(name), "{name}");
        }
    }
}
