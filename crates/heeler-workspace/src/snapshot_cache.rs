//! Cache of each file's state at its last recording, so that only changed files are read again.
//!
//! A file counts as unchanged if size, mode, inode and both times are the same to the nanosecond,
//! and it had not been touched in the two seconds before it was examined: a later change within the
//! same clock tick would not be visible. Git's own index is not trusted for this: after `autocrlf`
//! or a filter its blobs are not the bytes on disk. Start at [`SnapshotCache`].

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;
use flate2::Crc;
use heeler_transcript::untrusted_file;
use rustix::fs::Stat as OsStat;

use crate::object_id::ObjectId;
use crate::path_map::PathMap;
use crate::snapshot::CommitId;
use crate::snapshot_store::{SnapshotError, io_at, write_file};

/// A file touched within this time before it was examined is examined again.
pub(crate) const RACY_NS: i64 = 2_000_000_000;

/// Size limit of a cache that is read: about ten million files.
const CACHE_BYTES_MAX: u64 = 2 << 30;

const MAGIC: &[u8; 8] = b"heeler3\n";

/// Attributes that distinguish two states of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStat {
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) inode: u64,
    pub(crate) device: u64,
    // The mode is included, because `chmod` changes no other field but the time of change.
    pub(crate) mode: u32,
}

impl FileStat {
    #[expect(clippy::unnecessary_cast, reason = "the fields have other widths elsewhere")]
    pub(crate) fn from_os(stat: &OsStat) -> FileStat {
        FileStat {
            size: stat.st_size as u64,
            mtime_ns: ns(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime_ns: ns(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: stat.st_ino as u64,
            device: stat.st_dev as u64,
            mode: stat.st_mode as u32,
        }
    }

    /// Returns true if a change after this `stat` would be visible.
    pub(crate) fn is_settled(&self, fs_now_ns: i64) -> bool {
        self.mtime_ns.max(self.ctime_ns).saturating_add(RACY_NS) <= fs_now_ns
    }

    /// Returns the git mode of the file.
    pub(crate) fn git_mode(&self) -> Option<GitFileMode> {
        match self.mode & 0o170_000 {
            // Git records only this bit of the permissions.
            0o100_000 if self.mode & 0o100 != 0 => Some(GitFileMode::Executable),
            0o100_000 => Some(GitFileMode::File),
            0o120_000 => Some(GitFileMode::Link),
            _ => None,
        }
    }
}

/// Git file mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitFileMode {
    File,
    Executable,
    Link,
    Submodule,
}

impl GitFileMode {
    pub(crate) fn parse(text: &[u8]) -> Option<GitFileMode> {
        match text {
            // Old versions of git wrote group-writable modes.
            b"100644" | b"100664" => Some(GitFileMode::File),
            b"100755" => Some(GitFileMode::Executable),
            b"120000" => Some(GitFileMode::Link),
            b"160000" => Some(GitFileMode::Submodule),
            _ => None,
        }
    }

    /// Decodes a stored mode.
    fn from_byte(byte: u8) -> Option<GitFileMode> {
        let all =
            [GitFileMode::File, GitFileMode::Executable, GitFileMode::Link, GitFileMode::Submodule];
        all.into_iter().find(|mode| *mode as u8 == byte)
    }

    pub(crate) fn digits(self) -> &'static str {
        match self {
            GitFileMode::File => "100644",
            GitFileMode::Executable => "100755",
            GitFileMode::Link => "120000",
            GitFileMode::Submodule => "160000",
        }
    }
}

/// One path of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordedFile {
    pub(crate) mode: GitFileMode,
    pub(crate) oid: ObjectId,
    /// State of the file when it was read; `None` if it must be read again.
    pub(crate) stat: Option<FileStat>,
}

/// All paths of a snapshot.
pub(crate) type RecordedFiles = PathMap<RecordedFile>;

/// Identifies the state of an index: its size, a checksum, and the digest at its end.
pub(crate) type IndexState = [u8; 32];

