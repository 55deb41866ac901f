//! Archives with the same bytes for the same content: tar, gzip, zip and Debian's `ar`.
//!
//! Entries have one time, numbers instead of user names, and the order in which they are given.
//! Start at [`ArchiveEntry`].

use std::io::Write as _;

use anyhow::{Context as _, Result};
use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};
use tar::{EntryType, Header};

/// A file, folder or link in an archive.
#[derive(Clone)]
pub(crate) struct ArchiveEntry {
    /// Path without a leading slash.
    pub(crate) path: String,
    /// Permission bits.
    pub(crate) mode: u32,
    /// User and group.
    pub(crate) owner: u32,
    pub(crate) content: EntryContent,
}

#[derive(Clone)]
pub(crate) enum EntryContent {
    File(Vec<u8>),
    Folder,
    /// Target of a symbolic link.
    Link(String),
}

impl ArchiveEntry {
    pub(crate) fn file(path: impl Into<String>, mode: u32, bytes: impl Into<Vec<u8>>) -> Self {
        ArchiveEntry {
            path: path.into(),
            mode,
            owner: 0,
            content: EntryContent::File(bytes.into()),
        }
    }

    pub(crate) fn folder(path: &str, mode: u32, owner: u32) -> ArchiveEntry {
        ArchiveEntry { path: path.to_owned(), mode, owner, content: EntryContent::Folder }
    }

    pub(crate) fn link(path: &str, target: &str) -> ArchiveEntry {
        let content = EntryContent::Link(target.to_owned());
        ArchiveEntry { path: path.to_owned(), mode: 0o777, owner: 0, content }
    }

    /// Returns the entry below a folder.
    pub(crate) fn below(mut self, folder: &str) -> ArchiveEntry {
        self.path = format!("{folder}/{}", self.path);
        self
    }
}

/// Adds the folders that entries are in and that are not listed, and sorts everything by path.
pub(crate) fn with_folders(mut entries: Vec<ArchiveEntry>) -> Vec<ArchiveEntry> {
    let mut parents = std::collections::BTreeSet::new();
    for entry in &entries {
        let ends = entry.path.match_indices('/').map(|(at, _)| entry.path[..at].to_owned());
        parents.extend(ends);
    }
    parents.retain(|parent| entries.iter().all(|entry| entry.path != *parent));
    entries.extend(parents.iter().map(|parent| ArchiveEntry::folder(parent, 0o755, 0)));
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    entries
}

/// Returns a tar archive of the entries.
pub(crate) fn tar_bytes(entries: &[ArchiveEntry], time: u64) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.owner.into());
        header.set_gid(entry.owner.into());
        header.set_mtime(time);
        header.set_size(0);
        match &entry.content {
            EntryContent::File(bytes) => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(bytes.len() as u64);
                builder.append_data(&mut header, &entry.path, bytes.as_slice())?;
            }
            EntryContent::Folder => {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, format!("{}/", entry.path), std::io::empty())?;
            }
            EntryContent::Link(target) => {
                header.set_entry_type(EntryType::Symlink);
                builder.append_link(&mut header, &entry.path, target)?;
            }
        }
    }
    Ok(builder.into_inner()?)
}

/// Compresses bytes. The header has no time and no file name.
pub(crate) fn gzip_bytes(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Returns an archive of the kind that `ar` makes, of which a Debian package is one.
pub(crate) fn ar_bytes(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let header =
            format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", bytes.len());
        archive.extend(header.as_bytes());
        archive.extend(bytes);
        // Members start at even positions.
        if bytes.len() % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

/// Zip's date and time of 1980-01-01, its first: a wheel has no use for times.
const ZIP_TIME: [u8; 4] = [0, 0, 0x21, 0];

/// Version of zip that compression needs, for Unix.
const ZIP_VERSION: [u8; 2] = [20, 3];

/// Returns a zip archive of the entries, of which only files are allowed.
pub(crate) fn zip_bytes(entries: &[ArchiveEntry]) -> Result<Vec<u8>> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let EntryContent::File(bytes) = &entry.content else {
            anyhow::bail!("{} is no file", entry.path);
        };
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes)?;
        let packed = encoder.finish()?;
        let offset = number(archive.len())?;
        // The fields that both headers share, from the version to the length of the name.
        let mut shared = vec![20, 0, 0, 0, 8, 0];
        shared.extend(ZIP_TIME);
        let mut crc = Crc::new();
        crc.update(bytes);
        shared.extend(crc.sum().to_le_bytes());
        shared.extend(number(packed.len())?);
        shared.extend(number(bytes.len())?);
        shared.extend(u16::try_from(entry.path.len())?.to_le_bytes());
        shared.extend([0, 0]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&shared);
        archive.extend(entry.path.as_bytes());
        archive.extend(packed);
        directory.extend(b"PK\x01\x02");
        directory.extend(ZIP_VERSION);
        directory.extend(&shared);
        // No comment, first disk, no attributes of DOS.
        directory.extend([0; 6]);
        // A regular file with its permissions.
        directory.extend(((0o100_000 | entry.mode) << 16).to_le_bytes());
        directory.extend(offset);
        directory.extend(entry.path.as_bytes());
    }
    let (start, count) = (number(archive.len())?, u16::try_from(entries.len())?.to_le_bytes());
    let size = number(directory.len())?;
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([count, count].concat());
    archive.extend([size, start].concat());
    archive.extend([0, 0]);
    Ok(archive)
}

fn number(size: usize) -> Result<[u8; 4]> {
    Ok(u32::try_from(size).context("a zip archive of more than 4 GiB")?.to_le_bytes())
}
