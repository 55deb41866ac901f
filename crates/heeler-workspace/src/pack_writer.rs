//! Writes new objects as one git pack in this process: two files to sync and no process to start,
//! where loose objects would need a sync each.
//!
//! A pack and its index are written under temporary names, synced, and renamed into place, the
//! index last: it makes the pack visible. Each pack is first recorded in `packs/`; when there are
//! many, git merges them. Start at [`PackWriter`].

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use heeler_transcript::untrusted_file;

use crate::git_command::GitInput;
use crate::object_id::{ObjectFormat, ObjectHasher, ObjectId, ObjectKind};
use crate::snapshot::CommitId;
use crate::snapshot_cache::GitFileMode;
use crate::snapshot_store::{
    FILE_MODE, SnapshotError, SnapshotOperation, entries, io_at, write_file,
};

/// Number of Heeler's own packs at which they are merged.
const PACKS_MAX: usize = 40;

/// Size limit of a pack index that is read for merging.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Offsets from this value on are stored in the index's table of large offsets.
const LARGE_OFFSET: u64 = 1 << 31;

// Version 2 of git's index format.
const INDEX_MAGIC: [u8; 8] = [0xff, b't', b'O', b'c', 0, 0, 0, 2];

/// Number of fan-out entries at the start of an index: objects up to each first byte.
const FAN_OUT: usize = 256;

/// Pack being written.
pub(crate) struct PackWriter {
    file: BufWriter<File>,
    /// Path of the temporary files, without extension.
    draft: Utf8PathBuf,
    format: ObjectFormat,
    offset: u64,
    objects: Vec<PackedObject>,
    seen: HashSet<ObjectId>,
}

struct PackedObject {
    oid: ObjectId,
    crc: u32,
    offset: u64,
}

/// One entry of a snapshot.
pub(crate) type TreeEntry<'a> = (&'a [u8], GitFileMode, ObjectId);

impl PackWriter {
    pub(crate) fn new(scratch: &Utf8Path, format: ObjectFormat) -> io::Result<PackWriter> {
        let draft = scratch.join("new");
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(FILE_MODE);
        let file = options.open(pack_path(&draft))?;
        let mut file = BufWriter::with_capacity(1 << 16, file);
        // The object count is filled in at the end.
        file.write_all(b"PACK\0\0\0\x02\0\0\0\0")?;
        let (objects, seen) = (Vec::new(), HashSet::new());
        Ok(PackWriter { file, draft, format, offset: 12, objects, seen })
    }

    /// Adds an object.
    pub(crate) fn add(&mut self, kind: ObjectKind, bytes: &[u8]) -> io::Result<ObjectId> {
        let oid = ObjectHasher::hash_object(self.format, kind, bytes);
        // Git does not allow an object twice in one pack.
        if !self.seen.insert(oid) {
            return Ok(oid);
        }
        let mut packed = Vec::with_capacity(bytes.len() / 2 + 32);
        let mut size = bytes.len();
        let mut byte = (kind as u8) << 4 | (size & 15) as u8;
        size >>= 4;
        while size > 0 {
            packed.push(byte | 0x80);
            byte = (size & 0x7f) as u8;
            size >>= 7;
        }
        packed.push(byte);
        // Speed matters more than size: git compresses again when it merges the packs.
        let mut deflated = ZlibEncoder::new(packed, Compression::fast());
        deflated.write_all(bytes)?;
        let packed = deflated.finish()?;
        self.file.write_all(&packed)?;
        let mut crc = Crc::new();
        crc.update(&packed);
        self.objects.push(PackedObject { oid, crc: crc.sum(), offset: self.offset });
        self.offset += packed.len() as u64;
        Ok(oid)
    }

