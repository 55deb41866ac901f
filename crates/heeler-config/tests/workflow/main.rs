//! Workflow files from text to checked types, as the binary sees them.
//!
//! Expected renderings are updated by `UPDATE_EXPECT=1 cargo test -p heeler-config --test workflow`
//! (in one process: nextest would write a file from several at once).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod cron;
mod faults;
mod freezing;
mod goldens;
mod graph;
mod inputs;
mod lastlight;
mod meaning;
mod needs;

use std::collections::BTreeMap;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use expect_test::Expect;
use heeler_config::workflow::{self, LoadedWorkflow, Workflow, WorkflowFolder, WorkflowSettings};
use heeler_config::{AgentConfig, ConfigFaults, RenderStyle};

/// Files by path; the first is the workflow's.
pub type Files<'a> = &'a [(&'a str, &'a str)];

/// The agents `coder`, `tester` and `web.coder`.
pub fn agents() -> Vec<AgentConfig> {
    let fleet = "agents: [{name: coder, runtime: command, command: 'true'}, \
        {name: tester, runtime: command, command: 'true'}]\nfleets: [{path: web.yaml, name: web}]";
    let web = "agents: [{name: painter, runtime: command, command: 'true'}]";
    let read = |path: &Utf8Path| match path.file_name() {
        Some("heeler.yaml") => Ok(fleet.to_owned()),
        _ => Ok(web.to_owned()),
    };
    heeler_config::load("/fleet/heeler.yaml".into(), &read, &BTreeMap::new()).unwrap().agents
}

/// What the fleet file says of workflows: nothing.
pub fn settings() -> WorkflowSettings {
    WorkflowSettings { folder: "/fleet/workflows".into(), ..WorkflowSettings::default() }
}

fn path(name: &str) -> Utf8PathBuf {
    Utf8Path::new("/fleet/workflows").join(name)
}

/// Loads files that live in memory.
pub fn load_with(
    files: Files<'_>,
    settings: &WorkflowSettings,
) -> Result<LoadedWorkflow, ConfigFaults> {
    let read = |path: &Utf8Path| read(files, path);
    let list = |folder: &Utf8Path| list(files, folder);
    workflow::load_workflow(&path(files[0].0), (&read, &list), &agents(), settings)
}

fn read(files: Files<'_>, wanted: &Utf8Path) -> io::Result<String> {
    let found = files.iter().find(|(name, _)| path(name) == wanted);
    found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn list(files: Files<'_>, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    files.iter().map(|(name, _)| path(name)).filter(|path| path.starts_with(folder)).collect()
}

/// Loads all files as a folder, if none has a fault.
pub fn load_folder(files: Files<'_>) -> Result<WorkflowFolder, ConfigFaults> {
    load_any(files).into_result()
}

/// Loads all files as a folder; those that are no YAML are read when they are named.
pub fn load_any(files: Files<'_>) -> WorkflowFolder {
    load_any_with(files, &agents(), &settings())
}

/// Loads all files as a folder of a fleet with these agents and settings.
pub fn load_any_with(
    files: Files<'_>,
    agents: &[AgentConfig],
    settings: &WorkflowSettings,
) -> WorkflowFolder {
    let names = files.iter().map(|(name, _)| path(name));
    let yaml: Vec<Utf8PathBuf> = names.filter(|name| name.extension() == Some("yaml")).collect();
    let read = |path: &Utf8Path| read(files, path);
    let list = |folder: &Utf8Path| list(files, folder);
    workflow::load_workflow_folder(&yaml, (&read, &list), agents, settings)
}

/// Loads a workflow by the lines of its phases; `coder` does it.
#[track_caller]
pub fn phases(lines: &str) -> Workflow {
    let text = format!("name: w\nagent: coder\nphases:\n{lines}");
    load_with(&[("w.yaml", &text)], &settings()).unwrap().workflow
}

/// Renders faults or warnings, or `ok`.
pub fn render(faults: &ConfigFaults) -> String {
    match faults.is_empty() {
        true => "ok\n".to_owned(),
        false => {
            format!("{}\n", faults.render(RenderStyle::Plain, Utf8Path::new("/fleet/workflows")))
        }
    }
}

/// Checks what is said about a workflow.
#[track_caller]
pub fn check_files(files: Files<'_>, expect: Expect) {
    let said = match load_with(files, &settings()) {
        Ok(loaded) => render(&loaded.warnings),
        Err(faults) => render(&faults),
    };
    expect.assert_eq(&said);
}

/// Checks what is said about a workflow file.
#[track_caller]
pub fn check(yaml: &str, expect: Expect) {
    check_files(&[("w.yaml", yaml)], expect);
}

/// Checks what is said about the phases of a workflow that `coder` does.
#[track_caller]
pub fn check_phases(lines: &str, expect: Expect) {
    check(&format!("name: w\nagent: coder\nphases:\n{lines}"), expect);
}
