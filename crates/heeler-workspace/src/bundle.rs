//! Exports and imports snapshots as a git bundle, for another machine or the same one. Start at
//! [`SnapshotStore::export`].

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};

use camino::Utf8Path;
use heeler_transcript::{OsDisk, create_folder, untrusted_file};

use crate::git_command::GitInput;
use crate::object_id::ObjectFormat;
use crate::snapshot::{CommitId, SnapshotName};
use crate::snapshot_store::{SnapshotError, SnapshotOperation, SnapshotStore, io_at, is_key};

/// Ref prefixes in a bundle: of a snapshot, and of a commit without its parents.
const SNAPSHOT: &str = "refs/heeler/";
const SHALLOW: &str = "refs/heeler-shallow/";

/// Limits on the number of refs in a bundle, and on the length of a header line.
const NAMES_MAX: usize = 1_000_000;
const LINE_BYTES_MAX: u64 = 1024;

impl SnapshotStore {
    /// Writes snapshot commits with all objects that they need, each under a name, as a git bundle.
    ///
    /// The same snapshots give the same bytes, even after they were moved between machines.
    pub fn export(
        &self,
        snapshots: &[(SnapshotName, CommitId)],
        to: &mut dyn Write,
    ) -> Result<(), SnapshotError> {
        let work = self.begin_shared()?;
        let mut head = match self.format {
            // SHA-1 needs only the old format, which every git can read.
            ObjectFormat::Sha1 => "# v2 git bundle\n".to_owned(),
            ObjectFormat::Sha256 => "# v3 git bundle\n@object-format=sha256\n".to_owned(),
        };
        let mut commits = String::new();
        for (name, commit) in snapshots {
            work.commit_text(commit)?;
            head.push_str(&format!("{commit} {SNAPSHOT}{name}\n"));
            commits.push_str(&format!("{commit}\n"));
        }
        // The receiver must know where the history ends, or git takes the objects for damaged.
        for (number, commit) in work.shallow_ancestors(&commits)?.iter().enumerate() {
            head.push_str(&format!("{commit} {SHALLOW}{number}\n"));
        }
        head.push('\n');
        work.write_bundle(&head, &commits, to)
    }

    /// Imports the snapshots of an export into the repository `key` under `dir`, which is created
    /// if it is missing. All of them must have names below `prefix`: other names belong to others.
    /// Returns their names, which refer to the same snapshots as at their source.
    pub fn import(
        dir: &Utf8Path,
        key: &str,
        prefix: &SnapshotName,
        from: &mut (dyn Read + Send),
    ) -> Result<(SnapshotStore, Vec<SnapshotName>), SnapshotError> {
        if !is_key(key) {
            return Err(bad_export(&format!("{key:?} cannot name a repository")));
        }
        let mut from = BufReader::new(from);
        // Everything in the header is checked before a repository is created.
        let head = BundleHeader::read(&mut from).map_err(|error| bad_export(&error.to_string()))?;
        let below = format!("{prefix}/");
        // An import must not move the names of another session.
        if let Some((name, _)) = head.snapshots.iter().find(|it| !it.0.as_str().starts_with(&below))
        {
            return Err(bad_export(&format!("{name} is not below {prefix}")));
        }
        create_folder(&OsDisk, dir)?;
        let dir = dir.canonicalize_utf8().map_err(io_at("find", dir))?;
        let snapshots = SnapshotStore::open_or_create(&dir, key, head.format, |_| Ok(()))?;
        if snapshots.format != head.format {
            return Err(bad_export("its objects use another hash algorithm than this repository"));
        }
        snapshots.add_shallow(&head.shallow)?;
        let work = snapshots.begin_shared()?;
        let mut feed = |to: &mut dyn Write| io::copy(&mut from, to).map(|_| ());
        // `index-pack` checks every object, so a damaged export leaves no name behind.
        let unpacked = work.git(&["index-pack", "--stdin"])?.output(GitInput::Write(&mut feed));
        unpacked.map_err(|error| bad_export(&error.to_string()))?;
        let mut names = Vec::new();
        for (name, commit) in head.snapshots {
            // Only snapshots of Heeler are named, not arbitrary commits in the pack.
            work.commit_text(&commit)?;
            snapshots.set_ref(&snapshots.ref_path(&name), &commit)?;
            names.push(name);
        }
        drop(work);
        Ok((snapshots, names))
    }

