//! Processors that release files are made for, with the name that each kind of package gives them.

use anyhow::{Context as _, Result};

/// A processor of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DistTarget {
    /// Name of Rust, Python and `uname -m`.
    pub(crate) processor: &'static str,
    /// Name of Debian, Go and container images.
    pub(crate) debian: &'static str,
    /// Name of Node.js.
    pub(crate) node: &'static str,
}

/// All processors, in the order of lists.
pub(crate) const TARGETS: [DistTarget; 2] = [
    DistTarget { processor: "aarch64", debian: "arm64", node: "arm64" },
    DistTarget { processor: "x86_64", debian: "amd64", node: "x64" },
];

impl DistTarget {
    /// Finds a target by the name of its processor.
    pub(crate) fn find(processor: &str) -> Result<DistTarget> {
        let found = TARGETS.iter().find(|target| target.processor == processor);
        found.copied().with_context(|| {
            format!("no packages are made for `{processor}`; known: aarch64, x86_64")
        })
    }

    /// Rust's name of the target: a static program that needs no library of the system.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-musl", self.processor)
    }

    /// Name of the archive without its extension, and of the folder in it.
    pub(crate) fn archive_name(self, version: &str) -> String {
        format!("heeler-{version}-{}-linux", self.processor)
    }
}