/// Identifies what a snapshot records besides its time and note.
pub(crate) type ContentDigest = [u8; 32];

/// Last snapshot of a work tree, as a starting point for the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotCache {
    pub(crate) commit: CommitId,
    /// Tree of that commit.
    pub(crate) tree: ObjectId,
    /// State of the user's index at that time, and the tree that it produces.
    pub(crate) index: Option<(IndexState, ObjectId)>,
    /// Content of that commit; `None` if it may differ from this work tree's.
    pub(crate) content: Option<ContentDigest>,
    pub(crate) files: RecordedFiles,
}

impl SnapshotCache {
    /// Reads a cache; a damaged one counts as missing.
    pub(crate) fn read(path: &Utf8Path) -> Option<SnapshotCache> {
        let mut bytes = untrusted_file::read(path, CACHE_BYTES_MAX).ok()?;
        let (body, sum) = bytes.split_last_chunk()?;
        // The file is not synced when it is written, so a power loss may have damaged it.
        if checksum(body).to_le_bytes() != *sum {
            return None;
        }
        bytes.truncate(bytes.len() - size_of::<u32>());
        decode(bytes)
    }
}

/// Content of a cache besides the files.
pub(crate) struct SnapshotCacheHeader<'a> {
    pub(crate) commit: &'a CommitId,
    pub(crate) tree: ObjectId,
    pub(crate) index: Option<(IndexState, ObjectId)>,
    pub(crate) content: Option<ContentDigest>,
}

/// Encodes a cache for writing.
pub(crate) fn encode<'a>(
    head: &SnapshotCacheHeader<'_>,
    files: impl Iterator<Item = (&'a [u8], &'a RecordedFile)>,
) -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    put_bytes(&mut body, head.commit.as_str().as_bytes());
    put_bytes(&mut body, head.tree.as_bytes());
    let index = head.index.as_ref();
    put_bytes(&mut body, index.map_or(&[][..], |(digest, _)| digest.as_slice()));
    put_bytes(&mut body, index.map_or(&[][..], |(_, tree)| tree.as_bytes()));
    put_bytes(&mut body, head.content.as_ref().map_or(&[][..], <[u8; 32]>::as_slice));
    for (path, file) in files {
        put_bytes(&mut body, path);
        put_bytes(&mut body, file.oid.as_bytes());
        body.extend_from_slice(&[file.mode as u8, u8::from(file.stat.is_some())]);
        if let Some(stat) = &file.stat {
            body.extend_from_slice(&stat.size.to_le_bytes());
            body.extend_from_slice(&stat.mtime_ns.to_le_bytes());
            body.extend_from_slice(&stat.ctime_ns.to_le_bytes());
            body.extend_from_slice(&stat.inode.to_le_bytes());
            body.extend_from_slice(&stat.device.to_le_bytes());
            body.extend_from_slice(&stat.mode.to_le_bytes());
        }
    }
    let sum = checksum(&body);
    body.extend_from_slice(&sum.to_le_bytes());
    body
}

/// Returns a checksum that detects damage; fast even without hardware support for digests.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Appends a byte string no longer than a path, so that its length fits.
pub(crate) fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(bytes);
}

fn decode(body: Vec<u8>) -> Option<SnapshotCache> {
    let mut rest = body.strip_prefix(MAGIC)?;
    let commit = CommitId::parse(std::str::from_utf8(get_bytes(&mut rest)?).ok()?)?;
    let tree = ObjectId::from_bytes(get_bytes(&mut rest)?)?;
    let (digest, index_tree) = (get_bytes(&mut rest)?, get_bytes(&mut rest)?);
    let index =
        ObjectId::from_bytes(index_tree).and_then(|tree| Some((digest.try_into().ok()?, tree)));
    let content = get_bytes(&mut rest)?.try_into().ok();
    let mut rows = Vec::with_capacity(rest.len() / 100);
    while !rest.is_empty() {
        // The path is not copied: the map refers to its range in the file.
        let path = get_bytes(&mut rest)?.len();
        let end = body.len() - rest.len();
        let oid = ObjectId::from_bytes(get_bytes(&mut rest)?)?;
        let [mode, has_stat] = *rest.split_off(..2)?.as_array()?;
        let stat = if has_stat == 0 { None } else { Some(decode_stat(&mut rest)?) };
        rows.push((
            end - path..end,
            RecordedFile { mode: GitFileMode::from_byte(mode)?, oid, stat },
        ));
    }
    Some(SnapshotCache { commit, tree, index, content, files: PathMap::new(body, rows) })
}

