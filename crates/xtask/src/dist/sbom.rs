//! The list of a program's libraries in the format SPDX 2.3, from cargo's own record of the build.
//! Start at [`sbom`].

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::target::DistTarget;

/// Returns the document for the program `heeler` of a target.
pub(crate) fn sbom(target: DistTarget, version: &str, created: &str) -> Result<Vec<u8>> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", &target.triple()])
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let checksums = checksums(&std::fs::read_to_string("Cargo.lock")?);
    document(&metadata, &checksums, target, version, created)
}

/// Builds the document from cargo's metadata.
fn document(
    metadata: &Value,
    checksums: &BTreeMap<String, String>,
    target: DistTarget,
    version: &str,
    created: &str,
) -> Result<Vec<u8>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let edges: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), linked(node)))
        .collect();
    let root = packages.iter().find(|(_, package)| package["name"] == "heeler");
    let (root, _) = root.context("cargo lists no package `heeler`")?;
    let mut reached = BTreeSet::new();
    let mut open = vec![root.clone()];
    while let Some(id) = open.pop() {
        if reached.insert(id.clone()) {
            open.extend(edges.get(&id).cloned().unwrap_or_default());
        }
    }
    let name = |id: &String| packages.get(id).map(spdx_id).context("cargo lists no such package");
    let mut described = Vec::new();
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", &name(root)?)];
    for id in &reached {
        let package = packages.get(id).context("cargo lists no such package")?;
        described.push(describe(package, checksums));
        for other in edges.get(id).into_iter().flatten() {
            relations.push(relation(&spdx_id(package), "DEPENDS_ON", &name(other)?));
        }
    }
    // Ids of cargo contain the folder of the workspace, so their order is not that of names.
    described.sort_by_key(|package| text(&package["SPDXID"]));
    relations.sort_by_key(Value::to_string);
    relations.dedup();
    let title = target.archive_name(version);
    let document = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": title,
        "documentNamespace": format!("https://github.com/heeler/heeler/releases/v{version}/{title}"),
        "creationInfo": { "created": created, "creators": ["Tool: heeler-xtask"] },
        "packages": described,
        "relationships": relations,
    });
    let mut bytes = serde_json::to_vec_pretty(&document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Returns the packages that a package is linked with: no build scripts, no tests.
fn linked(node: &Value) -> Vec<String> {
    let is_linked = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    };
    let dependencies = node["deps"].as_array().into_iter().flatten();
    dependencies.filter(is_linked).map(|dependency| text(&dependency["pkg"])).collect()
}

fn describe(package: &Value, checksums: &BTreeMap<String, String>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let licence = package["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR ");
    let is_ours = package["source"].is_null();
    let mut described = json!({
        "SPDXID": spdx_id(package),
        "name": name,
        "versionInfo": version,
        "downloadLocation": match is_ours {
            true => "https://github.com/heeler/heeler".to_owned(),
            false => format!("https://crates.io/api/v1/crates/{name}/{version}/download"),
        },
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    });
    if let Some(checksum) = checksums.get(&format!("{name} {version}")) {
        described["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": checksum }]);
    }
    if !is_ours {
        described["externalRefs"] = json!([{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": format!("pkg:cargo/{name}@{version}"),
        }]);
    }
    described
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to })
}

/// SPDX allows letters, digits, dots and hyphens.
fn spdx_id(package: &Value) -> String {
    let name = format!("{}-{}", text(&package["name"]), text(&package["version"]));
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    format!("SPDXRef-{}", name.chars().map(allowed).collect::<String>())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Reads the checksums of Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")))?;
        Some(line.trim_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    let found = blocks.filter_map(|block| {
        let (name, version) = (value(block, "name")?, value(block, "version")?);
        Some((format!("{name} {version}"), value(block, "checksum")?))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata of `heeler` with a library, a library of its build script, and one of that.
    fn metadata() -> Value {
        let package = |name: &str, source: Value| json!({ "id": format!("id {name}"), "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source });
        let edge = |name: &str, kind: Value| json!({ "pkg": format!("id {name}"), "dep_kinds": [{ "kind": kind }] });
        let registry = || json!("registry+https://example.com");
        json!({
            "packages": [package("heeler", Value::Null), package("a_b", registry()), package("cc", registry()), package("unused", registry())],
            "resolve": { "nodes": [
                { "id": "id heeler", "deps": [edge("a_b", Value::Null), edge("cc", json!("build"))] },
                { "id": "id a_b", "deps": [] },
                { "id": "id cc", "deps": [edge("unused", Value::Null)] },
            ] },
        })
    }

    #[test]
    fn the_list_has_what_is_linked_and_nothing_else() {
        let lock = "[[package]]\nname = \"a_b\"\nversion = \"1.0.0\"\nchecksum = \"0123\"\n";
        let target = DistTarget::find("x86_64").unwrap();
        let bytes =
            document(&metadata(), &checksums(lock), target, "9.9.9", "2026-01-01T00:00:00Z")
                .unwrap();
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        let names: Vec<_> =
            list["packages"].as_array().unwrap().iter().map(|it| text(&it["name"])).collect();
        assert_eq!(names, ["a_b", "heeler"]);
        let library = &list["packages"][0];
        assert_eq!(library["SPDXID"], "SPDXRef-a-b-1.0.0");
        assert_eq!(library["checksums"][0]["checksumValue"], "0123");
        assert_eq!(library["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(library["externalRefs"][0]["referenceLocator"], "pkg:cargo/a_b@1.0.0");
        assert_eq!(list["relationships"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_library_that_cargo_does_not_describe_is_an_error() {
        let mut metadata = metadata();
        metadata["packages"].as_array_mut().unwrap().remove(1);
        let target = DistTarget::find("x86_64").unwrap();
        assert!(document(&metadata, &BTreeMap::new(), target, "1.0.0", "").is_err());
    }
}
