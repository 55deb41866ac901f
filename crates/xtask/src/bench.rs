//! `cargo xtask bench`: prepares the alternatives, then measures both sides in one run.

use std::path::PathBuf;

use anyhow::Result;

use crate::packages::install_debian_packages;
use crate::shell::{run, succeeds, workspace_root};

const SCRIPTS: &str = "crates/heeler/benches/node";

/// Measures and prints all figures, or those of one group.
pub(crate) fn figures(group: Option<&str>) -> Result<()> {
    install_debian_packages(&[("node", "nodejs"), ("npm", "npm"), ("wrk", "wrk")])?;
    let node = alternatives()?;
    let node = node.to_string_lossy();
    let mut command =
        vec!["cargo", "bench", "--package", "heeler", "--bench", "heeler-figures", "--"];
    command.extend(group);
    run(&command, &[("HEELER_BENCH_NODE", &node)])
}

/// Installs the dependencies of the Node.js scripts, outside the source tree.
fn alternatives() -> Result<PathBuf> {
    let folder = workspace_root()?.join("target/bench-node");
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(SCRIPTS)? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let prefix = folder.to_string_lossy();
    // An interrupted installation leaves directories that do not work, so loading them is tried.
    let works = format!(
        "require('{prefix}/node_modules/better-sqlite3')(':memory:'); \
         require('{prefix}/node_modules/fastify'); require('{prefix}/node_modules/@slack/bolt'); \
         require('{prefix}/node_modules/graphile-worker'); require('{prefix}/node_modules/pg')"
    );
    if !succeeds(&["node", "-e", &works]) {
        // Debian's and the vendor's packages keep Node's headers here; without them a build of
        // the SQLite binding would look for them on the network.
        let headers = [("npm_config_nodedir", "/usr")];
        run(&["npm", "install", "--prefix", &prefix, "--no-audit", "--no-fund"], &headers)?;
    }
    Ok(folder)
}
