//! Import of foreign state through the crate's public face: what comes in, what is refused, and
//! that the source stays as it was.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod adopt;
mod agents_fleet;
mod herdctl;
mod hostile;
mod kill;
mod lastlight;
mod rebuild;
mod recovery;

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_import::{ImportCounts, ImportReport};
use heeler_store::{StateDir, Store};
use jiff::Timestamp;

/// A temporary folder with a state directory and room for a source.
struct Place {
    root: Utf8PathBuf,
    _temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        Place { root, _temp: temp }
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        self.root.join(name)
    }

    fn store(&self) -> Store {
        let dir = StateDir::create(&self.path("fleet/.heeler")).unwrap();
        Store::open(&dir, "import", now()).unwrap().store
    }

    /// Starts a process that looks like a herdctl at work in `root`.
    #[expect(clippy::disallowed_methods, reason = "plays a living herdctl")]
    fn living_herdctl(&self, root: &Utf8Path) -> std::process::Child {
        let node = self.path("node");
        std::fs::copy("/bin/sleep", &node).unwrap();
        let herdctl = std::process::Command::new(&node).arg("600").spawn().unwrap();
        // Its name can be read a moment after it was started.
        let command = format!("/proc/{}/cmdline", herdctl.id());
        while !std::fs::read(&command).unwrap().starts_with(node.as_str().as_bytes()) {
            std::thread::yield_now();
        }
        std::fs::write(root.join("herdctl.pid"), herdctl.id().to_string()).unwrap();
        herdctl
    }

    /// Copies a fixture here.
    fn fixture(&self, name: &str, to: &str) -> Utf8PathBuf {
        let from = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let to = self.path(to);
        copy_tree(&from, &to);
        to
    }
}

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn copy_tree(from: &Utf8Path, to: &Utf8Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Everything about a tree that an import could have changed: names, modes, times, content.
fn fingerprint(root: &Utf8Path) -> String {
    let mut lines = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let path = entry.unwrap().path().to_owned();
            let meta = path.symlink_metadata().unwrap();
            let mut line =
                format!("{path} {:o} {}.{}", meta.mode(), meta.mtime(), meta.mtime_nsec());
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_symlink() {
                write!(line, " -> {}", path.read_link_utf8().unwrap()).unwrap();
            } else if meta.is_file() {
                write!(line, " {:?}", std::fs::read(&path).unwrap()).unwrap();
            }
            lines.push(line);
        }
    }
    lines.sort();
    lines.join("\n")
}

fn mode(path: &Utf8Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn reasons(report: &ImportReport) -> Vec<String> {
    report.refused.iter().map(|refusal| format!("{}: {}", refusal.what, refusal.reason)).collect()
}

fn tally(read: u64, imported: u64, already_there: u64, refused: u64) -> ImportCounts {
    ImportCounts { read, imported, existing: already_there, refused }
}
