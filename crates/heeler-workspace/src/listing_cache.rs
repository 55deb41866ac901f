//! Cache of git's file list: git need not run while nothing has changed on which its list depends.
//!
//! The list depends on the index, the ignore rules and the names in the work tree. [`ListingKey`]
//! identifies the index and the rules outside of the work tree. [`UnlistedNames`] has the names that
//! are in the work tree and not in the list, with the state of every `.gitignore`: while they are the
//! same, git would list the same files. A listed file that is gone changes nothing, and its return is
//! noticed like any change of a file. Start at [`CachedListing`].

use std::collections::BTreeSet;

use camino::Utf8Path;
use heeler_transcript::untrusted_file;
use rustix::fs::FileType;
use sha2::{Digest as _, Sha256};

use crate::snapshot_cache::{FileStat, IndexState, checksum, get_bytes, put_bytes};

/// Size limit of a cached list. Git lists a larger work tree each time.
const LISTING_BYTES_MAX: u64 = 256 << 20;

/// Limit on unlisted names. With more of them git runs each time, which is faster than reading them.
const NAMES_MAX: usize = 20_000;

const MAGIC: &[u8; 8] = b"heelerL1";

/// File with the ignore rules of a folder.
pub(crate) const IGNORE_FILE: &[u8] = b".gitignore";

/// Digest of what git's list depends on, outside of the work tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListingKey([u8; 32]);

impl ListingKey {
    /// `rules` are the patterns and arguments that git gets.
    pub(crate) fn new(index: &IndexState, rules: &[&[u8]]) -> ListingKey {
        let mut bytes = index.to_vec();
        rules.iter().for_each(|rule| put_bytes(&mut bytes, rule));
        ListingKey(Sha256::digest(&bytes).into())
    }
}

/// Folders without a listed file that git ignores as a whole, whatever is in them.
pub(crate) type IgnoredFolders = BTreeSet<Vec<u8>>;

/// Names in a work tree that git did not list.
#[derive(Debug, Default)]
pub(crate) struct UnlistedNames {
    /// Each name with its kind, and the state of files with ignore rules.
    entries: Vec<Vec<u8>>,
    /// Topmost folders without a listed file.
    pub(crate) skipped_folders: Vec<Vec<u8>>,
    /// True if a name may have appeared after git listed the files, or if there are too many.
    is_unsure: bool,
}

/// Kind of an unlisted name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UnlistedKind {
    File,
    Special,
    Folder,
    IgnoredFolder,
    NestedRepository,
    UnreadableFolder,
}

impl From<FileType> for UnlistedKind {
    fn from(kind: FileType) -> UnlistedKind {
        match kind {
            FileType::RegularFile | FileType::Symlink => UnlistedKind::File,
            FileType::Directory => UnlistedKind::Folder,
            _ => UnlistedKind::Special,
        }
    }
}

impl UnlistedNames {
    pub(crate) fn add(&mut self, path: &[u8], kind: UnlistedKind) {
        if self.entries.len() >= NAMES_MAX {
            self.is_unsure = true;
            return;
        }
        let mut entry = vec![kind as u8];
        entry.extend_from_slice(path);
        self.entries.push(entry);
    }

    /// Adds a file with ignore rules.
    pub(crate) fn add_rules(&mut self, path: &[u8], stat: &FileStat, fs_now: i64) {
        // A later change of the file might not be visible in its state.
        self.is_unsure |= !stat.is_settled(fs_now);
        let mut entry = vec![u8::MAX];
        put_bytes(&mut entry, path);
        for number in [stat.mtime_ns, stat.ctime_ns] {
            entry.extend_from_slice(&number.to_le_bytes());
        }
        for number in [stat.size, stat.inode, stat.device, u64::from(stat.mode)] {
            entry.extend_from_slice(&number.to_le_bytes());
        }
        self.entries.push(entry);
    }

    /// Considers the state of a folder with unlisted names: if it changed a moment ago, one of them
    /// may be newer than git's list.
    pub(crate) fn add_folder_state(&mut self, stat: &FileStat, fs_now: i64) {
        self.is_unsure |= !stat.is_settled(fs_now);
    }

    /// Adds the names of another part of the work tree.
    pub(crate) fn append(&mut self, part: UnlistedNames) {
        self.entries.extend(part.entries);
        self.skipped_folders.extend(part.skipped_folders);
        self.is_unsure |= part.is_unsure || self.is_full();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= NAMES_MAX
    }

    /// Returns the digest of all names.
    fn digest(&mut self) -> [u8; 32] {
        // Folders may list their entries in another order each time.
        self.entries.sort_unstable();
        let mut bytes = Vec::new();
        self.entries.iter().for_each(|entry| put_bytes(&mut bytes, entry));
        Sha256::digest(&bytes).into()
    }
}

/// Git's list, with what it depends on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CachedListing {
    key: ListingKey,
    names: [u8; 32],
    pub(crate) ignored_folders: IgnoredFolders,
    /// Output of git.
    pub(crate) output: Vec<u8>,
}

impl CachedListing {
    /// Returns the list with all that it depends on, if that is known for certain.
    pub(crate) fn new(
        key: ListingKey,
        mut names: UnlistedNames,
        ignored_folders: IgnoredFolders,
        output: Vec<u8>,
    ) -> Option<CachedListing> {
        if names.is_unsure || output.len() as u64 > LISTING_BYTES_MAX / 2 {
            return None;
        }
        Some(CachedListing { key, names: names.digest(), ignored_folders, output })
    }

