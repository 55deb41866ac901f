//! Reads and writes text files for an agent. Start at [`perform_file_request`].

use std::io;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::error_chain;
use heeler_transcript::{OsDisk, replace_file_with_mode, untrusted_file};
use serde_json::{Value as Json, json};

use super::{ClientFileRequest, FileOperation};

/// Size limit of a file that is read or written.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Permissions of a new file, without those that the process creates no file with.
const NEW_FILE_MODE: u32 = 0o666;

/// Performs a request; the error says why it is refused.
pub(crate) fn perform_file_request(request: &ClientFileRequest) -> Result<Json, String> {
    let ClientFileRequest { path, operation, was_asked, policy } = request;
    let real = real_path(path).map_err(|error| format!("cannot find {path}: {error}"))?;
    policy.check_real_path(operation.action(), path, &real, *was_asked)?;
    match operation {
        FileOperation::Read { skipped, lines } => {
            let bytes = untrusted_file::read(&real, FILE_BYTES_MAX)
                .map_err(|error| format!("cannot read {path}: {error}"))?;
            let text = String::from_utf8(bytes)
                .map_err(|_| format!("cannot read {path}: it is not UTF-8 text"))?;
            let wanted = text.split_inclusive('\n').skip(*skipped);
            let content: String = wanted.take(lines.unwrap_or(usize::MAX)).collect();
            Ok(json!({ "content": content }))
        }
        FileOperation::Write { content } => {
            write_text(&real, content).map_err(|error| format!("cannot write {path}: {error}"))?;
            Ok(json!({}))
        }
    }
}

/// Returns the path without links. Its last parts need not exist.
fn real_path(path: &Utf8Path) -> io::Result<Utf8PathBuf> {
    match path.canonicalize_utf8() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    // A link that leads nowhere would be written through, to a place that no one has seen.
    if path.symlink_metadata().is_ok() {
        return Err(io::Error::other("it is a link that leads nowhere"));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    Ok(real_path(parent)?.join(name))
}

fn write_text(real: &Utf8Path, content: &str) -> io::Result<()> {
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it would be longer than {FILE_BYTES_MAX} bytes")));
    }
    let mode = match real.symlink_metadata() {
        Ok(there) if there.is_file() => there.permissions().mode() & 0o777,
        Ok(_) => return Err(io::Error::other("it is not a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = real.parent() {
                std::fs::create_dir_all(folder)?;
            }
            NEW_FILE_MODE & !creation_mask()
        }
        Err(error) => return Err(error),
    };
    // A runner that is killed leaves the old text or the new one.
    replace_file_with_mode(&OsDisk, real, content.as_bytes(), mode)
        .map_err(|error| io::Error::other(error_chain(&error)))
}

