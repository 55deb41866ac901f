//! Packages for a system: the archive, Debian's package, and the container image.

use anyhow::Result;
use serde_json::{Value, json};

use super::archive::{ArchiveEntry, ar_bytes, gzip_bytes, tar_bytes, with_folders};
use super::checksum::sha256_hex;
use super::release_content::ReleaseContent;

/// User of the container image; the number that distroless images use for `nonroot`.
const IMAGE_USER: u32 = 65532;

/// Returns the archive `.tar.gz`: a folder with the programs, `share/` and the documents.
pub(crate) fn archive(content: &ReleaseContent) -> Result<Vec<u8>> {
    let mut entries = content.programs();
    entries.extend(content.documents.iter().cloned());
    entries.extend(content.shared.iter().cloned().map(|entry| entry.below("share")));
    entries.push(ArchiveEntry::file("heeler.service", 0o644, content.unit.clone()));
    entries.push(ArchiveEntry::file("heeler.spdx.json", 0o644, content.sbom.clone()));
    let folder = content.target.archive_name(&content.version);
    let entries = entries.into_iter().map(|entry| entry.below(&folder)).collect();
    gzip_bytes(&tar_bytes(&with_folders(entries), content.time)?)
}

/// Files below `/usr`, for Debian and for the image. The programs are side by side in a folder of
/// their own; the link is resolved before the program looks for the other one.
fn system_files(content: &ReleaseContent) -> Vec<ArchiveEntry> {
    let mut entries: Vec<ArchiveEntry> = content.programs();
    entries = entries.into_iter().map(|entry| entry.below("usr/lib/heeler")).collect();
    entries.push(ArchiveEntry::link("usr/bin/heeler", "../lib/heeler/heeler"));
    entries
}

/// Returns Debian's package.
pub(crate) fn debian_package(content: &ReleaseContent) -> Result<Vec<u8>> {
    let mut entries = system_files(content);
    entries.extend(content.documents.iter().cloned().map(|it| it.below("usr/share/doc/heeler")));
    let copyright =
        b"Heeler is licensed under MIT or Apache-2.0: see LICENSE-MIT and LICENSE-APACHE.\n";
    entries.push(ArchiveEntry::file("usr/share/doc/heeler/copyright", 0o644, copyright.as_slice()));
    entries.push(ArchiveEntry::file(
        "usr/share/doc/heeler/heeler.spdx.json",
        0o644,
        content.sbom.clone(),
    ));
    entries.push(ArchiveEntry::file(
        "usr/share/doc/heeler/heeler.service",
        0o644,
        content.unit.clone(),
    ));
    for mut entry in content.shared.iter().cloned() {
        if let super::archive::EntryContent::File(bytes) = &mut entry.content
            && entry.path.starts_with("man/")
        {
            // Debian's tools expect compressed pages.
            *bytes = gzip_bytes(bytes)?;
            entry.path.push_str(".gz");
        }
        // Debian has a folder of its own for zsh.
        entry.path = entry.path.replace("zsh/site-functions", "zsh/vendor-completions");
        entries.push(entry.below("usr/share"));
    }
    let entries = with_folders(entries);
    let control = control_files(content, &entries);
    let data: Vec<ArchiveEntry> = entries.into_iter().map(|entry| entry.below(".")).collect();
    let packed = |entries: &[ArchiveEntry]| gzip_bytes(&tar_bytes(entries, content.time)?);
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", packed(&control)?),
        ("data.tar.gz", packed(&data)?),
    ];
    Ok(ar_bytes(&members, content.time))
}

fn control_files(content: &ReleaseContent, entries: &[ArchiveEntry]) -> Vec<ArchiveEntry> {
    let files = entries.iter().filter_map(|entry| match &entry.content {
        super::archive::EntryContent::File(bytes) => Some((entry, bytes)),
        _ => None,
    });
    let size: usize = files.map(|(_, bytes)| bytes.len().div_ceil(1024)).sum();
    let control = format!(
        "Package: heeler\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The Heeler developers <heeler@users.noreply.github.com>\n\
         Installed-Size: {size}\n\
         Recommends: bubblewrap, git\n\
         Section: devel\n\
         Priority: optional\n\
         Homepage: https://github.com/heeler/heeler\n\
         Description: Run fleets of coding agents and never lose their work\n \
         Heeler runs Claude Code and other programs on your repositories: on demand, on a\n \
         schedule, or as steps of a workflow that waits for approval.\n",
        content.version, content.target.debian
    );
    vec![ArchiveEntry::file("./control", 0o644, control)]
}