fn decode_stat(rest: &mut &[u8]) -> Option<FileStat> {
    Some(FileStat {
        size: u64::from_le_bytes(*rest.split_off(..8)?.as_array()?),
        mtime_ns: i64::from_le_bytes(*rest.split_off(..8)?.as_array()?),
        ctime_ns: i64::from_le_bytes(*rest.split_off(..8)?.as_array()?),
        inode: u64::from_le_bytes(*rest.split_off(..8)?.as_array()?),
        device: u64::from_le_bytes(*rest.split_off(..8)?.as_array()?),
        mode: u32::from_le_bytes(*rest.split_off(..4)?.as_array()?),
    })
}

pub(crate) fn get_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_le_bytes(*rest.split_off(..4)?.as_array()?);
    rest.split_off(..usize::try_from(len).ok()?)
}

/// Clamps a time in the far future or past to the representable range: it was set deliberately, and
/// then the other time shows a change.
fn ns(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Returns the modification time of a file or directory.
pub(crate) fn mtime_ns(found: &fs::Metadata) -> i64 {
    ns(found.mtime(), found.mtime_nsec())
}

/// Returns the current time of the file system, which stamps files and may differ from the system
/// clock.
pub(crate) fn fs_now_ns(scratch: &Utf8Path) -> Result<i64, SnapshotError> {
    // A new file gets the time of the file system, also on a server with another clock.
    let probe = scratch.join("now");
    write_file(&probe, b"").map_err(io_at("write", &probe))?;
    Ok(mtime_ns(&fs::metadata(&probe).map_err(io_at("read", &probe))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_comes_back_as_it_was_and_a_damaged_one_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("cache");
        let oid = ObjectId::from_bytes(&[7; 20]).unwrap();
        let stat =
            FileStat { size: 1, mtime_ns: -2, ctime_ns: 3, inode: 4, device: 5, mode: 0o100_644 };
        let file = RecordedFile { mode: GitFileMode::File, oid, stat: Some(stat) };
        let link = RecordedFile { mode: GitFileMode::Link, oid, stat: None };
        let files = [(&b"a\n\xff"[..], file), (b"b/c", link)];
        let commit = CommitId::parse(&oid.hex()).unwrap();
        let (index, content) = (Some(([9; 32], oid)), Some([8; 32]));
        let head = SnapshotCacheHeader { commit: &commit, tree: oid, index, content };
        fs::write(&path, encode(&head, files.iter().map(|(path, file)| (*path, file)))).unwrap();
        let cache = SnapshotCache::read(&path).unwrap();
        assert_eq!((&cache.commit, cache.tree, cache.index), (&commit, oid, head.index));
        assert_eq!(cache.content, content);
        let read: Vec<_> = cache.files.iter().map(|(path, file)| (path, *file)).collect();
        assert_eq!(read, files);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(SnapshotCache::read(&path), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(SnapshotCache::read(&path), None, "cut at {at}");
        }
    }

    #[test]
    fn a_file_touched_a_moment_ago_is_not_settled() {
        let stat = FileStat { size: 0, mtime_ns: 5, ctime_ns: 10, inode: 0, device: 0, mode: 0 };
        assert!(!stat.is_settled(10 + RACY_NS - 1));
        assert!(stat.is_settled(10 + RACY_NS));
    }
}
