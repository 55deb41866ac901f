//! All files of a fleet's workflow folder: workflows, and what starts them by the clock.

use std::collections::HashMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value as Json};

use super::inputs;
use super::keys::{self, CronKeys};
use super::parse::{Known, LoadedWorkflow, Loader, WorkflowSettings};
use crate::Name;
use crate::config::inert;
use crate::config::reader::{Pos, did_you_mean};
use crate::config::value::{At, Value as _};
use crate::config::yaml::{Kind, Node};
use crate::config::{Agent, CronExpr, Faults, ReadFile, Severity, Zone};

/// The most files in a fleet's workflow folder.
pub const WORKFLOW_FILES_MAX: usize = 1000;

/// What a fleet's workflow folder holds.
#[derive(Debug, Clone, Default)]
pub struct Workflows {
    /// The workflows.
    pub workflows: Vec<Arc<LoadedWorkflow>>,
    /// What starts them by the clock.
    pub crons: Vec<Cron>,
    /// Files of which nothing counts, because there is a fault in them.
    pub faulty: Vec<FaultyFile>,
    /// Every file that was read.
    pub files: Vec<Utf8PathBuf>,
    /// What works, but not as its author may think.
    pub warnings: Faults,
}

impl Workflows {
    /// Returns them if no file has a fault.
    pub fn whole(self) -> Result<Workflows, Faults> {
        match self.faulty.is_empty() {
            true => Ok(self),
            false => Err(FaultyFile::faults_of(self.faulty, self.warnings)),
        }
    }
}

/// A file of a workflow folder that has a fault.
#[derive(Debug, Clone)]
pub struct FaultyFile {
    /// The file.
    pub file: Utf8PathBuf,
    /// The name that it gives itself, if that can be read.
    pub name: Option<String>,
    /// Whether it starts a workflow by the clock, and is none.
    pub is_cron: bool,
    /// What is wrong with it.
    pub faults: Faults,
}

impl FaultyFile {
    /// Returns what people know it by: its name, or that of its file.
    pub fn label(&self) -> &str {
        self.name.as_deref().or(self.file.file_stem()).unwrap_or(self.file.as_str())
    }

    /// Returns its kind and name: `workflow build`, `cron nightly`.
    pub fn title(&self) -> String {
        let kind = if self.is_cron { "cron" } else { "workflow" };
        format!("{kind} {}", self.label())
    }

