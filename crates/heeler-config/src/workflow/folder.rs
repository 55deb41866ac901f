//! Files of a fleet's workflow directory: workflows, and crons that start them.
//!
//! Start at [`load_workflow_folder`].

use std::collections::HashMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value as Json};

use super::definition::Workflow;
use super::keys::CronKeys;
use super::parse::{FolderLister, LoadedWorkflow, WorkflowLoadContext, WorkflowLoader};
use super::settings::WorkflowSettings;
use crate::LocalName;
use crate::discovery::CronFanOut;
use crate::reader::SourceSpan;
use crate::text::did_you_mean;
use crate::value::{ConfigValue as _, SpannedValue};
use crate::yaml::{YamlKind, YamlNode};
use crate::{AgentConfig, ConfigFaults, ConfigTimeZone, CronExpr, FaultSeverity, FileReader};

/// Most files in a fleet's workflow directory.
pub const WORKFLOW_FILES_MAX: usize = 1000;

/// Content of a fleet's workflow directory.
#[derive(Debug, Clone, Default)]
pub struct WorkflowFolder {
    pub workflows: Vec<Arc<LoadedWorkflow>>,
    /// Crons that start workflows.
    pub crons: Vec<WorkflowCron>,
    /// Files that are ignored because they have an error.
    pub faulty_files: Vec<FaultyWorkflowFile>,
    /// All files that were read.
    pub files: Vec<Utf8PathBuf>,
    /// Warnings: legal content with a probably unintended effect.
    pub warnings: ConfigFaults,
}

impl WorkflowFolder {
    /// Returns the content, or all faults if any file has an error.
    pub fn into_result(self) -> Result<WorkflowFolder, ConfigFaults> {
        match self.faulty_files.is_empty() {
            true => Ok(self),
            false => Err(FaultyWorkflowFile::merge_faults(self.faulty_files, self.warnings)),
        }
    }
}

/// Workflow file with an error.
#[derive(Debug, Clone)]
pub struct FaultyWorkflowFile {
    pub file: Utf8PathBuf,
    /// Name in the file, if it can be read.
    pub name: Option<String>,
    /// True for a cron, false for a workflow.
    pub is_cron: bool,
    pub faults: ConfigFaults,
}

impl FaultyWorkflowFile {
    /// Returns the name in the file, or the file's own name.
    pub fn label(&self) -> &str {
        self.name.as_deref().or(self.file.file_stem()).unwrap_or(self.file.as_str())
    }

    /// Returns the kind and name: `workflow build`, `cron nightly`.
    pub fn title(&self) -> String {
        let kind = if self.is_cron { "cron" } else { "workflow" };
        format!("{kind} {}", self.label())
    }

    /// Returns true if a name may refer to this file.
    pub fn matches_name(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name) || self.file.file_stem() == Some(name)
    }

    /// Describes the first error in one line. Paths below `base` are shown relative to it.
    pub fn describe(&self, base: &Utf8Path) -> String {
        let mut errors = self.faults.list.iter().filter(|it| it.severity == FaultSeverity::Error);
        let first = errors.next().map(|fault| format!(": {}", fault.summary_line(base)));
        let first = first.unwrap_or_default();
        let more = match errors.count() + self.faults.dropped {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        format!("{} cannot run{first}{more}", self.title())
    }

    /// Merges the faults of several files with other warnings.
    pub(crate) fn merge_faults(
        all: Vec<FaultyWorkflowFile>,
        warnings: ConfigFaults,
    ) -> ConfigFaults {
        ConfigFaults::merge(all.into_iter().map(|it| it.faults).chain([warnings]))
    }
}

/// Cron schedule that starts a workflow.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowCron {
    pub name: LocalName,
    pub file: Utf8PathBuf,
    pub schedule: CronExpr,
    /// Time zone of the schedule. Defaults to the fleet's.
    pub timezone: Option<ConfigTimeZone>,
    pub workflow: LocalName,
    /// Inputs of the run.
    pub context: Map<String, Json>,
    /// Runs of one due time; `None` for a single one.
    pub fan_out: Option<CronFanOut>,
    /// Starts nothing while a webhook starts the same workflow.
    pub unless_webhooks: bool,
    pub enabled: bool,
}

