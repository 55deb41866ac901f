//! Snapshots as one file, a git bundle: to another machine, or to the same one again.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use heeler_transcript::{Disk as _, OsDisk, create_folder, plain, temp_name};

use crate::git::Feed;
use crate::oid::Format;
use crate::snapshot::{Commit, SnapshotName};
use crate::store::{SnapshotError, Snapshots, Work, io_at};

/// How a snapshot is named in the file, and a commit whose parents are not there.
const SNAPSHOT: &str = "refs/heeler/";
const SHALLOW: &str = "refs/heeler-shallow/";

/// The most names that a file may have, and the longest line of its head.
const NAMES_MAX: usize = 1_000_000;
const LINE_BYTES_MAX: u64 = 1024;

impl Snapshots {
    /// Writes snapshots with all that they need to a new file, a git bundle.
    ///
    /// The same snapshots give the same bytes, wherever they have been meanwhile.
    pub fn export(&self, names: &[SnapshotName], to: &Utf8Path) -> Result<(), SnapshotError> {
        let work = self.begin()?;
        let mut head = match self.format {
            Format::Sha1 => "# v2 git bundle\n".to_owned(),
            Format::Sha256 => "# v3 git bundle\n@object-format=sha256\n".to_owned(),
        };
        let mut commits = String::new();
        for name in names {
            let none = || SnapshotError::NotASnapshot { commit: name.to_string() };
            let commit = self.commit_of(name)?.ok_or_else(none)?;
            head.push_str(&format!("{commit} {SNAPSHOT}{name}\n"));
            commits.push_str(&format!("{commit}\n"));
        }
        let shallow = plain::read_text(&self.root.join("repo.git/shallow")).unwrap_or_default();
        for (number, commit) in shallow.lines().filter_map(Commit::parse).enumerate() {
            head.push_str(&format!("{commit} {SHALLOW}{number}\n"));
        }
        head.push('\n');
        let temp = temp_name(to);
        let written = work
            .write_bundle(&head, &commits, &temp)
            .and_then(|()| OsDisk.rename_new(&temp, to).map_err(io_at("make", to)));
        if written.is_err() {
            let _unused = fs::remove_file(&temp);
        }
        written
    }

    /// Takes over the snapshots of an export into the repository `key` under `dir`, which is made
    /// if it is missing. Returns their names, which mean the same as where they come from.
    pub fn import(
        dir: &Utf8Path,
        key: &str,
        from: &Utf8Path,
    ) -> Result<(Snapshots, Vec<SnapshotName>), SnapshotError> {
        let bad = |reason: &str| bad(from, reason);
        let file = plain::open(from).map_err(io_at("open", from))?;
        let mut file = BufReader::new(file);
        let head = Head::read(&mut file).map_err(|error| bad(&error.to_string()))?;
        create_folder(&OsDisk, dir)?;
        let dir = dir.canonicalize_utf8().map_err(io_at("find", dir))?;
        let snapshots = Snapshots::make(&dir, key, head.format, |_| Ok(()))?;
        if snapshots.format != head.format {
            return Err(bad("its objects are named by another hash than those here"));
        }
        let work = snapshots.begin()?;
        let mut feed = |to: &mut dyn Write| io::copy(&mut file, to).map(|_| ());
        let unpacked = work.git(&["index-pack", "--stdin"])?.output(Feed::Write(&mut feed));
        unpacked.map_err(|error| bad(&error.to_string()))?;
        if !head.shallow.is_empty() {
            snapshots.add_shallow(&head.shallow)?;
        }
        let mut names = Vec::new();
        for (name, commit) in head.snapshots {
            work.commit_text(&commit)?;
            snapshots.set_ref(&snapshots.ref_path(&name), &commit)?;
            names.push(name);
        }
        drop(work);
        Ok((snapshots, names))
    }

    fn add_shallow(&self, more: &[Commit]) -> Result<(), SnapshotError> {
        let mut text = plain::read_text(&self.root.join("repo.git/shallow")).unwrap_or_default();
        for commit in more {
            if !text.contains(commit.as_str()) {
                text.push_str(&format!("{commit}\n"));
            }
        }
        self.write("repo.git/shallow", text.as_bytes())
    }
}

fn bad(path: &Utf8Path, reason: &str) -> SnapshotError {
    SnapshotError::BadExport { path: path.to_owned(), reason: reason.to_owned() }
}

impl Work<'_> {
    fn write_bundle(
        &self,
        head: &str,
        commits: &str,
        temp: &Utf8Path,
    ) -> Result<(), SnapshotError> {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(temp);
        let mut file = file.map_err(io_at("make", temp))?;
        file.write_all(head.as_bytes()).map_err(io_at("write", temp))?;
        // What is reused depends on how the objects happen to lie here.
        let fresh = ["--no-reuse-delta", "--no-reuse-object", "--threads=1", "--delta-base-offset"];
        let args = [&["pack-objects", "--stdout", "--revs", "-q"][..], &fresh[..]].concat();
        let mut feed = |to: &mut dyn Write| to.write_all(commits.as_bytes());
        let mut read = |out: &mut dyn Read| io::copy(out, &mut file).map(|_| ());
        self.git(&args)?.read(Feed::Write(&mut feed), &mut read)?;
        file.sync_all().map_err(io_at("sync", temp))
    }
}

/// What the first lines of an export say.
struct Head {
    format: Format,
    snapshots: Vec<(SnapshotName, Commit)>,
    shallow: Vec<Commit>,
}

impl Head {
    fn read(file: &mut BufReader<File>) -> io::Result<Head> {
        let mut head = Head { format: Format::Sha1, snapshots: Vec::new(), shallow: Vec::new() };
        let first = line(file)?;
        if first != "# v2 git bundle" && first != "# v3 git bundle" {
            return Err(io::Error::other("it is no git bundle"));
        }
        for _ in 0..NAMES_MAX {
            let text = line(file)?;
            if text.is_empty() {
                return Ok(head);
            }
            head.add(&text).ok_or_else(|| io::Error::other(format!("it says {text:?}")))?;
        }
        Err(io::Error::other("it has too many names"))
    }

    fn add(&mut self, text: &str) -> Option<()> {
        if text == "@object-format=sha256" {
            self.format = Format::Sha256;
            return Some(());
        }
        let (commit, name) = text.split_once(' ')?;
        let commit = Commit::parse(commit)?;
        if name.starts_with(SHALLOW) {
            self.shallow.push(commit);
        } else {
            let name = SnapshotName::parse(name.strip_prefix(SNAPSHOT)?).ok()?;
            self.snapshots.push((name, commit));
        }
        Some(())
    }
}

fn line(file: &mut BufReader<File>) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    match bytes.pop() {
        Some(b'\n') => String::from_utf8(bytes).map_err(io::Error::other),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