    /// Writes the trees of the directories with changes (all with `None`), and returns the root
    /// tree's ID. Both lists are sorted by path.
    pub(crate) fn write_trees(
        &mut self,
        files: &[TreeEntry<'_>],
        changed: Option<&[&[u8]]>,
    ) -> io::Result<ObjectId> {
        self.write_tree(&mut &*files, b"", changed)
    }

    fn write_tree(
        &mut self,
        files: &mut &[TreeEntry<'_>],
        folder: &[u8],
        changed: Option<&[&[u8]]>,
    ) -> io::Result<ObjectId> {
        let mut body = Vec::new();
        while let Some(&(path, mode, oid)) = files.first() {
            let Some(rest) = path.strip_prefix(folder) else { break };
            let (digits, name, oid) = match rest.iter().position(|&byte| byte == b'/') {
                Some(slash) => {
                    // Trees are sorted by git as if directories ended in a slash, which the sorted
                    // paths give.
                    let below = &path[..=folder.len() + slash];
                    let changed = changed.map(|paths| paths_with_prefix(paths, below));
                    ("40000", &rest[..slash], self.write_tree(files, below, changed)?)
                }
                None => {
                    *files = &files[1..];
                    (mode.digits(), rest, oid)
                }
            };
            body.extend_from_slice(digits.as_bytes());
            body.push(b' ');
            body.extend_from_slice(name);
            body.push(0);
            body.extend_from_slice(oid.as_bytes());
        }
        if changed.is_some_and(<[_]>::is_empty) {
            // Git has this tree already, so only its id is needed.
            return Ok(ObjectHasher::hash_object(self.format, ObjectKind::Tree, &body));
        }
        self.add(ObjectKind::Tree, &body)
    }

    /// Publishes the pack on stable storage, after recording it in `notes`.
    pub(crate) fn finish(mut self, packs: &Utf8Path, notes: &Utf8Path) -> io::Result<()> {
        self.file.flush()?;
        let mut file = self.file.get_ref();
        file.seek(SeekFrom::Start(8))?;
        // The header was written before the number of objects was known.
        file.write_all(&(self.objects.len() as u32).to_be_bytes())?;
        // The digest covers the corrected header, so the file is read again.
        file.rewind()?;
        let mut hash = ObjectHasher::new(self.format);
        let mut block = vec![0; 1 << 16];
        loop {
            match file.read(&mut block)? {
                0 => break,
                count => hash.update(&block[..count]),
            }
        }
        let digest = hash.finish();
        file.write_all(digest.as_bytes())?;
        file.sync_data()?;
        let index = self.encode_index(digest);
        let mut index_file = File::options();
        index_file.write(true).create_new(true).mode(FILE_MODE);
        let mut index_file = index_file.open(index_path(&self.draft))?;
        index_file.write_all(&index)?;
        index_file.sync_data()?;
        let name = digest.hex();
        let to = packs.join(format!("pack-{name}"));
        DirBuilder::new().recursive(true).mode(0o700).create(notes)?;
        // Noted first: a crash after it leaves a note without a pack, which is removed later.
        write_file(&notes.join(&name), b"")?;
        // The pack before its index, because git opens a pack as soon as it finds the index.
        fs::rename(pack_path(&self.draft), pack_path(&to))?;
        fs::rename(index_path(&self.draft), index_path(&to))?;
        File::open(packs)?.sync_all()
    }

    fn encode_index(&mut self, pack: ObjectId) -> Vec<u8> {
        self.objects.sort_unstable_by_key(|object| object.oid);
        let mut index = INDEX_MAGIC.to_vec();
        for first in 0..FAN_OUT {
            let is_up_to = |object: &PackedObject| usize::from(object.oid.as_bytes()[0]) <= first;
            let count = self.objects.partition_point(is_up_to) as u32;
            index.extend_from_slice(&count.to_be_bytes());
        }
        self.objects.iter().for_each(|object| index.extend_from_slice(object.oid.as_bytes()));
        self.objects.iter().for_each(|object| index.extend_from_slice(&object.crc.to_be_bytes()));
        let mut large = Vec::new();
        for object in &self.objects {
            // Git's format has 31 bits for an offset; larger ones are in a table of their own.
            let offset = if object.offset < LARGE_OFFSET {
                object.offset as u32
            } else {
                large.push(object.offset);
                LARGE_OFFSET as u32 | (large.len() - 1) as u32
            };
            index.extend_from_slice(&offset.to_be_bytes());
        }
        large.iter().for_each(|offset| index.extend_from_slice(&offset.to_be_bytes()));
        index.extend_from_slice(pack.as_bytes());
        let mut hash = ObjectHasher::new(self.format);
        hash.update(&index);
        index.extend_from_slice(hash.finish().as_bytes());
        index
    }
}

fn pack_path(name: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{name}.pack"))
}

fn index_path(name: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{name}.idx"))
}

/// Returns the sorted paths that have this prefix.
fn paths_with_prefix<'p, 'q>(paths: &'p [&'q [u8]], prefix: &[u8]) -> &'p [&'q [u8]] {
    let paths = &paths[paths.partition_point(|path| *path < prefix)..];
    &paths[..paths.partition_point(|path| path.starts_with(prefix))]
}