/// Loads the files of a workflow directory. Files with an error are ignored; all others load. The
/// functions read a file, and list the files of a skill.
pub fn load_workflow_folder(
    paths: &[Utf8PathBuf],
    files: (&FileReader<'_>, &FolderLister<'_>),
    agents: &[AgentConfig],
    settings: &WorkflowSettings,
) -> WorkflowFolder {
    let fleet = WorkflowLoadContext { agents, settings, is_frozen: false };
    let mut folder = WorkflowFolderLoader::default();
    let mut crons: Vec<(WorkflowLoader<'_>, YamlNode)> = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let mut loader = WorkflowLoader::new(path, files, fleet);
        let tree = loader.load_root();
        match tree {
            // The first file beyond the limit carries the fault; the rest is not even read.
            _ if number == WORKFLOW_FILES_MAX => {
                let message = format!("there are more than {WORKFLOW_FILES_MAX} workflow files");
                let fault = loader.reader.error(SourceSpan { file: 1, start: 0, end: 0 }, message);
                fault.expected("this file and those after it are not read");
                folder.add_faulty(loader, None, false);
                break;
            }
            // Crons refer to workflows, so they wait until all of them are loaded.
            Some(tree) if is_cron(&tree) => crons.push((loader, tree)),
            tree => folder.add_workflow(loader, tree.as_ref()),
        }
    }
    // Before the crons: one that names an ambiguous workflow must not start either of them.
    folder.remove_duplicates();
    for (loader, tree) in crons {
        folder.add_cron(loader, &tree);
    }
    folder.remove_duplicates();
    let WorkflowFolderLoader { result: mut all, warnings, .. } = folder;
    all.files.sort();
    all.files.dedup();
    all.warnings = ConfigFaults::merge(warnings);
    all
}

/// Accumulates the content of a workflow directory.
#[derive(Default)]
struct WorkflowFolderLoader {
    result: WorkflowFolder,
    warnings: Vec<ConfigFaults>,
    /// Files of workflows and crons, by kind and name.
    names: HashMap<(&'static str, String), Utf8PathBuf>,
}

impl WorkflowFolderLoader {
    fn add_workflow(&mut self, mut loader: WorkflowLoader<'_>, tree: Option<&YamlNode>) {
        let workflow = tree.and_then(|tree| loader.build_workflow(tree));
        // Even for a file with faults, because its name would be ambiguous when it is corrected.
        self.reject_duplicate(&mut loader, "workflow", tree);
        if let (Some(tree), Some(workflow)) = (tree, &workflow) {
            self.reject_same_intent(&mut loader, tree, workflow);
        }
        let Some(workflow) = workflow.filter(|_| loader.reader.error_count() == 0) else {
            return self.add_faulty(loader, tree, false);
        };
        let loaded = loader.finish(workflow);
        self.warnings.push(loaded.warnings.clone());
        // All files count, also those of prompts: a change of any of them is a reload.
        self.result.files.extend(loaded.files.keys().cloned());
        self.result.workflows.push(Arc::new(loaded));
    }

    fn add_cron(&mut self, mut loader: WorkflowLoader<'_>, tree: &YamlNode) {
        let keys = CronKeys::read(tree, &mut loader.reader);
        self.reject_duplicate(&mut loader, "cron", Some(tree));
        let cron = keys.and_then(|keys| loader.build_cron(keys, &self.result));
        if loader.reader.error_count() > 0 {
            return self.add_faulty(loader, Some(tree), true);
        }
        self.result.crons.extend(cron);
        self.result.files.push(loader.root_path().to_owned());
        self.warnings.push(loader.reader.finish().0);
    }

    fn add_faulty(&mut self, loader: WorkflowLoader<'_>, tree: Option<&YamlNode>, is_cron: bool) {
        let name = tree.and_then(written_name);
        let (file, read, faults) = loader.into_faults();
        // Faulty files are watched too, so that their correction is noticed.
        self.result.files.extend(read);
        self.result.faulty_files.push(FaultyWorkflowFile { file, name, is_cron, faults });
    }