/// Returns the container image as a tar archive that has both the layout of OCI and the list that
/// `docker load` of older releases reads.
pub(crate) fn container_image(content: &ReleaseContent) -> Result<Vec<u8>> {
    let layer = tar_bytes(&image_files(content), content.time)?;
    let packed = gzip_bytes(&layer)?;
    let config = json_bytes(&image_config(content, &sha256_hex(&layer)))?;
    let describe = |kind: &str, bytes: &[u8]| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{}", sha256_hex(bytes)),
            "size": bytes.len(),
        })
    };
    let manifest = json_bytes(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": describe("config.v1+json", &config),
        "layers": [describe("layer.v1.tar+gzip", &packed)],
    }))?;
    let mut entry = describe("manifest.v1+json", &manifest);
    entry["annotations"] = json!({
        "io.containerd.image.name": format!("ghcr.io/heeler/heeler:{}", content.version),
        "org.opencontainers.image.ref.name": content.version,
    });
    entry["platform"] = json!({ "architecture": content.target.debian, "os": "linux" });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha256_hex(bytes));
    let list = json!([{
        "Config": blob(&config),
        "Layers": [blob(&packed)],
        "RepoTags": [format!("ghcr.io/heeler/heeler:{}", content.version)],
    }]);
    let mut files = vec![
        ArchiveEntry::file("oci-layout", 0o644, "{\"imageLayoutVersion\":\"1.0.0\"}"),
        ArchiveEntry::file("index.json", 0o644, json_bytes(&index)?),
        ArchiveEntry::file("manifest.json", 0o644, json_bytes(&list)?),
    ];
    for bytes in [manifest, config, packed] {
        files.push(ArchiveEntry::file(blob(&bytes), 0o644, bytes));
    }
    tar_bytes(&with_folders(files), content.time)
}

/// Files of the image: the programs, a user, and the folders that it may write.
fn image_files(content: &ReleaseContent) -> Vec<ArchiveEntry> {
    let user = format!(
        "root:x:0:0:root:/root:/sbin/nologin\n\
         heeler:x:{IMAGE_USER}:{IMAGE_USER}:heeler:/home/heeler:/sbin/nologin\n"
    );
    let mut entries = system_files(content);
    entries.extend([
        ArchiveEntry::file("etc/passwd", 0o644, user),
        ArchiveEntry::file("etc/group", 0o644, format!("root:x:0:\nheeler:x:{IMAGE_USER}:\n")),
        ArchiveEntry::folder("fleet", 0o755, IMAGE_USER),
        ArchiveEntry::folder("home", 0o755, 0),
        ArchiveEntry::folder("home/heeler", 0o700, IMAGE_USER),
        ArchiveEntry::folder("tmp", 0o1777, 0),
    ]);
    for document in content.documents.iter().filter(|it| it.path.starts_with("LICENSE")) {
        entries.push(document.clone().below("usr/share/doc/heeler"));
    }
    let sbom = ArchiveEntry::file("heeler.spdx.json", 0o644, content.sbom.clone());
    entries.push(sbom.below("usr/share/doc/heeler"));
    with_folders(entries)
}

fn image_config(content: &ReleaseContent, layer: &str) -> Value {
    let created = super::time_text(content.time);
    // Docker's names of a healthcheck; its times are in nanoseconds.
    let healthcheck = json!({
        "Test": ["CMD", "/usr/bin/heeler", "status", "--check"],
        "Interval": 30_000_000_000_u64,
        "Timeout": 10_000_000_000_u64,
        "StartPeriod": 10_000_000_000_u64,
        "Retries": 3,
    });
    json!({
        "created": created,
        "architecture": content.target.debian,
        "os": "linux",
        "config": {
            "User": format!("{IMAGE_USER}:{IMAGE_USER}"),
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "HOME=/home/heeler",
                "HEELER_TRUST=/fleet",
            ],
            "Entrypoint": ["/usr/bin/heeler"],
            "Cmd": ["start"],
            "WorkingDir": "/fleet",
            "Volumes": { "/fleet": {} },
            "Healthcheck": healthcheck,
            "Labels": {
                "org.opencontainers.image.title": "heeler",
                "org.opencontainers.image.version": content.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                "org.opencontainers.image.source": "https://github.com/heeler/heeler",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    })
}

fn json_bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}
