//! Files that agents sent: `jobs/<job id>/files/<id>-<name>`, written by the job's runner.
//!
//! They are stored unchanged. A sent file that ends in `.jsonl` or `.lock` is not a transcript
//! or lock of Heeler. Start at [`StateDir::sent_files`].

use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_transcript::resolve_inside;

use crate::layout::StateDir;

const FOLDER: &str = "files";

/// A file that an agent sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentFile {
    /// Name that the agent gave.
    pub name: String,
    /// Path of the copy.
    pub path: Utf8PathBuf,
    pub bytes: u64,
}

impl StateDir {
    /// Returns the directory of the files that a job's agent sent. It is created with the first
    /// file.
    pub fn sent_files_folder(&self, job: &JobId) -> Utf8PathBuf {
        self.jobs().join(job.as_str()).join(FOLDER)
    }

    /// Returns the files that a job's agent sent, oldest first. Symbolic links are not followed.
    pub fn sent_files(&self, job: &JobId) -> Vec<SentFile> {
        let folder = resolve_inside(self.root(), &format!("jobs/{job}/{FOLDER}"));
        let Some(entries) = folder.ok().and_then(|folder| folder.read_dir_utf8().ok()) else {
            return Vec::new();
        };
        let mut found: Vec<(SystemTime, SentFile)> = entries
            .flatten()
            .filter_map(|entry| {
                let meta = entry.path().symlink_metadata().ok().filter(|meta| meta.is_file())?;
                // Other files are drafts, or were not written by Heeler.
                let name = given_name(entry.file_name())?.to_owned();
                let sent = SentFile { name, path: entry.path().to_owned(), bytes: meta.len() };
                Some((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), sent))
            })
            .collect();
        // The path breaks ties between files of one moment.
        found.sort_by(|(one, a), (other, b)| (one, &a.path).cmp(&(other, &b.path)));
        found.into_iter().map(|(_, sent)| sent).collect()
    }
}

/// Returns the name that the agent gave a file with this name.
fn given_name(file_name: &str) -> Option<&str> {
    let (id, name) = file_name.split_once('-')?;
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(name)
}

/// Returns true if a file with this name was sent by an agent.
pub(crate) fn is_sent_name(file_name: &str) -> bool {
    given_name(file_name).is_some()
}

/// Returns true if the path is that of a file sent by an agent.
pub fn is_sent_file(path: &Utf8Path) -> bool {
    let mut above = path.ancestors().skip(1).map(Utf8Path::file_name);
    // The job's id is in between.
    above.next() == Some(Some(FOLDER)) && above.nth(1) == Some(Some("jobs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_were_handed_over_are_known_by_their_place() {
        assert!(is_sent_file(Utf8Path::new("/s/jobs/job-2026-11-14-abcdef/files/0-a.jsonl")));
        assert!(is_sent_file(Utf8Path::new("jobs/job-2026-11-14-abcdef/files/0-Cargo.lock")));
        for other in ["jobs/a.jsonl", "jobs/a/output.log", "files/a.jsonl", "jobs/files/a.jsonl"] {
            assert!(!is_sent_file(Utf8Path::new(other)), "{other}");
        }
    }

    #[test]
    fn files_that_were_handed_over_are_listed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let dir = StateDir::create(Utf8Path::from_path(folder.path()).unwrap()).unwrap();
        let job: JobId = "job-2026-11-14-abcdef".parse().unwrap();
        assert_eq!(dir.sent_files(&job), []);
        let files = dir.sent_files_folder(&job);
        std::fs::create_dir_all(files.join("00000000000000000000000000000000-folder")).unwrap();
        let sent = files.join("0123456789abcdef0123456789abcdef-my-report.md");
        std::fs::write(&sent, "# Hi").unwrap();
        std::fs::write(files.join(".draft.tmp.1"), "half").unwrap();
        std::fs::write(files.join("of-mine.txt"), "not sent").unwrap();
        let link = files.join("0123456789abcdef0123456789abcde0-link");
        std::os::unix::fs::symlink("/etc/passwd", link).unwrap();
        let expected = SentFile { name: "my-report.md".to_owned(), path: sent, bytes: 4 };
        assert_eq!(dir.sent_files(&job), [expected]);
        let elsewhere: JobId = "job-2026-11-14-zzzzzz".parse().unwrap();
        std::fs::create_dir(dir.jobs().join(elsewhere.as_str())).unwrap();
        std::os::unix::fs::symlink(files, dir.sent_files_folder(&elsewhere)).unwrap();
        assert_eq!(dir.sent_files(&elsewhere), []);
    }
}
