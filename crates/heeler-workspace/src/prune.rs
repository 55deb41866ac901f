//! Frees space: removes objects that no snapshot and no worktree of Heeler needs. Start at
//! [`SnapshotStore::prune`].

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;

use crate::object_id::ObjectId;
use crate::objects;
use crate::snapshot_store::{
    SnapshotError, SnapshotOperation, SnapshotStore, entries, io_at, remove_folder, write_file,
};

/// Objects younger than this are kept: an agent in a worktree may be about to use them.
pub const PRUNE_AGE: Duration = Duration::from_secs(24 * 3600);

/// Limit on the bytes read of a list of refs or a reflog.
const REFS_BYTES_MAX: u64 = 256 << 20;

impl SnapshotStore {
    /// Removes the objects that neither a snapshot nor a worktree of Heeler needs, unless they are
    /// younger than [`PRUNE_AGE`]. Packs shared with the user's repository are kept: they take no
    /// extra space.
    pub fn prune(&self, now: Timestamp) -> Result<(), SnapshotError> {
        // No snapshot may be taken meanwhile: its new objects are not referenced yet.
        let work = self.begin_exclusive()?;
        self.drop_leftovers()?;
        work.drop_torn_packs()?;
        // The stamps are removed so that everything is linked again: some linked objects may be
        // pruned now.
        let stamps = self.root.join("linked");
        match fs::remove_file(&stamps) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_at("remove", &stamps)(error));
            }
            _ => {}
        }
        work.write_roots()?;
        let user_objects = match self.origin() {
            // Without the origin no pack is shared, and all are repacked.
            Some(origin) if origin.is_dir() => objects::with_alternates(&origin.join("objects"))?,
            _ => Vec::new(),
        };
        let shared = objects::shared_packs(&self.objects(), &user_objects);
        let shared = shared.map_err(io_at("list", &self.objects()))?;
        let before = now.as_second().saturating_sub(PRUNE_AGE.as_secs().cast_signed()).max(0);
        // Unreachable objects become loose with their age, and the prune below removes the old
        // ones.
        let mut repack = work.git(&["repack", "-A", "-d", "-q"])?;
        repack = repack.arg(format!("--unpack-unreachable=@{before}"));
        for pack in shared {
            repack = repack.arg(format!("--keep-pack={pack}"));
        }
        repack.output(work.lock_input())?;
        work.git(&["prune", &format!("--expire=@{before}")])?.output(work.lock_input())?;
        Ok(())
    }

    /// Removes the remains of deleted worktrees, and empty directories of names.
    fn drop_leftovers(&self) -> Result<(), SnapshotError> {
        let there = self.worktrees()?;
        let admin = self.root.join("repo.git/worktrees");
        for id in entries(&admin)? {
            let text =
                untrusted_file::read_text(&admin.join(&id).join("gitdir")).unwrap_or_default();
            let at = Utf8Path::new(text.trim_end()).parent().map(Utf8Path::to_owned);
            // A worktree that a user moved still has its files, so it stays.
            let is_gone = at.is_none_or(|at| !there.contains(&at) && !at.exists());
            if is_gone {
                remove_folder(&admin.join(&id))?;
            }
        }
        drop_empty(&self.root.join("refs"))
    }
}

fn drop_empty(folder: &Utf8Path) -> Result<(), SnapshotError> {
    for name in entries(folder)? {
        let path = folder.join(name);
        if path.is_dir() {
            drop_empty(&path)?;
            // This fails, as intended, if the directory holds a name.
            let _unused = fs::remove_dir(&path);
        }
    }
    Ok(())
}

impl SnapshotOperation<'_> {
    /// Writes all needed objects as refs, so that git's prune keeps them.
    fn write_roots(&self) -> Result<(), SnapshotError> {
        let root = &self.snapshots.root;
        let repo = root.join("repo.git");
        let mut roots = PruneRoots { found: BTreeSet::new() };
        // Reflogs count: an agent may want to return to a commit that it has left.
        for folder in [root.join("refs"), root.join("kept"), repo.join("refs"), repo.join("logs")] {
            roots.add_files_below(&folder)?;
        }
        roots.add_ids_of_file(&repo.join("packed-refs"))?;
        let admin = repo.join("worktrees");
        // Worktrees keep their own HEAD, logs and index.
        for id in entries(&admin)? {
            roots.add_files_below(&admin.join(&id))?;
            let index = admin.join(&id).join("index");
            if index.is_file() {
                let git = self.git(&["ls-files", "--stage", "-z"])?.env("GIT_INDEX_FILE", &index);
                for record in git.output(self.lock_input())?.split(|&byte| byte == 0) {
                    let is_submodule = record.starts_with(b"160000");
                    roots.add_ids(if is_submodule {
                        &[]
                    } else {
                        // Mode, id and stage fit in this length. The rest is a path, which may look
                        // like an id.
                        record.get(..100).unwrap_or(record)
                    });
                }
            }
        }
        let mut known = String::from("# pack-refs with: sorted \n");
        for (number, oid) in self.existing_objects(&roots.found)?.iter().enumerate() {
            known.push_str(&format!("{oid} refs/roots/{number:012}\n"));
        }
        let path = self.git_dir().join("packed-refs");
        write_file(&path, known.as_bytes()).map_err(io_at("write", &path))
    }

    /// Returns the IDs of existing objects; reflogs may name others.
    fn existing_objects(&self, oids: &BTreeSet<String>) -> Result<Vec<String>, SnapshotError> {
        let mut feed =
            |to: &mut dyn io::Write| oids.iter().try_for_each(|oid| writeln!(to, "{oid}"));
        let git = self.git(&["cat-file", "--batch-check=%(objectname)"])?;
        let listed = git.text(crate::git_command::GitInput::Write(&mut feed))?;
        // Git prints `<id> missing` for others.
        Ok(listed.lines().filter(|line| oids.contains(*line)).map(str::to_owned).collect())
    }
}

struct PruneRoots {
    found: BTreeSet<String>,
}

impl PruneRoots {
    /// Collects every object ID in the small text files below a directory: refs, logs, `HEAD`.
    fn add_files_below(&mut self, folder: &Utf8Path) -> Result<(), SnapshotError> {
        let mut folders: Vec<Utf8PathBuf> = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for name in entries(&folder)? {
                let path = folder.join(&name);
                if path.is_dir() {
                    folders.push(path);
                } else if name != "index" {
                    self.add_ids_of_file(&path)?;
                }
            }
        }
        Ok(())
    }

    fn add_ids_of_file(&mut self, path: &Utf8Path) -> Result<(), SnapshotError> {
        match untrusted_file::read(path, REFS_BYTES_MAX) {
            Ok(bytes) => self.add_ids(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_at("read", path)(error)),
        }
        Ok(())
    }

    fn add_ids(&mut self, bytes: &[u8]) {
        // A caret precedes the target of an annotated tag in `packed-refs`.
        for word in bytes.split(|byte| byte.is_ascii_whitespace() || *byte == b'^') {
            if let Some(oid) = ObjectId::parse(word) {
                self.found.insert(oid.hex());
            }
        }
    }
}
