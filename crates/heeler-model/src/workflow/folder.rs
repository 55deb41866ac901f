//! All files of a fleet's workflow folder: workflows, and what starts them by the clock.

use std::collections::HashMap;
use std::sync::Arc;

use camino::Utf8PathBuf;
use serde_json::{Map, Value as Json};

use super::inputs;
use super::keys::{self, CronKeys};
use super::parse::{Known, LoadedWorkflow, Loader, WorkflowSettings};
use crate::Name;
use crate::config::inert;
use crate::config::reader::{Pos, did_you_mean};
use crate::config::value::{At, Value as _};
use crate::config::yaml::{Kind, Node};
use crate::config::{Agent, CronExpr, Faults, ReadFile, Zone};

/// The most files in a fleet's workflow folder.
pub const WORKFLOW_FILES_MAX: usize = 1000;

/// What a fleet's workflow folder holds.
#[derive(Debug, Clone, Default)]
pub struct Workflows {
    /// The workflows.
    pub workflows: Vec<Arc<LoadedWorkflow>>,
    /// What starts them by the clock.
    pub crons: Vec<Cron>,
    /// Every file that was read.
    pub files: Vec<Utf8PathBuf>,
    /// What works, but not as its author may think.
    pub warnings: Faults,
}

/// A workflow that is started by the clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Cron {
    /// Its name.
    pub name: Name,
    /// Its file.
    pub file: Utf8PathBuf,
    /// When.
    pub schedule: CronExpr,
    /// The time zone of that; the fleet's if there is none.
    pub timezone: Option<Zone>,
    /// Which workflow.
    pub workflow: Name,
    /// What it is started with.
    pub context: Map<String, Json>,
    /// Whether it is.
    pub enabled: bool,
}

/// Reads the files of a workflow folder, all of them or none.
pub fn load_all(
    paths: &[Utf8PathBuf],
    read: &ReadFile<'_>,
    agents: &[Agent],
    settings: &WorkflowSettings,
) -> Result<Workflows, Faults> {
    let fleet = Known { agents, settings, takes_any_agent: false };
    let mut folder = Folder::default();
    let mut crons: Vec<(Loader<'_>, Node)> = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let mut loader = Loader::new(path, read, fleet);
        let tree = loader.root();
        match tree {
            _ if number == WORKFLOW_FILES_MAX => {
                let message = format!("there are more than {WORKFLOW_FILES_MAX} workflow files");
                loader.reader.error(Pos { file: 1, start: 0, end: 0 }, message);
                return Err(loader.reader.finish().0);
            }
            Some(tree) if is_cron(&tree) => crons.push((loader, tree)),
            tree => folder.add_workflow(loader, tree.as_ref()),
        }
    }
    // A workflow that has a fault is not among those that are known.
    let known = (!folder.refused).then(|| folder.all.workflows.clone());
    for (loader, tree) in crons {
        folder.add_cron(loader, &tree, known.as_deref());
    }
    let Folder { mut all, faults, refused, .. } = folder;
    all.files.sort();
    all.files.dedup();
    all.warnings = Faults::together(faults);
    match refused {
        true => Err(all.warnings),
        false => Ok(all),
    }
}

/// A folder on its way.
#[derive(Default)]
struct Folder {
    all: Workflows,
    faults: Vec<Faults>,
    /// The files of workflows and crons, by their names.
    names: HashMap<(&'static str, Name), Utf8PathBuf>,
    refused: bool,
}

impl Folder {
    fn add_workflow(&mut self, mut loader: Loader<'_>, tree: Option<&Node>) {
        let workflow = tree.and_then(|tree| loader.workflow(tree));
        if let (Some(workflow), Some(tree)) = (&workflow, tree) {
            self.refuse_twin(&mut loader, ("workflow", workflow.name.clone()), tree);
        }
        match loader.finish(workflow) {
            Ok(loaded) => {
                self.faults.push(loaded.warnings.clone());
                self.all.files.extend(loaded.files.keys().cloned());
                self.all.workflows.push(Arc::new(loaded));
            }
            Err(faults) => {
                self.refused = true;
                self.faults.push(faults);
            }
        }
    }

