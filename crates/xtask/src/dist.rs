//! `cargo xtask dist`: the files of a release, which people install without Rust.
//!
//! The same commit gives the same bytes: archives have one time (`SOURCE_DATE_EPOCH`, or that of the
//! commit) and a fixed order, and the program contains no path of this machine. Files for one
//! processor are made first. Files that name all processors are made from them (`--finish`). Start at
//! [`make`].

mod archive;
mod checksum;
mod installers;
mod language_packages;
mod program;
mod release_content;
mod sbom;
mod system_packages;
mod target;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::checksum::sha256_hex;
use self::installers::ReleaseArchive;
use self::release_content::ReleaseContent;
pub(crate) use self::target::DistTarget;
use crate::inside;
use crate::shell::workspace_root;

/// Version of the program, the packages and this crate.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// List of the checksums of all files.
const CHECKSUMS: &str = "SHA256SUMS";

/// Arguments of `dist`.
#[derive(Args)]
pub(crate) struct DistArgs {
    /// Folder for the files
    #[arg(long, default_value = "target/dist-files")]
    out: PathBuf,
    /// Package this program instead of building one; its size and kind are not checked
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Only write install.sh, heeler.rb, npm's main package and SHA256SUMS for the archives in the
    /// folder
    #[arg(long, conflicts_with = "binary")]
    finish: bool,
}

/// Makes the files of a release.
pub(crate) fn make(args: &DistArgs) -> Result<()> {
    std::fs::create_dir_all(&args.out)?;
    let time = release_time()?;
    if !args.finish {
        remove_files(&args.out)?;
        let content = content(args, time)?;
        write_files(&args.out, &target_files(&content)?)?;
    }
    write_files(&args.out, &common_files(&args.out, time)?)?;
    let sums = checksum_list(&args.out)?;
    write_files(&args.out, &[(CHECKSUMS.to_owned(), sums.clone().into_bytes())])?;
    print!("{sums}");
    eprintln!("dist: the files are in {}", args.out.display());
    Ok(())
}

/// A file of a release, by name.
type ReleaseFile = (String, Vec<u8>);

/// Builds the programs, and collects what the packages have in common.
fn content(args: &DistArgs, time: u64) -> Result<ReleaseContent> {
    let target = DistTarget::find(std::env::consts::ARCH)?;
    inside::build_static_program()?;
    let inside = inside::target_folder()?.join("dist").join(inside::STATIC_PROGRAM);
    let program = match &args.binary {
        Some(program) => program.clone(),
        None => {
            let program = program::build_program(target)?;
            program::check_program(&program, VERSION)?;
            program
        }
    };
    let read = |path: &Path| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(ReleaseContent {
        version: VERSION.to_owned(),
        target,
        time,
        shared: release_content::shared_files(&program)?,
        program: read(&program)?,
        inside: read(&inside)?,
        documents: release_content::documents()?,
        unit: read(&workspace_root()?.join("packaging/heeler.service"))?,
        sbom: sbom::sbom(target, VERSION, &time_text(time))?,
    })
}

/// Returns the files for one processor.
fn target_files(content: &ReleaseContent) -> Result<Vec<ReleaseFile>> {
    let ReleaseContent { version, target, .. } = content;
    let name = target.archive_name(version);
    Ok(vec![
        (format!("{name}.tar.gz"), system_packages::archive(content)?),
        (format!("{name}.spdx.json"), content.sbom.clone()),
        (format!("{name}.oci.tar"), system_packages::container_image(content)?),
        (
            format!("heeler_{version}_{}.deb", target.debian),
            system_packages::debian_package(content)?,
        ),
        (
            format!("heeler-linux-{}-{version}.tgz", target.node),
            language_packages::npm_platform(content)?,
        ),
        (language_packages::wheel_name(version, *target), language_packages::wheel(content)?),
    ])
}

/// Returns the files that name the archives in a folder.
fn common_files(folder: &Path, time: u64) -> Result<Vec<ReleaseFile>> {
    let mut archives = Vec::new();
    for target in target::TARGETS {
        let file = folder.join(format!("{}.tar.gz", target.archive_name(VERSION)));
        if let Ok(bytes) = std::fs::read(&file) {
            archives.push(ReleaseArchive { target, sha256: sha256_hex(&bytes) });
        }
    }
    ensure!(!archives.is_empty(), "{} has no archive of {VERSION}", folder.display());
    let documents = release_content::documents()?;
    Ok(vec![
        ("install.sh".to_owned(), installers::install_script(VERSION, &archives)?.into_bytes()),
        ("heeler.rb".to_owned(), installers::homebrew_formula(VERSION, &archives).into_bytes()),
        (format!("heeler-{VERSION}.tgz"), language_packages::npm_main(VERSION, &documents, time)?),
    ])
}

/// Lists the checksums of all files in a folder, as `sha256sum` does.
fn checksum_list(folder: &Path) -> Result<String> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file name is not text")?;
        if name != CHECKSUMS {
            lines.push(format!("{}  {name}\n", sha256_hex(&std::fs::read(entry.path())?)));
        }
    }
    lines.sort_by(|one, other| one[64..].cmp(&other[64..]));
    Ok(lines.concat())
}

fn write_files(folder: &Path, files: &[ReleaseFile]) -> Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Removes files of an earlier release, which would be listed and published with this one.
fn remove_files(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            name.starts_with("heeler") || name == "install.sh" || name == CHECKSUMS
        });
        ensure!(is_ours, "{} is no file of a release: choose another folder", path.display());
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// Returns the time of all entries: `SOURCE_DATE_EPOCH`, or that of the commit.
fn release_time() -> Result<u64> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return time.parse().context("SOURCE_DATE_EPOCH is no number of seconds");
    }
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().context("git knows no commit: set SOURCE_DATE_EPOCH")
}

/// Writes a time as RFC 3339 does.
fn time_text(time: u64) -> String {
    let time = i64::try_from(time).ok().and_then(|time| jiff::Timestamp::from_second(time).ok());
    time.unwrap_or_default().to_string()
}