impl SnapshotOperation<'_> {
    /// Merges Heeler's own packs into one with git, which also finds deltas between them.
    pub(crate) fn merge_packs(&self) -> Result<(), SnapshotError> {
        let notes = self.snapshots.root.join("packs");
        let names = entries(&notes)?;
        // Many small packs slow down every lookup of an object.
        if names.len() < PACKS_MAX {
            return Ok(());
        }
        let packs = self.snapshots.objects().join("pack");
        let mut oids = Vec::new();
        let mut merged = Vec::new();
        for name in &names {
            let index = index_path(&packs.join(format!("pack-{name}")));
            match untrusted_file::read(&index, INDEX_BYTES_MAX) {
                Ok(bytes) => {
                    read_object_ids(&bytes, self.snapshots.format, &mut oids);
                    merged.push(name);
                }
                // Another process has merged it, or is just publishing it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_at("read", &index)(error)),
            }
        }
        let mut feed = |to: &mut dyn Write| {
            let mut to = BufWriter::new(to);
            oids.iter().try_for_each(|oid: &ObjectId| writeln!(to, "{}", oid.hex()))?;
            to.flush()
        };
        let git = self.git(&[
            "pack-objects",
            "-q",
            "--non-empty",
            // Deltas between snapshots are found only if objects are compared again.
            "--no-reuse-delta",
            packs.join("pack").as_str(),
        ]);
        let made = git?.text(GitInput::Write(&mut feed))?;
        // The new pack must be durable before the old ones are removed.
        File::open(&packs).and_then(|packs| packs.sync_all()).map_err(io_at("sync", &packs))?;
        // The result may have the name of one of its sources, if nothing else was new.
        for name in merged.into_iter().filter(|name| **name != made) {
            self.drop_pack(name)?;
        }
        Ok(())
    }

    /// Removes packs that were being published when a process was killed. Requires the exclusive
    /// lock.
    pub(crate) fn drop_torn_packs(&self) -> Result<(), SnapshotError> {
        let packs = self.snapshots.objects().join("pack");
        for name in entries(&self.snapshots.root.join("packs"))? {
            // The index makes a pack visible, so a pack without it was never used.
            if !index_path(&packs.join(format!("pack-{name}"))).exists() {
                self.drop_pack(&name)?;
            }
        }
        Ok(())
    }

    /// Removes a pack. The index goes first: without it the rest is invisible.
    fn drop_pack(&self, name: &str) -> Result<(), SnapshotError> {
        let pack = self.snapshots.objects().join("pack").join(format!("pack-{name}"));
        let note = self.snapshots.root.join("packs").join(name);
        // A name that is not a digest is not a pack of Heeler.
        let is_ours = CommitId::parse(name).is_some();
        let files = [index_path(&pack), pack_path(&pack)].into_iter().filter(|_| is_ours);
        for file in files.chain([note]) {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_at("remove", &file)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads the object IDs of a pack index; a damaged index yields none.
fn read_object_ids(index: &[u8], format: ObjectFormat, oids: &mut Vec<ObjectId>) {
    let begin = INDEX_MAGIC.len() + 4 * FAN_OUT;
    let Some(head) = index.get(..begin) else { return };
    let count = u32::from_be_bytes(*head.last_chunk().expect("it is longer")) as usize;
    let table = index.get(begin..begin + count * format.bytes()).unwrap_or_default();
    oids.extend(table.chunks_exact(format.bytes()).filter_map(ObjectId::from_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_past_two_gigabytes_have_a_table_of_their_own() {
        let temp = tempfile::tempdir().unwrap();
        let scratch = Utf8Path::from_path(temp.path()).unwrap();
        let mut pack = PackWriter::new(scratch, ObjectFormat::Sha1).unwrap();
        let small = pack.add(ObjectKind::Blob, b"small").unwrap();
        pack.offset = LARGE_OFFSET + 5;
        let large = pack.add(ObjectKind::Blob, b"large").unwrap();
        let index = pack.encode_index(small);
        let mut oids = Vec::new();
        read_object_ids(&index, ObjectFormat::Sha1, &mut oids);
        let mut wanted = [small, large];
        wanted.sort_unstable();
        assert_eq!(oids, wanted);
        let at = 8 + 4 * FAN_OUT + 2 * 20 + 2 * 4;
        let offset = |at: usize| u32::from_be_bytes(*index[at..].first_chunk().unwrap());
        let offsets = if wanted[0] == small { [12, 1 << 31] } else { [1 << 31, 12] };
        assert_eq!([offset(at), offset(at + 4)], offsets);
        let table = u64::from_be_bytes(*index[at + 8..].first_chunk().unwrap());
        assert_eq!(table, LARGE_OFFSET + 5);
        assert_eq!(index.len(), at + 8 + 8 + 2 * 20);
    }
}
