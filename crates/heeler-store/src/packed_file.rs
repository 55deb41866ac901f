//! A file as the archive has it: compressed, in chunks, with the length and hash of its content.
//!
//! Compression and its reverse hold one chunk in memory. Content that is longer than expected is
//! refused before it is written. Start at [`pack_file`] and [`FileUnpacker`].

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::hex::hex;

/// Bytes of a chunk. The last one may be shorter.
pub(crate) const CHUNK_BYTES: usize = 512 << 10;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// A file that was compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedFile {
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
    pub chunks: u64,
}

/// Failure to compress a file.
#[derive(Debug, Error)]
pub enum PackError<E> {
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("it has {0} bytes, and more are on record")]
    TooShort(u64),
    /// A chunk was not stored.
    #[error("cannot store it")]
    Put(#[source] E),
}

/// Compresses the first bytes of a file and passes them on in chunks, each with its number.
pub fn pack_file<E>(
    file: impl Read,
    length: u64,
    mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<PackedFile, PackError<E>> {
    let mut file = file.take(length);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let (mut hasher, mut chunks, mut total) = (Sha256::new(), 0, 0);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = match file.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(PackError::Read(error)),
        };
        if count == 0 {
            break;
        }
        total += count as u64;
        hasher.update(&buffer[..count]);
        encoder.write_all(&buffer[..count]).map_err(PackError::Read)?;
        while encoder.get_ref().len() >= CHUNK_BYTES {
            let rest = encoder.get_mut().split_off(CHUNK_BYTES);
            let chunk = std::mem::replace(encoder.get_mut(), rest);
            put(chunks, &chunk).map_err(PackError::Put)?;
            chunks += 1;
        }
    }
    if total < length {
        return Err(PackError::TooShort(total));
    }
    let packed = encoder.finish().map_err(PackError::Read)?;
    for chunk in packed.chunks(CHUNK_BYTES) {
        put(chunks, chunk).map_err(PackError::Put)?;
        chunks += 1;
    }
    Ok(PackedFile { sha256: hex(&hasher.finalize()), chunks })
}

/// The archive has another content than its record says.
#[derive(Debug, Error)]
pub enum UnpackError {
    #[error("its content cannot be decompressed, or is longer than the record says")]
    Content(#[source] io::Error),
    #[error("its content has {found} bytes and not {expected}")]
    OtherLength { found: u64, expected: u64 },
    #[error("its content has another hash than the record says")]
    OtherHash,
}

/// Decompresses the chunks of a file into a writer, up to the expected length.
#[derive(Debug)]
pub struct FileUnpacker<W: Write> {
    decoder: GzDecoder<CheckedWriter<W>>,
}

impl<W: Write> FileUnpacker<W> {
    /// `length` is that of the content.
    pub fn new(out: W, length: u64) -> FileUnpacker<W> {
        let checked = CheckedWriter { out, hasher: Sha256::new(), written: 0, length };
        FileUnpacker { decoder: GzDecoder::new(checked) }
    }

    /// Adds the next chunk.
    pub fn add(&mut self, chunk: &[u8]) -> Result<(), UnpackError> {
        self.decoder.write_all(chunk).map_err(UnpackError::Content)
    }

    /// Returns the writer if it has the whole content.
    pub fn finish(self, sha256: &str) -> Result<W, UnpackError> {
        let checked = self.decoder.finish().map_err(UnpackError::Content)?;
        let (found, expected) = (checked.written, checked.length);
        if found != expected {
            return Err(UnpackError::OtherLength { found, expected });
        }
        match hex(&checked.hasher.finalize()) == sha256 {
            true => Ok(checked.out),
            false => Err(UnpackError::OtherHash),
        }
    }
}

/// Writer that counts and hashes, and refuses more than the expected bytes.
#[derive(Debug)]
struct CheckedWriter<W> {
    out: W,
    hasher: Sha256,
    written: u64,
    length: u64,
}

impl<W: Write> Write for CheckedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.length - self.written {
            return Err(io::Error::other("it is longer than the record says"));
        }
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn packed(content: &[u8]) -> (PackedFile, Vec<Vec<u8>>) {
        let mut chunks = Vec::new();
        let put = |number: u64, chunk: &[u8]| {
            assert_eq!(number, chunks.len() as u64);
            chunks.push(chunk.to_vec());
            Ok::<(), Infallible>(())
        };
        let packed = pack_file(content, content.len() as u64, put).unwrap();
        (packed, chunks)
    }

    fn unpacked(chunks: &[Vec<u8>], length: u64, sha256: &str) -> Result<Vec<u8>, UnpackError> {
        let mut unpacker = FileUnpacker::new(Vec::new(), length);
        for chunk in chunks {
            unpacker.add(chunk)?;
        }
        unpacker.finish(sha256)
    }

    #[test]
    fn a_file_of_any_length_comes_back_whole() {
        let mut random = fastrand::Rng::with_seed(7);
        let noise: Vec<u8> = (0..CHUNK_BYTES * 2 + 5).map(|_| random.u8(..)).collect();
        for content in [Vec::new(), b"{}\n".to_vec(), vec![b'x'; 3 << 20], noise] {
            let (file, chunks) = packed(&content);
            assert_eq!(file.chunks, chunks.len() as u64);
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
            let length = content.len() as u64;
            assert_eq!(unpacked(&chunks, length, &file.sha256).unwrap(), content);
        }
    }

    #[test]
    fn only_the_bytes_on_record_are_packed_and_a_shorter_file_is_refused() {
        let put = |_: u64, _: &[u8]| Ok::<(), Infallible>(());
        let beginning = pack_file(&b"one two"[..], 3, put).unwrap();
        assert_eq!(beginning, packed(b"one").0);
        let short = pack_file(&b"one"[..], 4, put).unwrap_err();
        assert!(matches!(short, PackError::TooShort(3)), "{short:?}");
        let failed = pack_file(&b"one"[..], 3, |_, _| Err("full")).unwrap_err();
        assert!(matches!(failed, PackError::Put("full")), "{failed:?}");
    }

    #[test]
    fn other_content_is_refused() {
        let content = vec![b'y'; 1 << 20];
        let length = content.len() as u64;
        let (file, chunks) = packed(&content);
        let of = |chunks: &[Vec<u8>], length| unpacked(chunks, length, &file.sha256).unwrap_err();
        let longer = of(&chunks, length - 1);
        assert!(matches!(longer, UnpackError::Content(_)), "{longer}");
        let shorter = of(&chunks, length + 1);
        assert!(matches!(shorter, UnpackError::OtherLength { .. }), "{shorter}");
        let other = of(&packed(&vec![b'z'; 1 << 20]).1, length);
        assert!(matches!(other, UnpackError::OtherHash), "{other}");
        let torn = of(&[chunks[0][..chunks[0].len() / 2].to_vec()], length);
        assert!(matches!(torn, UnpackError::Content(_)), "{torn}");
        let mut damaged = chunks;
        let middle = damaged[0].len() / 2;
        damaged[0][middle] ^= 0xff;
        of(&damaged, length);
        of(&[b"no compressed file".to_vec()], length);
    }
}
