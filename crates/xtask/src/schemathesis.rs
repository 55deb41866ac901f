//! Installs schemathesis, with which a proof tests the API against its OpenAPI document. It is not
//! shipped.

use anyhow::{Context as _, Result};

use crate::packages::install_debian_packages;
use crate::shell::{run, succeeds, workspace_root};

/// Also read by the proof.
const VERSION: &str = include_str!("../../heeler/tests/it/schemathesis-version");

/// Its folder below `target`, also used by the proof.
const FOLDER: &str = "target/schemathesis";

/// Installs schemathesis, unless this version is installed.
pub(crate) fn install() -> Result<()> {
    let version = VERSION.trim();
    let folder = workspace_root()?.join(FOLDER);
    let folder = folder.to_str().context("the path of this clone is not text")?;
    let (python, pip) = (format!("{folder}/bin/python"), format!("{folder}/bin/pip"));
    let is_there = format!(
        "from importlib.metadata import version as v; assert v('schemathesis') == '{version}'"
    );
    if succeeds(&[&python, "-c", &is_there]) {
        eprintln!("setup: schemathesis {version} is installed");
        return Ok(());
    }
    if !succeeds(&["python3", "-c", "import venv, ensurepip"]) {
        // No program shows that this package is missing, so the name is one that never exists.
        install_debian_packages(&[("python3", "python3"), ("heeler-needs-venv", "python3-venv")])?;
    }
    eprintln!("setup: installing schemathesis {version}");
    run(&["python3", "-m", "venv", folder], &[])?;
    run(&[&pip, "install", "--quiet", &format!("schemathesis=={version}")], &[])
}
