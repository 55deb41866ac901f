//! Files of a release that name the archives of all targets: `install.sh`, the formula of Homebrew
//! and the list of checksums. Start at [`ReleaseArchive`].

use anyhow::{Result, ensure};

use super::target::DistTarget;

const TEMPLATE: &str = include_str!("../../../../packaging/install.sh");
const FORMULA: &str = include_str!("../../../../packaging/heeler.rb");

/// An archive that these files name.
pub(crate) struct ReleaseArchive {
    pub(crate) target: DistTarget,
    pub(crate) sha256: String,
}

/// Returns the install script, which has the version and the checksums of the archives in it.
pub(crate) fn install_script(version: &str, archives: &[ReleaseArchive]) -> Result<String> {
    let cases: Vec<String> = archives
        .iter()
        .map(|it| format!("    {}) sha256={} ;;", it.target.processor, it.sha256))
        .collect();
    let text = TEMPLATE.replace("@VERSION@", version).replace("@CHECKSUMS@", &cases.join("\n"));
    ensure!(!text.contains("@VERSION@") && !text.contains("@CHECKSUMS@"), "install.sh has a gap");
    Ok(text)
}

/// Returns the formula of Homebrew.
pub(crate) fn homebrew_formula(version: &str, archives: &[ReleaseArchive]) -> String {
    let blocks: Vec<String> =
        archives.iter().map(|archive| formula_block(version, archive)).collect();
    FORMULA.replace("@VERSION@", version).replace("@ARCHIVES@", &blocks.join("\n"))
}

fn formula_block(version: &str, archive: &ReleaseArchive) -> String {
    let block = if archive.target.processor == "aarch64" { "on_arm" } else { "on_intel" };
    let name = archive.target.archive_name(version);
    format!(
        "  {block} do\n    \
             url \"https://github.com/heeler/heeler/releases/download/v{version}/{name}.tar.gz\"\n    \
             sha256 \"{}\"\n  \
         end",
        archive.sha256
    )
}