    /// Reads a list that was made for the same key; a damaged one counts as missing.
    pub(crate) fn read(path: &Utf8Path, key: ListingKey) -> Option<CachedListing> {
        let mut bytes = untrusted_file::read(path, LISTING_BYTES_MAX).ok()?;
        let (body, sum) = bytes.split_last_chunk()?;
        // The file is not synced when it is written, so a power loss may have damaged it.
        if checksum(body).to_le_bytes() != *sum {
            return None;
        }
        bytes.truncate(bytes.len() - size_of::<u32>());
        decode(bytes).filter(|listing| listing.key == key)
    }

    /// Returns true if git would list the same files in a work tree with these names.
    pub(crate) fn is_current(&self, names: &mut UnlistedNames) -> bool {
        !names.is_full() && names.digest() == self.names
    }

    /// Encodes the list for writing.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = MAGIC.to_vec();
        body.extend_from_slice(&self.key.0);
        body.extend_from_slice(&self.names);
        body.extend_from_slice(&(self.ignored_folders.len() as u64).to_le_bytes());
        self.ignored_folders.iter().for_each(|folder| put_bytes(&mut body, folder));
        body.extend_from_slice(&self.output);
        let sum = checksum(&body);
        body.extend_from_slice(&sum.to_le_bytes());
        body
    }
}

fn decode(body: Vec<u8>) -> Option<CachedListing> {
    let mut rest = body.strip_prefix(MAGIC)?;
    let key = ListingKey(*rest.split_off(..32)?.as_array()?);
    let names = *rest.split_off(..32)?.as_array()?;
    let count = u64::from_le_bytes(*rest.split_off(..8)?.as_array()?);
    let mut ignored_folders = IgnoredFolders::new();
    for _ in 0..count {
        ignored_folders.insert(get_bytes(&mut rest)?.to_vec());
    }
    let start = body.len() - rest.len();
    let mut output = body;
    output.drain(..start);
    Some(CachedListing { key, names, ignored_folders, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ctime_ns: i64) -> FileStat {
        FileStat { size: 1, mtime_ns: 0, ctime_ns, inode: 4, device: 5, mode: 0o100_644 }
    }

    /// Long after the files of these tests were changed.
    const NOW: i64 = 1 << 40;

    fn listing(names: UnlistedNames) -> Option<CachedListing> {
        let key = ListingKey::new(&[1; 32], &[b"*.o"]);
        CachedListing::new(key, names, IgnoredFolders::from([b"build".to_vec()]), b"? a\0".into())
    }

    #[test]
    fn a_listing_comes_back_as_it_was_and_not_for_another_key_nor_damaged() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("list");
        let cached = listing(UnlistedNames::default()).unwrap();
        std::fs::write(&path, cached.encode()).unwrap();
        assert_eq!(CachedListing::read(&path, cached.key).unwrap(), cached);
        for other in
            [ListingKey::new(&[2; 32], &[b"*.o"]), ListingKey::new(&[1; 32], &[b"*", b".o"])]
        {
            assert_eq!(CachedListing::read(&path, other), None);
        }
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(CachedListing::read(&path, cached.key), None, "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(CachedListing::read(&path, cached.key), None, "cut at {at}");
        }
    }

    #[test]
    fn names_are_the_same_in_any_order_and_differ_by_path_kind_and_rules() {
        let names = |add: &dyn Fn(&mut UnlistedNames)| {
            let mut names = UnlistedNames::default();
            add(&mut names);
            names
        };
        let kept = listing(names(&|it| {
            it.add(b"a", UnlistedKind::File);
            it.add(b"b", UnlistedKind::Folder);
            it.add_rules(b".gitignore", &stat(3), NOW);
        }))
        .unwrap();
        let same = |add: &dyn Fn(&mut UnlistedNames)| kept.is_current(&mut names(add));
        assert!(same(&|it| {
            it.add_rules(b".gitignore", &stat(3), NOW);
            it.add(b"b", UnlistedKind::Folder);
            it.add(b"a", UnlistedKind::File);
        }));
        assert!(!same(&|it| {
            it.add(b"a", UnlistedKind::File);
            it.add(b"b", UnlistedKind::File);
            it.add_rules(b".gitignore", &stat(3), NOW);
        }));
        assert!(!same(&|it| {
            it.add(b"a", UnlistedKind::File);
            it.add(b"b", UnlistedKind::Folder);
            it.add_rules(b".gitignore", &stat(4), NOW);
        }));
        assert!(!same(&|_| ()));
    }

    #[test]
    fn a_listing_that_a_later_change_might_not_disprove_is_not_kept() {
        let kept = |add: &dyn Fn(&mut UnlistedNames)| {
            let mut names = UnlistedNames::default();
            add(&mut names);
            listing(names).is_some()
        };
        assert!(kept(&|it| it.add_folder_state(&stat(3), NOW)));
        assert!(
            !kept(&|it| it.add_folder_state(&stat(NOW), NOW)),
            "a name may be newer than the list"
        );
        assert!(!kept(&|it| it.add_rules(b".gitignore", &stat(NOW), NOW)));
        assert!(!kept(&|it| (0..=NAMES_MAX).for_each(|_| it.add(b"a", UnlistedKind::File))));
    }
}
