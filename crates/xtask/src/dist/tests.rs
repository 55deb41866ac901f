//! Tests of the packages, with a stand-in for the program: a script that answers as it does.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use super::archive::{ArchiveEntry, zip_bytes};
use super::*;

const SCRIPT: &str = "#!/bin/sh\necho heeler 0.0.0\n";

fn stand_in() -> ReleaseContent {
    ReleaseContent {
        version: VERSION.to_owned(),
        target: DistTarget::find(std::env::consts::ARCH).unwrap(),
        time: 1_700_000_000,
        program: SCRIPT.as_bytes().to_vec(),
        inside: b"inside".to_vec(),
        shared: vec![
            ArchiveEntry::file("bash-completion/completions/heeler", 0o644, "complete"),
            ArchiveEntry::file("man/man1/heeler.1", 0o644, "page"),
        ],
        documents: release_content::documents().unwrap(),
        unit: b"unit".to_vec(),
        sbom: b"{}".to_vec(),
    }
}

/// Writes the files of the stand-in.
fn release() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &target_files(&stand_in()).unwrap()).unwrap();
    write_files(folder.path(), &common_files(folder.path(), 0).unwrap()).unwrap();
    folder
}

fn output(program: &str, args: &[&str], env: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").envs(env.iter().copied());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn the_same_content_gives_the_same_bytes() {
    let all = || -> BTreeMap<String, Vec<u8>> {
        target_files(&stand_in()).unwrap().into_iter().collect()
    };
    assert_eq!(all().len(), 6);
    assert!(all() == all());
    let sums = |folder: &Path| checksum_list(folder).unwrap();
    assert_eq!(sums(release().path()), sums(release().path()));
}

#[test]
fn an_image_names_its_blobs_by_their_checksums() {
    let image = system_packages::container_image(&stand_in()).unwrap();
    let mut archive = tar::Archive::new(image.as_slice());
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        files.insert(path, bytes);
    }
    let blob = |digest: &serde_json::Value| {
        let name = digest.as_str().unwrap().replace(':', "/");
        let bytes = &files[&format!("blobs/{name}")];
        assert_eq!(format!("sha256/{}", sha256_hex(bytes)), name);
        bytes.clone()
    };
    let read = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let index = read(&files["index.json"]);
    let manifest = read(&blob(&index["manifests"][0]["digest"]));
    let config = read(&blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["User"], "65532:65532");
    let layer = blob(&manifest["layers"][0]["digest"]);
    let mut tar = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(layer.as_slice()), &mut tar)
        .unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256_hex(&tar)));
    let mut layer = tar::Archive::new(tar.as_slice());
    let owners: BTreeMap<String, u64> = layer
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            (path, entry.header().uid().unwrap())
        })
        .collect();
    assert_eq!(owners["fleet/"], 65532, "the fleet's state is written there");
    assert_eq!(owners["usr/lib/heeler/heeler"], 0, "an agent cannot replace the program");
}

#[test]
fn a_zip_archive_refuses_what_is_no_file() {
    assert!(zip_bytes(&[ArchiveEntry::folder("a", 0o755, 0)]).is_err());
}

#[test]
fn files_of_other_programs_are_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.txt"), "").unwrap();
    assert!(remove_files(folder.path()).is_err());
    assert!(folder.path().join("thesis.txt").exists());
}

#[test]
fn the_install_script_installs_what_it_has_checked() {
    let (release, home) = (release(), tempfile::tempdir().unwrap());
    let script = release.path().join("install.sh");
    let url = format!("file://{}", release.path().display());
    let env = [("HEELER_DOWNLOAD_URL", url.as_str()), ("HOME", home.path().to_str().unwrap())];
    let (is_ok, text) = output("sh", &[script.to_str().unwrap()], &env);
    assert!(is_ok, "{text}");
    assert!(text.contains("/.local/bin is not in PATH"), "{text}");
    let program = home.path().join(".local/bin/heeler");
    assert_eq!(output(program.to_str().unwrap(), &[], &[]), (true, "heeler 0.0.0\n".to_owned()));
    let beside = std::fs::canonicalize(&program).unwrap().with_file_name("heeler-inside-static");
    assert_eq!(std::fs::metadata(beside).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(home.path().join(".local/share/man/man1/heeler.1").exists());
    // A second time, over the first.
    let (is_ok, text) = output("sh", &[script.to_str().unwrap()], &env);
    assert!(is_ok, "{text}");
    let left = std::fs::read_dir(home.path().join(".local/lib/heeler")).unwrap().count();
    assert_eq!(left, 2, "no part of the download is left");
}

#[test]
fn the_install_script_refuses_another_archive() {
    let (release, home) = (release(), tempfile::tempdir().unwrap());
    let archive = format!("{}.tar.gz", stand_in().target.archive_name(VERSION));
    let mut bytes = std::fs::read(release.path().join(&archive)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(release.path().join(&archive), bytes).unwrap();
    let script = release.path().join("install.sh");
    let url = format!("file://{}", release.path().display());
    let env = [("HEELER_DOWNLOAD_URL", url.as_str()), ("HOME", home.path().to_str().unwrap())];
    let (is_ok, text) = output("sh", &[script.to_str().unwrap()], &env);
    assert!(!is_ok);
    assert!(text.contains("nothing was installed"), "{text}");
    assert!(!home.path().join(".local/bin/heeler").exists());
    assert_eq!(std::fs::read_dir(home.path().join(".local/lib/heeler")).unwrap().count(), 0);
}

#[test]
fn the_install_script_names_a_processor_without_a_release() {
    let (release, folder) = (release(), tempfile::tempdir().unwrap());
    let uname = folder.path().join("uname");
    std::fs::write(&uname, "#!/bin/sh\n[ \"$1\" = -s ] && echo Linux || echo riscv64\n").unwrap();
    std::fs::set_permissions(&uname, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let home = folder.path().to_str().unwrap();
    let script = release.path().join("install.sh");
    let (is_ok, text) =
        output("sh", &[script.to_str().unwrap()], &[("PATH", &path), ("HOME", home)]);
    assert!(!is_ok);
    assert!(text.contains("there is no release for riscv64"), "{text}");
}

#[test]
fn a_release_needs_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let error = common_files(folder.path(), 0).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("has no archive")));
}

/// Name of the image, as docs/install.md copies from it.
const IMAGE: &str = "ghcr.io/heeler/heeler";

#[test]
fn the_release_workflow_may_write_to_each_registry_that_it_uses() {
    let root = workspace_root().unwrap();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let workflow = read(".github/workflows/release.yml");
    let (_, publish) = workflow.split_once("\n  publish:\n").unwrap();
    let (publish, _) = publish.split_once("\n  site:\n").unwrap();
    let at = |text: &str| publish.find(text).unwrap_or_else(|| panic!("no `{text}`"));
    // Without the file that this action writes, npm sends no token.
    assert!(at("registry-url: https://registry.npmjs.org") < at("npm publish"));
    assert!(at("heeler-linux-*.tgz") < at("heeler-[0-9]*.tgz"), "the main package comes last");
    assert!(read("docs/install.md").contains(&format!("--from={IMAGE}:VERSION")));
    assert!(publish.contains("packages: write") && publish.contains(&format!("image={IMAGE}\n")));
    assert!(at("docker login ghcr.io") < at("skopeo copy"));
    for target in target::TARGETS {
        assert!(publish.contains(target.processor), "{}", target.processor);
    }
    // A release that people see has all its packages.
    assert!(at("npm publish").max(at("twine upload")).max(at("imagetools")) < at("gh release"));
}
