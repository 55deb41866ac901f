//! Brings the objects of a user's repository into Heeler's: by hard link, or by copy between file
//! systems. The user's repository is not changed and is not needed afterwards. Start at
//! [`link_objects`].

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, DirEntry, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{OsDisk, replace_file, sync_file_system, temp_name, untrusted_file};

use crate::snapshot_cache::{RACY_NS, mtime_ns};
use crate::snapshot_store::{FILE_MODE, SnapshotError, io_at};

/// Depth limit of repositories that borrow objects from others.
// Git has the same limit, and it also ends a circle.
const ALTERNATES_DEPTH_MAX: usize = 5;

/// Number of new files from which one sync of the file system is faster than one for each.
const SYNC_TOGETHER_MIN: usize = 64;

/// Limit on the bytes read of `info/alternates`, and of Heeler's own stamps.
const LIST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Number of concurrent repacks of a repository after which an error is returned.
const REPACKS_MAX: usize = 5;

/// Files of a pack that are linked; the index, which makes the pack visible, comes last.
const PACK_PARTS: [&str; 4] = ["pack", "rev", "promisor", "idx"];

/// Links every object file of `source`, and of the repositories it borrows from, that `target` lacks.
///
/// The file `stamps` records the directories that were read completely: they are read again only
/// after they have changed.
pub(crate) fn link_objects(
    source: &Utf8Path,
    target: &Utf8Path,
    stamps: &Utf8Path,
    fs_now_ns: i64,
) -> Result<(), SnapshotError> {
    link_objects_with(|from, to| fs::hard_link(from, to), source, target, stamps, fs_now_ns)
}

fn link_objects_with(
    link: LinkFn,
    source: &Utf8Path,
    target: &Utf8Path,
    stamps: &Utf8Path,
    fs_now_ns: i64,
) -> Result<(), SnapshotError> {
    let known = read_stamps(stamps);
    let (seen, files) = (BTreeMap::new(), Vec::new());
    let mut linked =
        ObjectLinker { link, target, old_stamps: known, new_stamps: seen, files, fs_now_ns };
    for folder in with_alternates(source)? {
        linked.link_directory(&folder)?;
    }
    linked.sync().map_err(io_at("sync", target))?;
    // After the sync, so that a stamp never claims objects which a power loss removed.
    if linked.new_stamps != linked.old_stamps {
        let text = serde_json::to_vec(&linked.new_stamps).map_err(io::Error::from);
        replace_file(&OsDisk, stamps, &text.map_err(io_at("write", stamps))?)?;
    }
    Ok(())
}

/// Returns an objects directory and all that it borrows from.
pub(crate) fn with_alternates(objects: &Utf8Path) -> Result<Vec<Utf8PathBuf>, SnapshotError> {
    let mut all = vec![objects.to_owned()];
    let mut from = 0;
    for _ in 0..ALTERNATES_DEPTH_MAX {
        let until = all.len();
        for at in from..until {
            let folder = all[at].clone();
            let list = folder.join("info/alternates");
            let text = match untrusted_file::read(&list, LIST_BYTES_MAX) {
                Ok(text) => String::from_utf8_lossy(&text).into_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_at("read", &list)(error)),
            };
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            // A folder that no longer exists is skipped, as git does.
            for found in lines.filter_map(|line| folder.join(line).canonicalize_utf8().ok()) {
                if !all.contains(&found) {
                    all.push(found);
                }
            }
        }
        from = until;
    }
    Ok(all)
}

/// Creates a hard link, if the file system can.
type LinkFn = fn(&Utf8Path, &Utf8Path) -> io::Result<()>;

struct ObjectLinker<'a> {
    link: LinkFn,
    target: &'a Utf8Path,
    old_stamps: BTreeMap<String, i64>,
    new_stamps: BTreeMap<String, i64>,
    /// New files that must be synced.
    files: Vec<Utf8PathBuf>,
    fs_now_ns: i64,
}