    /// Reports a name that another file already has, even if that file has errors.
    fn reject_duplicate(
        &mut self,
        loader: &mut WorkflowLoader<'_>,
        kind: &'static str,
        tree: Option<&YamlNode>,
    ) {
        let Some((tree, name)) = tree.and_then(|tree| Some((tree, written_name(tree)?))) else {
            return;
        };
        let message = format!("there are two {kind}s `{name}`");
        if let Some(other) = self.names.insert((kind, name), loader.root_path().to_owned()) {
            let at = tree.get("name").map_or(tree.at, |name| name.at);
            loader.reader.error(at, message).expected(format!("it is also in {other}"));
        }
    }

    /// Reports an intent that another workflow already has: a text would start either of them.
    fn reject_same_intent(
        &self,
        loader: &mut WorkflowLoader<'_>,
        tree: &YamlNode,
        workflow: &Workflow,
    ) {
        let has_it = |it: &&Arc<LoadedWorkflow>| it.workflow.intent == workflow.intent;
        let other = self.result.workflows.iter().find(has_it).filter(|_| workflow.intent.is_some());
        if let Some(other) = other {
            let at = tree.get("classification").map_or(tree.at, |it| it.at);
            let message = format!("the workflow `{}` has the same intent", other.workflow.name);
            loader.reader.error(at, message).expected("a text would start either of them");
        }
    }

    /// Removes entries that share a name with a faulty file: the name would be ambiguous.
    fn remove_duplicates(&mut self) {
        let WorkflowFolder { workflows, crons, faulty_files: faulty, .. } = &mut self.result;
        let is_twin = |name: &LocalName, is_cron: bool| {
            let is_it = |it: &FaultyWorkflowFile| it.name.as_deref() == Some(name.as_str());
            faulty.iter().any(|it| it.is_cron == is_cron && is_it(it))
        };
        workflows.retain(|it| !is_twin(&it.workflow.name, false));
        crons.retain(|it| !is_twin(&it.name, true));
    }
}

/// Returns the name written in a file.
fn written_name(tree: &YamlNode) -> Option<String> {
    match &tree.get("name")?.kind {
        YamlKind::Scalar(scalar) => Some(scalar.text.clone()),
        _ => None,
    }
}

fn is_cron(tree: &YamlNode) -> bool {
    let kind = tree.get("kind").map(|kind| &kind.kind);
    matches!(kind, Some(YamlKind::Scalar(scalar)) if scalar.text == "cron")
}

impl WorkflowLoader<'_> {
    fn build_cron(&mut self, keys: CronKeys, all: &WorkflowFolder) -> Option<WorkflowCron> {
        let workflow = match (&keys.workflow, &keys.handler) {
            (Some(workflow), None) => workflow,
            (None, Some(handler)) => {
                let message =
                    "`handler` is code of Last Light, which Heeler does not have".to_owned();
                let help =
                    "remove the file, or write a workflow for it and name that in `workflow`";
                self.reader.error(handler.at, message).expected("it cannot be run").help(help);
                return None;
            }
            (Some(_), Some(handler)) => {
                let message = "`workflow` and `handler` cannot both be set".to_owned();
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
        let fan_out = self.take_fan_out(keys.each_repo.as_ref(), &mut context, keys.context.at)?;
        let unless_webhooks = self.check_condition(keys.condition.as_ref())?;
        let found = all.workflows.iter().find(|it| it.workflow.name == workflow.value);
        // Inputs are checked now: a cron runs when nobody is there to read the error.
        let context = match found {
            Some(found) if fan_out.is_some() => {
                self.check_fan_out_inputs(found, &context, keys.context.at)?;
                context
            }
            Some(found) => self.check_cron_inputs(found, context, keys.context.at)?,
            None => return self.report_unknown_workflow(workflow, all),
        };
        Some(WorkflowCron {
            name: keys.name.value,
            file: self.root_path().to_owned(),
            schedule: keys.schedule,
            timezone: keys.timezone,
            workflow: workflow.value.clone(),
            context,
            fan_out,
            unless_webhooks,
            enabled: keys.enabled,
        })
    }

    fn report_unknown_workflow(
        &mut self,
        written: &SpannedValue<LocalName>,
        all: &WorkflowFolder,
    ) -> Option<WorkflowCron> {
        let name = written.value.as_str();
        // The reason is in the other file, so this message leads there.
        let faulty = all.faulty_files.iter().find(|it| !it.is_cron && it.matches_name(name));
        if let Some(faulty) = faulty {
            let message = format!("the workflow `{name}` has errors");
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
