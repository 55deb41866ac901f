//! Packages for package managers of languages: npm and PyPI. They hold the program itself, so
//! nothing is downloaded or executed while they are installed.

use anyhow::Result;
use serde_json::{Value, json};

use super::archive::{ArchiveEntry, gzip_bytes, tar_bytes, with_folders, zip_bytes};
use super::checksum::sha256_record;
use super::release_content::ReleaseContent;
use super::target::{DistTarget, TARGETS};

const DESCRIPTION: &str = "Run fleets of coding agents and never lose their work";
const HOMEPAGE: &str = "https://github.com/heeler/heeler";

/// Name of npm's package with the program of a target.
pub(crate) fn npm_platform_name(target: DistTarget) -> String {
    format!("@heeler/linux-{}", target.node)
}

/// Returns npm's package with the program. npm installs it only on its system and processor.
pub(crate) fn npm_platform(content: &ReleaseContent) -> Result<Vec<u8>> {
    let mut manifest = npm_manifest(&npm_platform_name(content.target), &content.version);
    manifest["os"] = json!(["linux"]);
    manifest["cpu"] = json!([content.target.node]);
    let mut entries = content.programs();
    entries = entries.into_iter().map(|entry| entry.below("bin")).collect();
    entries.extend(content.documents.iter().filter(|it| it.path != "CHANGELOG.md").cloned());
    entries.push(ArchiveEntry::file("heeler.spdx.json", 0o644, content.sbom.clone()));
    npm_archive(&manifest, entries, content.time)
}

/// Returns npm's package `heeler`: a script that starts the program of the package for this system.
pub(crate) fn npm_main(version: &str, documents: &[ArchiveEntry], time: u64) -> Result<Vec<u8>> {
    let mut manifest = npm_manifest("heeler", version);
    manifest["bin"] = json!({ "heeler": "bin/heeler.js" });
    manifest["engines"] = json!({ "node": ">=16" });
    let platforms = TARGETS.iter().map(|target| (npm_platform_name(*target), json!(version)));
    manifest["optionalDependencies"] = Value::Object(platforms.collect());
    let script = include_str!("../../../../packaging/npm-heeler.js");
    let mut entries = vec![ArchiveEntry::file("bin/heeler.js", 0o755, script)];
    entries.extend(documents.iter().filter(|it| it.path != "CHANGELOG.md").cloned());
    npm_archive(&manifest, entries, time)
}

fn npm_manifest(name: &str, version: &str) -> Value {
    json!({
        "name": name,
        "version": version,
        "description": DESCRIPTION,
        "license": "MIT OR Apache-2.0",
        "homepage": HOMEPAGE,
        "repository": { "type": "git", "url": format!("git+{HOMEPAGE}.git") },
    })
}

fn npm_archive(manifest: &Value, entries: Vec<ArchiveEntry>, time: u64) -> Result<Vec<u8>> {
    let mut entries = entries;
    let text = serde_json::to_string_pretty(manifest)? + "\n";
    entries.push(ArchiveEntry::file("package.json", 0o644, text));
    let entries = entries.into_iter().map(|entry| entry.below("package")).collect();
    gzip_bytes(&tar_bytes(&with_folders(entries), time)?)
}

/// File name of a wheel. The program is static, so every Linux has what it needs.
pub(crate) fn wheel_name(version: &str, target: DistTarget) -> String {
    format!("heeler-{version}-py3-none-{}.whl", wheel_platform(target))
}

fn wheel_platform(target: DistTarget) -> String {
    let processor = target.processor;
    format!("manylinux_2_17_{processor}.manylinux2014_{processor}.musllinux_1_1_{processor}")
}

/// Returns the wheel for PyPI. Installers put the programs into the folder of programs.
pub(crate) fn wheel(content: &ReleaseContent) -> Result<Vec<u8>> {
    let version = &content.version;
    let (data, info) = (format!("heeler-{version}.data"), format!("heeler-{version}.dist-info"));
    let mut entries: Vec<ArchiveEntry> =
        content.programs().into_iter().map(|it| it.below(&format!("{data}/scripts"))).collect();
    let readme = content.documents.iter().find(|it| it.path == "README.md");
    let readme = readme.map(|entry| match &entry.content {
        super::archive::EntryContent::File(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    });
    let metadata = format!(
        "Metadata-Version: 2.3\nName: heeler\nVersion: {version}\nSummary: {DESCRIPTION}\n\
         License: MIT OR Apache-2.0\nProject-URL: Homepage, {HOMEPAGE}\nRequires-Python: >=3.7\n\
         Description-Content-Type: text/markdown\n\n{}",
        readme.unwrap_or_default()
    );
    let tags = wheel_platform(content.target);
    let tags: String =
        tags.split('.').map(|platform| format!("Tag: py3-none-{platform}\n")).collect();
    let kind =
        format!("Wheel-Version: 1.0\nGenerator: heeler-xtask\nRoot-Is-Purelib: false\n{tags}");
    for document in content.documents.iter().filter(|it| it.path.starts_with("LICENSE")) {
        entries.push(document.clone().below(&format!("{info}/licenses")));
    }
    entries.push(ArchiveEntry::file(format!("{info}/METADATA"), 0o644, metadata));
    entries.push(ArchiveEntry::file(format!("{info}/WHEEL"), 0o644, kind));
    // The folder that the format has for lists of libraries.
    let sbom = ArchiveEntry::file("heeler.spdx.json", 0o644, content.sbom.clone());
    entries.push(sbom.below(&format!("{info}/sboms")));
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let mut record = String::new();
    for entry in &entries {
        if let super::archive::EntryContent::File(bytes) = &entry.content {
            record += &format!("{},{},{}\n", entry.path, sha256_record(bytes), bytes.len());
        }
    }
    record += &format!("{info}/RECORD,,\n");
    entries.push(ArchiveEntry::file(format!("{info}/RECORD"), 0o644, record));
    zip_bytes(&entries)
}