impl ObjectLinker<'_> {
    /// Links loose objects before packs: git packs an object before it drops the loose one.
    fn link_directory(&mut self, objects: &Utf8Path) -> Result<(), SnapshotError> {
        for first in 0..=u8::MAX {
            let name = format!("{first:02x}");
            self.link_unless_unchanged(&objects.join(&name), |linked, folder| {
                linked.link_loose_objects(folder, &linked.target.join(&name))
            })?;
        }
        self.link_unless_unchanged(&objects.join("pack"), |linked, folder| {
            // Each repack removes packs, so a repository that is repacked all the time would never
            // end.
            for _ in 1..REPACKS_MAX {
                match linked.link_packs(folder) {
                    // Repacked meanwhile: its objects are in another pack by now.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => return result,
                }
            }
            linked.link_packs(folder)
        })
    }

    fn link_unless_unchanged(
        &mut self,
        folder: &Utf8Path,
        link: impl FnOnce(&mut Self, &Utf8Path) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        // Most of the 256 folders do not exist in a packed repository.
        let Ok(found) = fs::metadata(folder) else { return Ok(()) };
        let changed_ns = mtime_ns(&found);
        if self.old_stamps.get(folder.as_str()) != Some(&changed_ns) {
            link(self, folder).map_err(io_at("link the objects of", folder))?;
        }
        // A folder that changed just now may change again without a visible sign.
        if changed_ns.saturating_add(RACY_NS) <= self.fs_now_ns {
            self.new_stamps.insert(folder.to_string(), changed_ns);
        }
        Ok(())
    }

    fn link_loose_objects(&mut self, folder: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        // Temporary files of git are in the same folder.
        let names = list_names(folder, |name| name.len() >= 38 && is_hex(name))?;
        if !names.is_empty() {
            make_folder(to)?;
        }
        names.iter().try_for_each(|name| self.link_file(&folder.join(name), &to.join(name)))
    }

    fn link_packs(&mut self, folder: &Utf8Path) -> io::Result<()> {
        let to = self.target.join("pack");
        for index in list_names(folder, |name| name.starts_with("pack-") && name.ends_with(".idx"))?
        {
            // The index is linked last, so the pack is complete.
            if to.join(&index).exists() {
                continue;
            }
            for part in PACK_PARTS {
                let name = Utf8Path::new(&index).with_extension(part);
                let is_optional = !matches!(part, "pack" | "idx");
                match self.link_file(&folder.join(&name), &to.join(&name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound && is_optional => {}
                    result => result?,
                }
            }
        }
        Ok(())
    }

    fn link_file(&mut self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        match (self.link)(from, to) {
            Ok(()) => {}
            // Objects are named by their content, so the existing file is equal.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            // Packed or repacked meanwhile: it is in a pack that is read after this.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_loose(from) => {
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            // Another file system, a file of another user, or too many links.
            Err(_) => copy(from, to)?,
        }
        self.files.push(to.to_owned());
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.files.len() >= SYNC_TOGETHER_MIN {
            return sync_file_system(self.target);
        }
        for file in &self.files {
            File::open(file)?.sync_data()?;
            // The name must be durable too, not only the content.
            File::open(file.parent().unwrap_or(self.target))?.sync_all()?;
        }
        // The directory of a first object is new itself.
        if self.files.is_empty() { Ok(()) } else { File::open(self.target)?.sync_all() }
    }
}

fn is_loose(path: &Utf8Path) -> bool {
    path.extension().is_none()
}

fn is_hex(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn list_names(folder: &Utf8Path, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let name = |entry: io::Result<DirEntry>| {
        entry.map(|entry| entry.file_name().into_string().ok().filter(|name| wanted(name)))
    };
    entries.map(name).filter_map(Result::transpose).collect()
}

fn copy(from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
    let temp = temp_name(to);
    let mut from_file = untrusted_file::open(from)?;
    let mut to_file = File::options().write(true).create_new(true).mode(FILE_MODE).open(&temp)?;
    // Under a temporary name, because git would read a partial object under its final one.
    io::copy(&mut from_file, &mut to_file)?;
    fs::rename(&temp, to)
}

fn make_folder(path: &Utf8Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

fn read_stamps(path: &Utf8Path) -> BTreeMap<String, i64> {
    let bytes = untrusted_file::read(path, LIST_BYTES_MAX).unwrap_or_default();
    // Without stamps everything is linked again, which is slower but correct.
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Returns the packs that exist under the same name in a user's repository.
pub(crate) fn shared_packs(target: &Utf8Path, source: &[Utf8PathBuf]) -> io::Result<Vec<String>> {
    // A pack with the same name has the same content, so it takes no extra space.
    let mut packs = list_names(&target.join("pack"), |name| name.ends_with(".pack"))?;
    packs.retain(|name| source.iter().any(|folder| folder.join("pack").join(name).exists()));
    Ok(packs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn objects_of_another_file_system_are_copied_whole_and_once() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let (source, target, stamps) =
            (root.join("theirs"), root.join("ours"), root.join("stamps"));
        let loose = format!("ab/{}", "0".repeat(38));
        for name in [loose.as_str(), "pack/pack-1.pack", "pack/pack-1.idx", "pack/tmp_pack"] {
            fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
            fs::write(source.join(name), name).unwrap();
        }
        fs::create_dir_all(target.join("pack")).unwrap();
        let refuse: LinkFn = |_, to| match to.exists() {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => Err(io::ErrorKind::CrossesDevices.into()),
        };
        for round in 0..2 {
            link_objects_with(refuse, &source, &target, &stamps, 0).unwrap();
            for name in [loose.as_str(), "pack/pack-1.pack", "pack/pack-1.idx"] {
                assert_eq!(fs::read_to_string(target.join(name)).unwrap(), name, "round {round}");
                let inode = |folder: &Utf8Path| fs::metadata(folder.join(name)).unwrap().ino();
                assert_ne!(inode(&source), inode(&target));
            }
            assert_eq!(list_names(&target.join("pack"), |_| true).unwrap().len(), 2);
            assert_eq!(list_names(&target.join("ab"), |_| true).unwrap().len(), 1);
        }
    }
}