    /// Records commits without parents as shallow. This happens before the commits are imported, so
    /// that none ever lacks the record. Commits that already exist here have their parents, or are
    /// recorded.
    fn add_shallow(&self, more: &[CommitId]) -> Result<(), SnapshotError> {
        if more.is_empty() {
            return Ok(());
        }
        let mut text =
            untrusted_file::read_text(&self.root.join("repo.git/shallow")).unwrap_or_default();
        let work = self.begin_shared()?;
        for commit in more {
            // A commit with its parents here must not become shallow.
            if !text.contains(commit.as_str()) && work.commit_text(commit).is_err() {
                text.push_str(&format!("{commit}\n"));
            }
        }
        self.write("repo.git/shallow", text.as_bytes())
    }
}

fn bad_export(reason: &str) -> SnapshotError {
    SnapshotError::BadExport { reason: reason.to_owned() }
}

impl SnapshotOperation<'_> {
    /// Returns the shallow commits that are ancestors of these commits.
    fn shallow_ancestors(&self, commits: &str) -> Result<Vec<CommitId>, SnapshotError> {
        let path = self.snapshots.root.join("repo.git/shallow");
        let text = untrusted_file::read_text(&path).unwrap_or_default();
        let mut shallow: Vec<CommitId> = text.lines().filter_map(CommitId::parse).collect();
        if !shallow.is_empty() {
            let mut feed = |to: &mut dyn Write| to.write_all(commits.as_bytes());
            let listed = self.git(&["rev-list", "--stdin"])?.text(GitInput::Write(&mut feed))?;
            let met: HashSet<&str> = listed.lines().collect();
            shallow.retain(|commit| met.contains(commit.as_str()));
        }
        // Sorted, because the same snapshots must give the same bytes.
        shallow.sort_unstable();
        Ok(shallow)
    }

    fn write_bundle(
        &self,
        head: &str,
        commits: &str,
        to: &mut dyn Write,
    ) -> Result<(), SnapshotError> {
        to.write_all(head.as_bytes()).map_err(SnapshotError::Export)?;
        // Reused deltas depend on the local pack layout, and the same snapshots must give the same
        // bytes.
        let reproducible =
            ["--no-reuse-delta", "--no-reuse-object", "--threads=1", "--delta-base-offset"];
        let args = [&["pack-objects", "--stdout", "--revs", "-q"][..], &reproducible[..]].concat();
        let mut feed = |to: &mut dyn Write| to.write_all(commits.as_bytes());
        let mut read = |out: &mut dyn Read| io::copy(out, to).map(|_| ());
        Ok(self.git(&args)?.read(GitInput::Write(&mut feed), &mut read)?)
    }
}

/// Header of an export.
struct BundleHeader {
    format: ObjectFormat,
    snapshots: Vec<(SnapshotName, CommitId)>,
    shallow: Vec<CommitId>,
}

impl BundleHeader {
    fn read(file: &mut dyn BufRead) -> io::Result<BundleHeader> {
        let mut head =
            BundleHeader { format: ObjectFormat::Sha1, snapshots: Vec::new(), shallow: Vec::new() };
        let first = read_line(file)?;
        if first != "# v2 git bundle" && first != "# v3 git bundle" {
            return Err(io::Error::other("it is not a git bundle"));
        }
        for _ in 0..NAMES_MAX {
            let text = read_line(file)?;
            if text.is_empty() {
                return Ok(head);
            }
            head.add(&text)
                .ok_or_else(|| io::Error::other(format!("unexpected header line {text:?}")))?;
        }
        Err(io::Error::other("it has too many names"))
    }

    fn add(&mut self, text: &str) -> Option<()> {
        if text == "@object-format=sha256" {
            self.format = ObjectFormat::Sha256;
            return Some(());
        }
        let (commit, name) = text.split_once(' ')?;
        let commit = CommitId::parse(commit)?;
        if name.starts_with(SHALLOW) {
            self.shallow.push(commit);
        } else {
            let name = SnapshotName::parse(name.strip_prefix(SNAPSHOT)?).ok()?;
            self.snapshots.push((name, commit));
        }
        Some(())
    }
}

fn read_line(file: &mut dyn BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    match bytes.pop() {
        Some(b'\n') => String::from_utf8(bytes).map_err(io::Error::other),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
