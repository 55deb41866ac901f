//! Installs the external programs that the checks need, and only those that are missing. Start at
//! [`all`].

use anyhow::Result;

use crate::packages::install_debian_packages;
use crate::{agents, axe, claude, inside, schemathesis};

/// Installs everything that is missing.
pub(crate) fn all() -> Result<()> {
    install_debian_packages(&[
        ("bwrap", "bubblewrap"),
        ("dockerd", "docker.io"),
        ("podman", "podman"),
        ("git", "git"),
        ("chromium", "chromium"),
        ("chromedriver", "chromium-driver"),
        ("pg_lsclusters", "postgresql"),
        ("pgbouncer", "pgbouncer"),
        ("openssl", "openssl"),
    ])?;
    inside::build_static_program()?;
    claude::fetch()?;
    agents::fetch()?;
    axe::fetch()?;
    schemathesis::install()
}