/// Returns the permissions with which this process creates no file. It can only be read by the files of
/// the kernel: the system call also changes it.
fn creation_mask() -> u32 {
    const USUAL: u32 = 0o022;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use heeler_config::PermissionMode;

    use super::*;
    use crate::program_policy::ProgramPolicy;

    struct Project {
        _temp: tempfile::TempDir,
        root: Utf8PathBuf,
    }

    impl Project {
        fn new() -> Project {
            let temp = tempfile::tempdir().unwrap();
            let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
            std::fs::create_dir_all(root.join("work/src")).unwrap();
            std::fs::create_dir_all(root.join("state")).unwrap();
            std::fs::write(root.join("state/secret"), "key").unwrap();
            std::fs::write(root.join("outside.txt"), "outside").unwrap();
            std::fs::write(root.join("work/heeler.yaml"), "name: x\n").unwrap();
            std::fs::write(root.join("work/a.txt"), "one\ntwo\nthree\n").unwrap();
            Project { _temp: temp, root }
        }

        fn policy(&self, mode: PermissionMode) -> ProgramPolicy {
            let protected = vec![self.root.join("work/heeler.yaml"), self.root.join("state")];
            let unreadable = vec![self.root.join("state")];
            ProgramPolicy::new(mode, protected, unreadable, self.root.join("work"))
        }

        #[track_caller]
        fn perform(
            &self,
            (mode, was_asked): (PermissionMode, bool),
            path: &str,
            operation: FileOperation,
        ) -> Result<Json, String> {
            let policy = self.policy(mode);
            let path = policy.absolute(self.root.join("work").join(path).as_str());
            perform_file_request(&ClientFileRequest { path, operation, was_asked, policy })
        }

        fn link(&self, name: &str, to: &str) {
            symlink(self.root.join(to), self.root.join("work").join(name)).unwrap();
        }
    }

    fn read() -> FileOperation {
        FileOperation::Read { skipped: 0, lines: None }
    }

    fn write() -> FileOperation {
        FileOperation::Write { content: "new".to_owned() }
    }

    const FREE: (PermissionMode, bool) = (PermissionMode::BypassPermissions, false);
    const ASKED: (PermissionMode, bool) = (PermissionMode::Default, true);
    const BY_MODE: (PermissionMode, bool) = (PermissionMode::AcceptEdits, false);

    #[test]
    fn a_part_of_a_file_is_read() {
        let project = Project::new();
        let all = project.perform(BY_MODE, "a.txt", read()).unwrap();
        assert_eq!(all["content"], "one\ntwo\nthree\n");
        let part = FileOperation::Read { skipped: 1, lines: Some(1) };
        assert_eq!(project.perform(BY_MODE, "a.txt", part).unwrap()["content"], "two\n");
        let beyond = FileOperation::Read { skipped: 9, lines: Some(1) };
        assert_eq!(project.perform(BY_MODE, "a.txt", beyond).unwrap()["content"], "");
    }

    #[test]
    fn a_file_keeps_its_permissions_and_a_new_one_gets_those_of_the_process() {
        let project = Project::new();
        let script = project.root.join("work/run.sh");
        std::fs::write(&script, "old").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        project.perform(BY_MODE, "run.sh", write()).unwrap();
        assert_eq!(std::fs::read_to_string(&script).unwrap(), "new");
        assert_eq!(script.metadata().unwrap().permissions().mode() & 0o777, 0o755);

        project.perform(BY_MODE, "new/folder/b.txt", write()).unwrap();
        let new = project.root.join("work/new/folder/b.txt");
        let usual = project.root.join("work/usual.txt");
        std::fs::write(&usual, "").unwrap();
        let mode = |path: &Utf8Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&new), mode(&usual));
    }

    #[test]
    fn no_path_leads_to_a_protected_file() {
        let project = Project::new();
        project.link("config", "work/heeler.yaml");
        project.link("records", "state");
        for path in ["heeler.yaml", "src/../heeler.yaml", "config", "records/x", "../state/x"] {
            for setup in [FREE, ASKED, BY_MODE] {
                let reason = project.perform(setup, path, write()).unwrap_err();
                assert!(reason.contains("protected"), "{path}: {reason}");
            }
        }
        for path in ["records/secret", "../state/secret"] {
            for setup in [FREE, ASKED, BY_MODE] {
                let reason = project.perform(setup, path, read()).unwrap_err();
                assert!(reason.contains("belongs to the fleet"), "{path}: {reason}");
            }
        }
        let text = std::fs::read_to_string(project.root.join("work/heeler.yaml")).unwrap();
        assert_eq!(text, "name: x\n");
        assert!(!project.root.join("state/x").exists());
    }

    #[test]
    fn a_link_leads_nowhere_that_the_path_does_not_tell() {
        let project = Project::new();
        project.link("notes.txt", "outside.txt");
        project.link("up", "");
        std::fs::create_dir(project.root.join("work/.git")).unwrap();
        project.link("hooks.txt", "work/.git/config");
        project.link("lost.txt", "nowhere/else.txt");
        for setup in [ASKED, BY_MODE] {
            for path in ["notes.txt", "up/outside.txt", "up/more/new.txt", "lost.txt"] {
                project.perform(setup, path, write()).unwrap_err();
            }
            project.perform(setup, "notes.txt", read()).unwrap_err();
        }
        // The name in `.git` does not exist, and the link would make it.
        project.perform(BY_MODE, "hooks.txt", write()).unwrap_err();
        std::fs::write(project.root.join("work/.git/config"), "").unwrap();
        project.perform(BY_MODE, "hooks.txt", write()).unwrap_err();
        project.perform(ASKED, "hooks.txt", write()).unwrap_err();
        assert_eq!(std::fs::read_to_string(project.root.join("outside.txt")).unwrap(), "outside");
        assert!(!project.root.join("more").exists() && !project.root.join("nowhere").exists());
        // A person has seen this path.
        project.perform(ASKED, "../outside.txt", write()).unwrap();
        project.perform(ASKED, ".git/config", write()).unwrap();
        // A link within the directory is as good as the file.
        project.link("same.txt", "work/a.txt");
        project.perform(BY_MODE, "same.txt", write()).unwrap();
        assert_eq!(std::fs::read_to_string(project.root.join("work/a.txt")).unwrap(), "new");
    }

    #[test]
    fn only_text_files_of_a_limited_size_are_touched() {
        let project = Project::new();
        let pipe = project.root.join("work/pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, pipe.as_std_path(), mode).unwrap();
        std::fs::write(project.root.join("work/binary"), [0xff, 0xfe]).unwrap();
        let huge = std::fs::File::create(project.root.join("work/huge")).unwrap();
        huge.set_len(FILE_BYTES_MAX + 1).unwrap();
        for (path, reason) in [
            ("pipe", "not a file"),
            ("src", "not a file"),
            ("binary", "not UTF-8"),
            ("huge", "longer than"),
            ("missing", "No such file"),
        ] {
            let refusal = project.perform(FREE, path, read()).unwrap_err();
            assert!(refusal.contains(reason), "{path}: {refusal}");
        }
        for path in ["pipe", "src"] {
            let refusal = project.perform(FREE, path, write()).unwrap_err();
            assert!(refusal.contains("not a file"), "{path}: {refusal}");
        }
        let long = "x".repeat(usize::try_from(FILE_BYTES_MAX).unwrap() + 1);
        let refusal = project.perform(FREE, "a.txt", FileOperation::Write { content: long });
        assert!(refusal.unwrap_err().contains("longer than"));
    }
}