    /// Says whether it may be meant by a name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name) || self.file.file_stem() == Some(name)
    }

    /// Says in one line that it has a fault, and where. Files below `base` are named relative to it.
    pub fn told(&self, base: &Utf8Path) -> String {
        let mut errors = self.faults.list.iter().filter(|it| it.severity == Severity::Error);
        let first = errors.next().map(|fault| format!(": {}", fault.brief(base)));
        let first = first.unwrap_or_default();
        let more = match errors.count() + self.faults.dropped {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        format!("{} cannot run{first}{more}", self.title())
    }

    /// Returns all that is wrong, with what else there is to say.
    pub(crate) fn faults_of(all: Vec<FaultyFile>, warnings: Faults) -> Faults {
        Faults::together(all.into_iter().map(|it| it.faults).chain([warnings]))
    }
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

/// Reads the files of a workflow folder. One with a fault does not count; all others do.
pub fn load_all(
    paths: &[Utf8PathBuf],
    read: &ReadFile<'_>,
    agents: &[Agent],
    settings: &WorkflowSettings,
) -> Workflows {
    let fleet = Known { agents, settings, is_frozen: false };
    let mut folder = Folder::default();
    let mut crons: Vec<(Loader<'_>, Node)> = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let mut loader = Loader::new(path, read, fleet);
        let tree = loader.root();
        match tree {
            _ if number == WORKFLOW_FILES_MAX => {
                let message = format!("there are more than {WORKFLOW_FILES_MAX} workflow files");
                let fault = loader.reader.error(Pos { file: 1, start: 0, end: 0 }, message);
                fault.expected("this one and those behind it are not read");
                folder.refuse(loader, None, false);
                break;
            }
            Some(tree) if is_cron(&tree) => crons.push((loader, tree)),
            tree => folder.add_workflow(loader, tree.as_ref()),
        }
    }
    folder.drop_twins();
    for (loader, tree) in crons {
        folder.add_cron(loader, &tree);
    }
    folder.drop_twins();
    let Folder { mut all, warnings, .. } = folder;
    all.files.sort();
    all.files.dedup();
    all.warnings = Faults::together(warnings);
    all
}

/// A folder on its way.
#[derive(Default)]
struct Folder {
    all: Workflows,
    warnings: Vec<Faults>,
    /// The files of workflows and crons, by their names.
    names: HashMap<(&'static str, String), Utf8PathBuf>,
}

impl Folder {
    fn add_workflow(&mut self, mut loader: Loader<'_>, tree: Option<&Node>) {
        let workflow = tree.and_then(|tree| loader.workflow(tree));
        self.refuse_twin(&mut loader, "workflow", tree);
        let Some(workflow) = workflow.filter(|_| loader.reader.errors_seen() == 0) else {
            return self.refuse(loader, tree, false);
        };
        let loaded = loader.finish(workflow);
        self.warnings.push(loaded.warnings.clone());
        self.all.files.extend(loaded.files.keys().cloned());
        self.all.workflows.push(Arc::new(loaded));
    }

    fn add_cron(&mut self, mut loader: Loader<'_>, tree: &Node) {
        inert::warn_workflow(tree, keys::INERT_CRON, &mut loader.reader);
        let keys = CronKeys::read(tree, &mut loader.reader);
        self.refuse_twin(&mut loader, "cron", Some(tree));
        let cron = keys.and_then(|keys| loader.cron(keys, &self.all));
        if loader.reader.errors_seen() > 0 {
            return self.refuse(loader, Some(tree), true);
        }
        self.all.crons.extend(cron);
        self.all.files.push(loader.root_path().to_owned());
        self.warnings.push(loader.reader.finish().0);
    }

    fn refuse(&mut self, loader: Loader<'_>, tree: Option<&Node>, is_cron: bool) {
        let name = tree.and_then(said_name);
        let (file, read, faults) = loader.give_up();
        self.all.files.extend(read);
        self.all.faulty.push(FaultyFile { file, name, is_cron, faults });
    }

    /// Refuses a name that another file has, be it with faults of its own.
    fn refuse_twin(&mut self, loader: &mut Loader<'_>, kind: &'static str, tree: Option<&Node>) {
        let Some((tree, name)) = tree.and_then(|tree| Some((tree, said_name(tree)?))) else {
            return;
        };
        let message = format!("there are two {kind}s `{name}`");
        if let Some(other) = self.names.insert((kind, name), loader.root_path().to_owned()) {
            let at = tree.get("name").map_or(tree.at, |name| name.at);
            loader.reader.error(at, message).expected(format!("it is also in {other}"));
        }
    }

    /// Takes away what another file has the name of: nobody could say which is meant.
    fn drop_twins(&mut self) {
        let Workflows { workflows, crons, faulty, .. } = &mut self.all;
        let is_twin = |name: &Name, is_cron: bool| {
            let is_it = |it: &FaultyFile| it.name.as_deref() == Some(name.as_str());
            faulty.iter().any(|it| it.is_cron == is_cron && is_it(it))
        };
        workflows.retain(|it| !is_twin(&it.workflow.name, false));
        crons.retain(|it| !is_twin(&it.name, true));
    }
}

/// Returns the name that a file gives itself.
fn said_name(tree: &Node) -> Option<String> {
    match &tree.get("name")?.kind {
        Kind::Scalar(scalar) => Some(scalar.text.clone()),
        _ => None,
    }
}

fn is_cron(tree: &Node) -> bool {
    let kind = tree.get("kind").map(|kind| &kind.kind);
    matches!(kind, Some(Kind::Scalar(scalar)) if scalar.text == "cron")
}

impl Loader<'_> {
    fn cron(&mut self, keys: CronKeys, all: &Workflows) -> Option<Cron> {
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
        let context: Map<String, Json> = keys.context.value.into_iter().collect();
        let found = all.workflows.iter().find(|it| it.workflow.name == workflow.value);
        let context = match found {
            Some(found) => self.inputs_of(found, context, keys.context.at)?,
            None => return self.unknown_workflow(workflow, all),
        };
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

    fn unknown_workflow(&mut self, written: &At<Name>, all: &Workflows) -> Option<Cron> {
        let name = written.value.as_str();
        let faulty = all.faulty.iter().find(|it| !it.is_cron && it.is_called(name));
        if let Some(faulty) = faulty {
            let message = format!("the workflow `{name}` has faults itself");
            let fault = self.reader.error(written.at, message);
            fault.expected("it is not started").help(format!("correct {}", faulty.file));
            return None;
        }
        let near = did_you_mean(name, all.workflows.iter().map(|it| it.workflow.name.as_str()));
        let message = format!("there is no workflow `{name}`");
        let fault = self.reader.error(written.at, message);
        fault.expected("expected the name of a workflow");
        if let Some(near) = near {
            fault.help(format!("did you mean `{near}`?"));
        }
        None
    }
}
