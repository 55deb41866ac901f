//! The files below Codex's session folder, by their names. Start at [`rollout_files`].

use std::time::SystemTime;

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};
use uuid::Uuid;

use super::program::NATIVE_FILES_MAX;

/// Levels of directories between the session folder and its files: year, month, day.
const FOLDER_LEVELS: usize = 3;

/// Characters of a UUID.
const UUID_CHARS: usize = 36;

/// Form of the time in a name; `0` stands for any digit.
const TIME_FORM: &str = "0000-00-00T00-00-00";

/// A file of a thread.
pub(super) struct RolloutFile {
    /// ID of the file: for the first file of a thread, that of the thread.
    pub(super) id: Uuid,
    pub(super) thread: Uuid,
    pub(super) path: Utf8PathBuf,
    pub(super) modified_at: SystemTime,
}

/// Returns all files below a session folder.
pub(super) fn rollout_files(folder: &Utf8Path) -> impl Iterator<Item = RolloutFile> + use<> {
    let mut folders = vec![folder.to_owned()];
    for _ in 0..FOLDER_LEVELS {
        let below = folders.iter().flat_map(|folder| entries(folder));
        // The type of an entry is not that of a link's target, so no link is followed.
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders = below.map(|entry| entry.path().to_owned()).take(NATIVE_FILES_MAX).collect();
    }
    let files = folders.into_iter().flat_map(|folder| entries(&folder));
    files.take(NATIVE_FILES_MAX).filter_map(|entry| rollout(&entry))
}

/// Finds the file with this ID in the session folder of another file.
pub(super) fn find_rollout(sibling: &Utf8Path, id: &str) -> Option<Utf8PathBuf> {
    let id = Uuid::try_parse(id).ok()?;
    let folder = sibling.ancestors().nth(FOLDER_LEVELS + 1)?;
    rollout_files(folder).find(|file| file.id == id).map(|file| file.path)
}

fn entries(folder: &Utf8Path) -> impl Iterator<Item = Utf8DirEntry> + use<> {
    folder.read_dir_utf8().into_iter().flatten().filter_map(Result::ok)
}

fn rollout(entry: &Utf8DirEntry) -> Option<RolloutFile> {
    let path = entry.path();
    let (thread, own) = parse_name(entry.file_name())?;
    let file = path.symlink_metadata().ok().filter(|file| file.is_file())?;
    Some(RolloutFile {
        id: own.unwrap_or(thread),
        thread,
        path: path.to_owned(),
        modified_at: file.modified().ok()?,
    })
}

/// Returns the path below the session folder of a thread's first file with this name. `None` if it is
/// not the name of such a file.
pub(super) fn first_file_path(name: &str, thread: &str) -> Option<String> {
    let (named, own) = parse_name(name)?;
    let time = name.strip_prefix("rollout-")?.strip_suffix(".jsonl")?;
    // The name is text of another machine, so nothing but a time may stand before the thread.
    let time = time.strip_suffix(&named.to_string())?.strip_suffix('-')?;
    let has_form = time.len() == TIME_FORM.len()
        && time.bytes().zip(TIME_FORM.bytes()).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        });
    let date = time.split_once('T').filter(|_| own.is_none() && has_form)?.0;
    (named.to_string() == thread).then(|| format!("{}/{name}", date.replace('-', "/")))
}

/// Reads `rollout-<time>-<thread>.jsonl` or `rollout-<time>-<thread>_<file>.jsonl`: the thread, and the
/// ID of the file.
fn parse_name(name: &str) -> Option<(Uuid, Option<Uuid>)> {
    let rest = name.strip_suffix(".jsonl")?.strip_prefix("rollout-")?;
    let (rest, own) = match rest.split_once('_') {
        Some((rest, own)) => (rest, Some(Uuid::try_parse(own).ok()?)),
        None => (rest, None),
    };
    let thread = rest.get(rest.len().checked_sub(UUID_CHARS)?..)?;
    Some((Uuid::try_parse(thread).ok()?, own))
}
