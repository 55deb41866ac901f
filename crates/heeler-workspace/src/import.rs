//! The stream that `git fast-import` reads: new blobs, then two commits.
//!
//! The first commit's tree is the user's index, the second's is the work tree. The second has the first
//! as its last parent and the user's `HEAD` as its first; the last line of its message says the rest.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::oid::{BlobHash, Format, Oid};
use crate::snapshot::{Commit, LeftOut, Snapshot};
use crate::stat::Files;
use crate::stat::Recorded;
use crate::take::Start;
use crate::work_tree::Head;

/// What begins the last line of a snapshot's message.
const MARK: &str = "Heeler: ";

/// Who makes the commits. Nobody's name: they are never shown as anybody's work.
const COMMITTER: &str = "heeler <heeler@localhost>";

/// What the commits say.
pub(crate) struct Draft<'a> {
    pub(crate) head: &'a Head,
    pub(crate) index_tree: Oid,
    pub(crate) note: &'a str,
    pub(crate) now: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Meta {
    base: Option<Commit>,
    branch: Option<String>,
    left_out: Vec<LeftOut>,
}

/// A stream being written.
pub(crate) struct Stream<'a> {
    to: &'a mut dyn Write,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(to: &'a mut dyn Write) -> Stream<'a> {
        Stream { to }
    }

    pub(crate) fn blob(&mut self, format: Format, bytes: &[u8]) -> io::Result<Oid> {
        self.to.write_all(b"blob\n")?;
        self.data(bytes)?;
        Ok(BlobHash::of(format, bytes))
    }

    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        writeln!(self.to, "data {}", bytes.len())?;
        self.to.write_all(bytes)?;
        self.to.write_all(b"\n")
    }

    pub(crate) fn commits(
        &mut self,
        draft: &Draft<'_>,
        left_out: &[LeftOut],
        start: &Start,
        files: &Files,
    ) -> io::Result<()> {
        let base = draft.head.commit.as_ref();
        self.commit(1, draft.now, "what was staged\n")?;
        if let Some(base) = base {
            writeln!(self.to, "from {base}")?;
        }
        writeln!(self.to, "M 040000 {} \"\"\n", draft.index_tree.hex())?;
        let meta = Meta {
            base: base.cloned(),
            branch: draft.head.branch.clone(),
            left_out: left_out.to_vec(),
        };
        let meta = serde_json::to_string(&meta)?;
        self.commit(2, draft.now, &format!("{}\n\n{MARK}{meta}\n", draft.note))?;
        match base {
            Some(base) => writeln!(self.to, "from {base}\nmerge :1")?,
            None => writeln!(self.to, "from :1")?,
        }
        writeln!(self.to, "M 040000 {} \"\"", start.tree.hex())?;
        self.difference(&start.files, files)?;
        writeln!(self.to, "\nget-mark :2\nls :2 \ndone")
    }

    fn commit(&mut self, mark: u8, now: Timestamp, message: &str) -> io::Result<()> {
        let seconds = now.as_second().max(0);
        writeln!(self.to, "commit refs/draft/{mark}\nmark :{mark}")?;
        writeln!(self.to, "committer {COMMITTER} {seconds} +0000")?;
        self.data(message.as_bytes())
    }

    /// Removals come first: a folder may have become a file, or a file a folder.
    fn difference(&mut self, old: &Files, new: &Files) -> io::Result<()> {
        for path in old.keys().filter(|path| !new.contains_key(*path)) {
            writeln!(self.to, "D {}", quoted(path))?;
        }
        for (path, file) in new {
            let is_same = |old: &Recorded| old.mode == file.mode && old.oid == file.oid;
            if !old.get(path).is_some_and(is_same) {
                let (mode, oid) = (file.mode.digits(), file.oid.hex());
                writeln!(self.to, "M {mode} {oid} {}", quoted(path))?;
            }
        }
        Ok(())
    }
}

/// Reads a snapshot back from the text of its commit; `None` when the commit is none.
pub(crate) fn read_commit(commit: &Commit, text: &str) -> Option<Snapshot> {
    let line = text.trim_end().lines().next_back()?.strip_prefix(MARK)?;
    let Meta { base, branch, left_out } = serde_json::from_str(line).ok()?;
    Some(Snapshot { commit: commit.clone(), base, branch, left_out })
}

/// Reads which commit holds what was staged: the last parent.
pub(crate) fn staged_in(text: &str) -> Option<Commit> {
    let parents = text.lines().take_while(|line| !line.is_empty());
    parents.filter_map(|line| line.strip_prefix("parent ")).last().and_then(Commit::parse)
}

/// Quotes a path as git does, whatever its bytes.
fn quoted(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len() + 2);
    text.push('"');
    for &byte in path {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            0x20..=0x7e => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}
