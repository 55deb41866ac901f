//! The end of a file that only this host has, because its run was given up before it was shipped.
//!
//! A later run of the job continues the file on another host, from the length on record. Here the whole file is kept
//! under another name, in the folder of the job, and a copy of its beginning takes its place. Start at
//! [`set_tail_aside`].

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_store::{ReceivedPart, StateDir};
use heeler_transcript::{OsDisk, create_folder, resolve_inside, untrusted_file};

/// Lets a file end where a part of another host continues it. Returns the name under which the whole file is kept, if it
/// had something else there. May be interrupted and repeated.
pub(super) fn set_tail_aside(
    dir: &StateDir,
    path: &Utf8Path,
    part: &ReceivedPart,
) -> io::Result<Option<Utf8PathBuf>> {
    let file = match untrusted_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let Some(aside) = name_aside(dir, part) else { return Ok(None) };
    if !has_other_bytes(&file, part)? {
        return Ok(None);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    if let Some(folder) = aside.parent() {
        create_folder(&OsDisk, folder).map_err(|error| error.source)?;
    }
    // A runner that is being ended writes on to the same file.
    match std::fs::hard_link(path, &aside) {
        // An interrupted attempt.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        linked => linked?,
    }
    let draft = folder.join(format!(".{name}.copy"));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut copy = untrusted_file::open_with(&mut options, &draft)?;
    io::copy(&mut file.take(part.start), &mut copy)?;
    copy.sync_all()?;
    std::fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()?;
    Ok(Some(aside))
}

/// Returns true if a file has bytes in the place of the part that are not those of the part.
fn has_other_bytes(file: &File, part: &ReceivedPart) -> io::Result<bool> {
    let end = file.metadata()?.len().min(part.start + part.bytes.len() as u64);
    let mut there = vec![0; end.saturating_sub(part.start) as usize];
    file.read_exact_at(&mut there, part.start)?;
    Ok(!part.bytes.starts_with(&there))
}

/// Returns the name for the file of a job; `None` for other files, which no second run continues.
fn name_aside(dir: &StateDir, part: &ReceivedPart) -> Option<Utf8PathBuf> {
    let job = part.path.strip_prefix("jobs/")?.split(['.', '/']).next()?;
    let kind = part.path.rsplit('.').next()?;
    // An agent may have put a link there.
    resolve_inside(dir.root(), &format!("jobs/{job}/unshared-{}.{kind}", part.number)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_host_has_is_kept_under_another_name() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join("state")).unwrap();
        let job = "job-2024-01-19-abc123";
        let part = |name: &str, start: u64, text: &str| ReceivedPart {
            number: 7,
            host: "alpha".to_owned(),
            path: name.to_owned(),
            start,
            bytes: text.as_bytes().to_vec(),
            is_last: false,
            takes_over: true,
        };
        for (name, aside) in [
            (format!("jobs/{job}.jsonl"), format!("jobs/{job}/unshared-7.jsonl")),
            (format!("jobs/{job}/output.log"), format!("jobs/{job}/unshared-7.log")),
        ] {
            let (path, aside) = (dir.root().join(&name), dir.root().join(aside));
            let next = part(&name, 4, "new\nrow\n");
            let set = || set_tail_aside(&dir, &path, &next).unwrap();
            assert_eq!(set(), None, "there is no file");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            for same in ["old\n", "old\nne", "old\nnew\nrow\n", "old\nnew\nrow\nmore\n"] {
                std::fs::write(&path, same).unwrap();
                assert_eq!(set(), None, "{same}");
            }
            std::fs::write(&path, "old\nlost\n").unwrap();
            // It was interrupted after its first step.
            std::fs::create_dir_all(aside.parent().unwrap()).unwrap();
            std::fs::hard_link(&path, &aside).unwrap();
            assert_eq!(set(), Some(aside.clone()));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\n");
            assert_eq!(std::fs::read_to_string(&aside).unwrap(), "old\nlost\n");
            assert_eq!(set(), None, "once");
        }
        // No link is followed.
        let target = dir.root().join("target");
        std::fs::write(&target, "old\nlost\n").unwrap();
        let link = format!("jobs/{job}.jsonl");
        std::fs::remove_file(dir.root().join(&link)).unwrap();
        std::os::unix::fs::symlink(&target, dir.root().join(&link)).unwrap();
        set_tail_aside(&dir, &dir.root().join(&link), &part(&link, 4, "new\n")).unwrap_err();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old\nlost\n");
    }
}