    fn add_cron(
        &mut self,
        mut loader: Loader<'_>,
        tree: &Node,
        known: Option<&[Arc<LoadedWorkflow>]>,
    ) {
        inert::warn_workflow(tree, keys::INERT_CRON, &mut loader.reader);
        if let Some(keys) = CronKeys::read(tree, &mut loader.reader) {
            self.refuse_twin(&mut loader, ("cron", keys.name.value.clone()), tree);
            self.all.crons.extend(loader.cron(keys, known));
        }
        self.refused |= loader.reader.errors_seen() > 0;
        self.all.files.push(loader.root_path().to_owned());
        self.faults.push(loader.reader.finish().0);
    }

    fn refuse_twin(&mut self, loader: &mut Loader<'_>, key: (&'static str, Name), tree: &Node) {
        let message = format!("there are two {}s `{}`", key.0, key.1);
        if let Some(other) = self.names.insert(key, loader.root_path().to_owned()) {
            let at = tree.get("name").map_or(tree.at, |name| name.at);
            loader.reader.error(at, message).expected(format!("it is also in {other}"));
        }
    }
}

fn is_cron(tree: &Node) -> bool {
    let kind = tree.get("kind").map(|kind| &kind.kind);
    matches!(kind, Some(Kind::Scalar(scalar)) if scalar.text == "cron")
}

impl Loader<'_> {
    fn cron(&mut self, keys: CronKeys, known: Option<&[Arc<LoadedWorkflow>]>) -> Option<Cron> {
        let workflow = match (&keys.workflow, &keys.handler) {
            (Some(workflow), None) => workflow,
            // It says so in a warning.
            (None, Some(_)) => return None,
            (Some(_), Some(handler)) => {
                let message = "`workflow` and `handler` cannot both be said".to_owned();
                self.reader.error(handler.at, message).expected("remove this");
                return None;
            }
            (None, None) => {
                let message = "the key `workflow` is missing".to_owned();
                self.reader.error(keys.name.at, message).expected("`workflow` belongs here");
                return None;
            }
        };
        let mut context: Map<String, Json> = keys.context.value.into_iter().collect();
        if let Some(known) = known {
            let found = known.iter().find(|it| it.workflow.name == workflow.value);
            match found {
                Some(found) => context = self.inputs_of(found, context, keys.context.at)?,
                None => return self.unknown_workflow(workflow, known),
            }
        }
        Some(Cron {
            name: keys.name.value,
            file: self.root_path().to_owned(),
            schedule: keys.schedule,
            timezone: keys.timezone,
            workflow: workflow.value.clone(),
            context,
            enabled: keys.enabled,
        })
    }

    fn inputs_of(
        &mut self,
        loaded: &LoadedWorkflow,
        context: Map<String, Json>,
        at: Pos,
    ) -> Option<Map<String, Json>> {
        let refuse = |faults: inputs::InputFaults| {
            for fault in faults.0 {
                let expected = format!("what `{}` is started with", loaded.workflow.name);
                self.reader.error(at, fault).expected(expected);
            }
        };
        inputs::check(&loaded.workflow, context).map_err(refuse).ok()
    }

    fn unknown_workflow(&mut self, name: &At<Name>, known: &[Arc<LoadedWorkflow>]) -> Option<Cron> {
        let names = known.iter().map(|loaded| loaded.workflow.name.as_str());
        let near = did_you_mean(name.value.as_str(), names);
        let message = format!("there is no workflow `{}`", name.value);
        let fault = self.reader.error(name.at, message).expected("expected the name of a workflow");
        if let Some(near) = near {
            fault.help(format!("did you mean `{near}`?"));
        }
        None
    }
}
