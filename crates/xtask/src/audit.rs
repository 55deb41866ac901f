//! `cargo xtask audit`: licences, bans and sources of all dependencies, by cargo-deny.
//!
//! cargo-deny takes minutes to build and its answer depends on two files only. The hash of both is
//! committed with each passing audit, and `cargo xtask test` repeats the audit only when it
//! differs. Start at [`audit_if_changed`].

use anyhow::Result;
use sha2::{Digest as _, Sha256};

use crate::packages::install_cargo_tool;
use crate::shell::run;

/// File with the hash of the files that passed last.
const AUDITED: &str = ".config/audited-dependencies";

/// Checks without advisories, which need a database from the network: `cargo deny check advisories`
/// on a connected machine covers them, and the hosted CI runs it every night.
const CHECKS: [&str; 6] = ["cargo", "deny", "check", "bans", "licenses", "sources"];

/// Audits the dependencies and records the result.
pub(crate) fn audit() -> Result<()> {
    install_cargo_tool("cargo-deny", "0.20.2")?;
    run(&CHECKS, &[])?;
    std::fs::write(AUDITED, format!("{}\n", audited_hash()?))?;
    eprintln!("audit: passed; commit {AUDITED}");
    Ok(())
}

/// Audits the dependencies, unless exactly these have passed before.
pub(crate) fn audit_if_changed() -> Result<()> {
    // A missing file means that nothing has passed yet.
    let passed = std::fs::read_to_string(AUDITED).unwrap_or_default();
    if passed.trim() == audited_hash()? {
        eprintln!("audit: Cargo.lock and deny.toml have not changed since the last audit");
        return Ok(());
    }
    audit()
}

fn audited_hash() -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["Cargo.lock", "deny.toml"] {
        hash.update(std::fs::read(file)?);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
