//! All files of a fleet's workflow folder: workflows, and what starts them by the clock.

use std::collections::HashMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value as Json};

use super::inputs;
use super::keys::{self, CronKeys};
use super::parse::{Known, LoadedWorkflow, Loader, WorkflowSettings, together};
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
    let mut all = Workflows::default();
    let mut faults: Vec<Faults> = Vec::new();
    let mut crons: Vec<(Loader<'_>, Node, CronKeys)> = Vec::new();
    let mut names: HashMap<String, Utf8PathBuf> = HashMap::new();
    let mut refused = false;
    for path in paths.iter().take(WORKFLOW_FILES_MAX + 1) {
        let mut loader = Loader::new(path, read, fleet);
        let tree = loader.root();
        if paths.len() > WORKFLOW_FILES_MAX {
            let message = format!("there are more than {WORKFLOW_FILES_MAX} workflow files");
            loader.reader.error(Pos { file: 1, start: 0, end: 0 }, message);
            return Err(loader.reader.finish().0);
        }
        if let Some(tree) = tree.as_ref().filter(|tree| is_cron(tree)) {
            inert::warn_workflow(tree, keys::INERT_CRON, &mut loader.reader);
            match CronKeys::read(tree, &mut loader.reader) {
                Some(keys) => crons.push((loader, tree.clone(), keys)),
                None => {
                    refused = true;
                    faults.push(loader.reader.finish().0);
                }
            }
            continue;
        }
        let workflow = tree.as_ref().and_then(|tree| loader.workflow(tree));
        if let (Some(workflow), Some(tree)) = (&workflow, &tree) {
            let key = format!("workflow {}", workflow.name);
            loader.refuse_twin(&mut names, key, tree, path);
        }
        match loader.finish(workflow) {
            Ok(loaded) => {
                faults.push(loaded.warnings.clone());
                all.files.extend(loaded.files.keys().cloned());
                all.workflows.push(Arc::new(loaded));
            }
            Err(wrong) => {
                refused = true;
                faults.push(wrong);
            }
        }
    }
    for (mut loader, tree, keys) in crons {
        let path = loader.root_path().to_owned();
        loader.refuse_twin(&mut names, format!("cron {}", keys.name.value), &tree, &path);
        // A workflow that has a fault is not among those that are known.
        let cron = loader.cron(keys, (!refused).then_some(&all.workflows));
        refused |= loader.reader.errors_seen() > 0;
        all.files.push(path);
        all.crons.extend(cron);
        faults.push(loader.reader.finish().0);
    }
    all.files.sort();
    all.files.dedup();
    all.warnings = together(faults);
    match refused {
        true => Err(all.warnings),
        false => Ok(all),
    }
}

fn is_cron(tree: &Node) -> bool {
    let kind = tree.get("kind").map(|kind| &kind.kind);
    matches!(kind, Some(Kind::Scalar(scalar)) if scalar.text == "cron")
}

impl Loader<'_> {
    fn refuse_twin(
        &mut self,
        names: &mut HashMap<String, Utf8PathBuf>,
        key: String,
        tree: &Node,
        path: &Utf8Path,
    ) {
        if let Some(other) = names.insert(key.clone(), path.to_owned()) {
            let (kind, name) = key.split_once(' ').unwrap_or(("workflow", &key));
            let message = format!("there are two {kind}s `{name}`");
            let at = tree.get("name").map_or(tree.at, |name| name.at);
            self.reader.error(at, message).expected(format!("it is also in {other}"));
        }
    }

    fn cron(&mut self, keys: CronKeys, known: Option<&Vec<Arc<LoadedWorkflow>>>) -> Option<Cron> {
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
