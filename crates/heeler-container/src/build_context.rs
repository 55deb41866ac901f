//! The files of an image build, as a tar archive that is read while it is sent. Start at
//! [`BuildContext`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use serde::Deserialize;

/// Size of a block of an archive.
const BLOCK_BYTES: usize = 512;

/// Number of bytes that are read of a file at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Limit on a message of the engine that is not complete.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Files of an image build. A file of this machine is read while the archive is sent, because a
/// program may have hundreds of megabytes.
#[derive(Debug, Default)]
pub struct BuildContext {
    parts: VecDeque<ContextPart>,
}

#[derive(Debug)]
enum ContextPart {
    Bytes(Bytes),
    File { file: File, left: u64 },
}

impl BuildContext {
    /// Adds a small file.
    pub fn add_text(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.add_header(name, text.len() as u64, 0o644)?;
        self.parts.push_back(ContextPart::Bytes(Bytes::copy_from_slice(text.as_bytes())));
        self.add_padding(text.len() as u64);
        Ok(())
    }

    /// Adds a program of this machine.
    pub fn add_program(&mut self, name: &str, file: File) -> io::Result<()> {
        let left = file.metadata()?.len();
        self.add_header(name, left, 0o755)?;
        self.parts.push_back(ContextPart::File { file, left });
        self.add_padding(left);
        Ok(())
    }

    /// Adds the end of the archive.
    pub fn finish(&mut self) {
        self.parts.push_back(ContextPart::Bytes(Bytes::from(vec![0; 2 * BLOCK_BYTES])));
    }

    fn add_header(&mut self, name: &str, size: u64, mode: u32) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_path(name)?;
        header.set_size(size);
        header.set_mode(mode);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        let block = Bytes::copy_from_slice(header.as_bytes());
        self.parts.push_back(ContextPart::Bytes(block));
        Ok(())
    }

    fn add_padding(&mut self, size: u64) {
        let rest = usize::try_from(size % BLOCK_BYTES as u64).unwrap_or_default();
        let padding = (BLOCK_BYTES - rest) % BLOCK_BYTES;
        self.parts.push_back(ContextPart::Bytes(Bytes::from(vec![0; padding])));
    }

    fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        while let Some(part) = self.parts.front_mut() {
            match part {
                ContextPart::Bytes(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.parts.pop_front();
                    if !bytes.is_empty() {
                        return Ok(Some(bytes));
                    }
                }
                ContextPart::File { left: 0, .. } => drop(self.parts.pop_front()),
                ContextPart::File { file, left } => {
                    let wanted = (*left).min(CHUNK_BYTES as u64);
                    let mut chunk = vec![0; usize::try_from(wanted).unwrap_or(CHUNK_BYTES)];
                    // A file that became shorter meanwhile ends the build.
                    file.read_exact(&mut chunk)?;
                    *left -= wanted;
                    return Ok(Some(Bytes::from(chunk)));
                }
            }
        }
        Ok(None)
    }
}

impl Body for BuildContext {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        // Files of this machine are read without waiting for anything else.
        Poll::Ready(self.next_chunk().transpose().map(|chunk| chunk.map(Frame::data)))
    }
}

/// Progress of a build: one JSON object per line, in parts of any length.
#[derive(Debug, Default)]
pub(crate) struct BuildStream {
    rest: Vec<u8>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct BuildMessage {
    stream: Option<String>,
    status: Option<String>,
    error: Option<String>,
}

impl BuildStream {
    pub(crate) fn add(&mut self, part: &[u8], progress: &mut dyn FnMut(&str)) {
        self.rest.extend_from_slice(part);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.read(&line, progress);
        }
        if self.rest.len() > MESSAGE_BYTES_MAX {
            self.rest.clear();
        }
    }

    fn read(&mut self, line: &[u8], progress: &mut dyn FnMut(&str)) {
        let Ok(message) = serde_json::from_slice::<BuildMessage>(line) else { return };
        if let Some(text) = message.stream.or(message.status) {
            progress(&text);
        }
        self.error = message.error.or(self.error.take());
    }

    /// Returns the failure of the build, if it failed.
    pub(crate) fn finish(mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.rest);
        self.read(&rest, &mut |_| {});
        self.error
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_archive_is_one_that_tar_reads() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("big");
        let content: Vec<u8> = (0..CHUNK_BYTES + 700).map(|at| (at % 251) as u8).collect();
        std::fs::write(&program, &content).unwrap();
        let mut context = BuildContext::default();
        context.add_text("Dockerfile", "FROM x\n").unwrap();
        context.add_program("claude", File::open(&program).unwrap()).unwrap();
        context.finish();
        let mut archive = File::create(folder.path().join("a.tar")).unwrap();
        let mut length = 0;
        while let Some(chunk) = context.next_chunk().unwrap() {
            archive.write_all(&chunk).unwrap();
            length += chunk.len();
        }
        assert_eq!(length % BLOCK_BYTES, 0);
        let mut read = tar::Archive::new(File::open(folder.path().join("a.tar")).unwrap());
        let mut found = Vec::new();
        for entry in read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let name = entry.path().unwrap().display().to_string();
            found.push((name, entry.header().mode().unwrap(), bytes));
        }
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], ("Dockerfile".to_owned(), 0o644, b"FROM x\n".to_vec()));
        assert_eq!((found[1].0.as_str(), found[1].1), ("claude", 0o755));
        assert!(found[1].2 == content, "the program is changed");
    }

    #[test]
    fn the_last_error_of_a_build_is_its_failure() {
        let mut stream = BuildStream::default();
        let mut lines = Vec::new();
        let mut add = |stream: &mut BuildStream, part: &[u8]| {
            stream.add(part, &mut |line| lines.push(line.to_owned()));
        };
        add(&mut stream, b"{\"stream\":\"Step 1\"}\n{\"sta");
        add(&mut stream, b"tus\":\"Pulling\"}\nnoise\n");
        add(&mut stream, b"{\"error\":\"no such host\"}");
        assert_eq!(stream.finish().as_deref(), Some("no such host"));
        assert_eq!(lines, ["Step 1", "Pulling"]);
        assert_eq!(BuildStream::default().finish(), None);
    }
}
