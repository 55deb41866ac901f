//! What was known of each file when it was last recorded, so that only what changed is read again.
//!
//! A file counts as unchanged when size, mode, inode and both times are the same to the nanosecond,
//! and it had not been touched in the two seconds before it was looked at: a later change within the same
//! tick of the clock would not show. Git's own index is not trusted for this: after `autocrlf` or a
//! filter its blobs are not the bytes on disk.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;
use heeler_transcript::{OsDisk, plain, replace_file};
use rustix::fs::Stat as OsStat;
use sha2::{Digest as _, Sha256};

use crate::oid::Oid;
use crate::snapshot::Commit;
use crate::store::{SnapshotError, io_at};

/// A file touched so shortly before it was looked at is looked at again.
pub(crate) const RACY_NS: i128 = 2_000_000_000;

/// The largest cache that is read: some ten million files.
const CACHE_BYTES_MAX: u64 = 2 << 30;

const MAGIC: &[u8; 8] = b"heeler1\n";

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) size: u64,
    pub(crate) mtime_ns: i128,
    pub(crate) ctime_ns: i128,
    pub(crate) inode: u64,
    pub(crate) device: u64,
    pub(crate) mode: u32,
}

impl Stat {
    #[expect(clippy::unnecessary_cast, reason = "the fields have other widths elsewhere")]
    pub(crate) fn of(stat: &OsStat) -> Stat {
        let ns = |seconds: i128, nanos: i128| seconds * 1_000_000_000 + nanos;
        Stat {
            size: stat.st_size as u64,
            mtime_ns: ns(stat.st_mtime.into(), stat.st_mtime_nsec as i128),
            ctime_ns: ns(stat.st_ctime.into(), stat.st_ctime_nsec as i128),
            inode: stat.st_ino as u64,
            device: stat.st_dev as u64,
            mode: stat.st_mode as u32,
        }
    }

    /// Says whether a change after this look would show.
    pub(crate) fn is_settled(&self, fs_now_ns: i128) -> bool {
        self.mtime_ns.max(self.ctime_ns) + RACY_NS <= fs_now_ns
    }

    /// Returns git's mode for it.
    pub(crate) fn git_mode(&self) -> Option<Mode> {
        match self.mode & 0o170_000 {
            0o100_000 if self.mode & 0o100 != 0 => Some(Mode::Executable),
            0o100_000 => Some(Mode::File),
            0o120_000 => Some(Mode::Link),
            _ => None,
        }
    }
}

/// What git knows of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    File,
    Executable,
    Link,
    Submodule,
}

impl Mode {
    pub(crate) fn parse(text: &[u8]) -> Option<Mode> {
        match text {
            b"100644" | b"100664" => Some(Mode::File),
            b"100755" => Some(Mode::Executable),
            b"120000" => Some(Mode::Link),
            b"160000" => Some(Mode::Submodule),
            _ => None,
        }
    }

    pub(crate) fn digits(self) -> &'static str {
        match self {
            Mode::File => "100644",
            Mode::Executable => "100755",
            Mode::Link => "120000",
            Mode::Submodule => "160000",
        }
    }
}

/// One path of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) mode: Mode,
    pub(crate) oid: Oid,
    /// The file it was read from; `None` when that is to be read again.
    pub(crate) stat: Option<Stat>,
}

/// All paths of a snapshot.
pub(crate) type Files = HashMap<Vec<u8>, Recorded>;

/// The last snapshot of a work tree, as a start for the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cache {
    pub(crate) commit: Commit,
    /// The tree of that commit.
    pub(crate) tree: Oid,
    /// The digest of the user's index then, and the tree that it makes.
    pub(crate) index: Option<([u8; 32], Oid)>,
    pub(crate) files: Files,
}

impl Cache {
    /// Reads a cache; one that is damaged counts as missing.
    pub(crate) fn read(path: &Utf8Path) -> Option<Cache> {
        let bytes = plain::read(path, CACHE_BYTES_MAX).ok()?;
        let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
        (Sha256::digest(body).as_slice() == digest).then(|| decode(body)).flatten()
    }

    /// Replaces the cache.
    pub(crate) fn write(&self, path: &Utf8Path) -> Result<(), SnapshotError> {
        let mut body = self.encode().map_err(io_at("write", path))?;
        let digest = Sha256::digest(&body);
        body.extend_from_slice(&digest);
        Ok(replace_file(&OsDisk, path, &body)?)
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut body = MAGIC.to_vec();
        put(&mut body, self.commit.as_str().as_bytes())?;
        put(&mut body, self.tree.as_bytes())?;
        let (digest, tree) = self
            .index
            .as_ref()
            .map_or((&[][..], &[][..]), |(digest, tree)| (digest.as_slice(), tree.as_bytes()));
        put(&mut body, digest)?;
        put(&mut body, tree)?;
        for (path, file) in &self.files {
            put(&mut body, path)?;
            put(&mut body, file.mode.digits().as_bytes())?;
            put(&mut body, file.oid.as_bytes())?;
            let Some(stat) = &file.stat else {
                put(&mut body, &[])?;
                continue;
            };
            let mut fields = Vec::with_capacity(60);
            fields.write_all(&stat.size.to_le_bytes())?;
            fields.write_all(&stat.mtime_ns.to_le_bytes())?;
            fields.write_all(&stat.ctime_ns.to_le_bytes())?;
            fields.write_all(&stat.inode.to_le_bytes())?;
            fields.write_all(&stat.device.to_le_bytes())?;
            fields.write_all(&stat.mode.to_le_bytes())?;
            put(&mut body, &fields)?;
        }
        Ok(body)
    }
}

fn put(body: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    body.extend_from_slice(&len.to_le_bytes());
    body.extend_from_slice(bytes);
    Ok(())
}

fn decode(body: &[u8]) -> Option<Cache> {
    let mut rest = body.strip_prefix(MAGIC)?;
    let commit = Commit::parse(std::str::from_utf8(get(&mut rest)?).ok()?)?;
    let tree = Oid::from_bytes(get(&mut rest)?)?;
    let (digest, index_tree) = (get(&mut rest)?, get(&mut rest)?);
    let index = Oid::from_bytes(index_tree).and_then(|tree| Some((digest.try_into().ok()?, tree)));
    let mut files = Files::new();
    while !rest.is_empty() {
        let path = get(&mut rest)?.to_vec();
        let mode = Mode::parse(get(&mut rest)?)?;
        let oid = Oid::from_bytes(get(&mut rest)?)?;
        let fields = get(&mut rest)?;
        let stat = if fields.is_empty() { None } else { Some(decode_stat(fields)?) };
        files.insert(path, Recorded { mode, oid, stat });
    }
    Some(Cache { commit, tree, index, files })
}

fn decode_stat(mut fields: &[u8]) -> Option<Stat> {
    Some(Stat {
        size: u64::from_le_bytes(*fields.split_off(..8)?.as_array()?),
        mtime_ns: i128::from_le_bytes(*fields.split_off(..16)?.as_array()?),
        ctime_ns: i128::from_le_bytes(*fields.split_off(..16)?.as_array()?),
        inode: u64::from_le_bytes(*fields.split_off(..8)?.as_array()?),
        device: u64::from_le_bytes(*fields.split_off(..8)?.as_array()?),
        mode: u32::from_le_bytes(*fields.split_off(..4)?.as_array()?),
    })
}

fn get<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_le_bytes(*rest.split_off(..4)?.as_array()?);
    rest.split_off(..usize::try_from(len).ok()?)
}

/// Returns when a file or folder was last changed.
pub(crate) fn mtime_ns(found: &fs::Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}

/// Returns the file system's idea of now, which need not be the clock's: it is what stamps files.
pub(crate) fn fs_now_ns(scratch: &Utf8Path) -> Result<i128, SnapshotError> {
    let probe = scratch.join("now");
    fs::write(&probe, b"").map_err(io_at("write", &probe))?;
    Ok(mtime_ns(&fs::metadata(&probe).map_err(io_at("read", &probe))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_comes_back_as_it_was_and_a_damaged_one_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("cache");
        let oid = Oid::from_bytes(&[7; 20]).unwrap();
        let stat =
            Stat { size: 1, mtime_ns: -2, ctime_ns: 3, inode: 4, device: 5, mode: 0o100_644 };
        let file = Recorded { mode: Mode::File, oid, stat: Some(stat) };
        let link = Recorded { mode: Mode::Link, oid, stat: None };
        let files = Files::from([(b"a\n\xff".to_vec(), file), (b"b/c".to_vec(), link)]);
        let commit = Commit::parse(&oid.hex()).unwrap();
        let cache = Cache { commit, tree: oid, index: Some(([9; 32], oid)), files };
        cache.write(&path).unwrap();
        assert_eq!(Cache::read(&path), Some(cache));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(Cache::read(&path), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(Cache::read(&path), None, "cut at {at}");
        }
    }

    #[test]
    fn a_file_touched_a_moment_ago_is_not_settled() {
        let stat = Stat { size: 0, mtime_ns: 5, ctime_ns: 10, inode: 0, device: 0, mode: 0 };
        assert!(!stat.is_settled(10 + RACY_NS - 1));
        assert!(stat.is_settled(10 + RACY_NS));
    }
}
