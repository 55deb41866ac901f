//! `heeler workflow validate`: lists all faults of workflow files, with their positions. Start at
//! [`run`].

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_config::workflow::{
    FolderLister, WorkflowFolder, WorkflowSettings, load_workflow_folder,
};
use heeler_config::{AgentConfig, ConfigFaults, FaultSeverity, FileReader};
use heeler_engine::list_skill_files;
use serde_json::json;

use crate::commands::config::faults_json;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;
use crate::text_file;

/// Help footer of `workflow validate`.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow validate
  heeler workflow validate build
  heeler workflow validate drafts/new.yaml --json

Exit codes: 0 valid, 2 invalid, 4 no such workflow or file.";

/// Arguments of `workflow validate`.
#[derive(Args)]
pub(crate) struct WorkflowValidateArgs {
    /// Workflow names or files [default: all files of the workflow folder]
    #[arg(value_name = "NAME|FILE", add = shared_args::workflows())]
    which: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `workflow validate`.
pub(super) fn run(global: &GlobalArgs, args: &WorkflowValidateArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // The config itself must be valid: workflows are checked against its agents.
    let loaded = fleet_config::load_without_workflows(&context)?;
    let settings = loaded.fleets.first().map(|fleet| fleet.workflows.clone()).unwrap_or_default();
    let folder = heeler_engine::list_workflow_files(&settings.folder);
    let against =
        WorkflowFileChecker { context: &context, agents: &loaded.agents, settings, folder };
    let result = match args.which.is_empty() {
        true => against.check(&against.folder),
        false => against.check_some(&args.which)?,
    }
    .into_result();
    if args.json {
        print_json(&result)?;
        return result.map(drop).map_err(|_| CommandFailure::silent(FailureCode::Usage));
    }
    match result {
        Ok(all) => {
            fleet_config::print_faults(&context, &all.warnings)?;
            Ok(output::print_line(valid(&all))?)
        }
        Err(faults) => {
            fleet_config::print_faults(&context, &faults)?;
            Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
        }
    }
}

fn valid(all: &WorkflowFolder) -> String {
    let names = all.workflows.iter().map(|it| it.workflow.name.as_str());
    let crons = all.crons.iter().map(|cron| cron.name.as_str());
    let names: Vec<&str> = names.chain(crons).collect();
    let workflows = output::pluralize(all.workflows.len() as u64, "workflow");
    let crons = match all.crons.len() as u64 {
        0 => String::new(),
        count => format!(", {}", output::pluralize(count, "cron file")),
    };
    match names.is_empty() {
        true => "valid: no workflows yet".to_owned(),
        false => format!("valid: {workflows}{crons} ({})", names.join(", ")),
    }
}

fn print_json(result: &Result<WorkflowFolder, ConfigFaults>) -> CommandResult {
    let (faults, all) = match result {
        Ok(all) => (&all.warnings, Some(all)),
        Err(faults) => (faults, None),
    };
    let workflows = all.into_iter().flat_map(|all| &all.workflows);
    let crons = all.into_iter().flat_map(|all| &all.crons);
    Ok(output::print_json(&json!({
        "valid": result.is_ok(),
        "workflows": workflows.map(|it| it.workflow.name.as_str()).collect::<Vec<_>>(),
        "crons": crons.map(|it| it.name.as_str()).collect::<Vec<_>>(),
        "errors": faults_json(faults, FaultSeverity::Error),
        "warnings": faults_json(faults, FaultSeverity::Warning),
    }))?)
}

/// Checker of workflow files, with the agents and settings that they refer to.
struct WorkflowFileChecker<'a> {
    context: &'a CommandContext,
    agents: &'a [AgentConfig],
    settings: WorkflowSettings,
    folder: Vec<Utf8PathBuf>,
}

impl WorkflowFileChecker<'_> {
    fn check(&self, paths: &[Utf8PathBuf]) -> WorkflowFolder {
        let files: (&FileReader<'_>, &FolderLister<'_>) =
            (&text_file::read_text, &list_skill_files);
        load_workflow_folder(paths, files, self.agents, &self.settings)
    }

    /// Checks some files. A file of the workflow folder, or a cron file, is checked together with
    /// all files of the folder, because names may clash and a cron refers to a workflow.
    fn check_some(&self, which: &[String]) -> CommandResult<WorkflowFolder> {
        let mut all = WorkflowFolder::default();
        let mut warnings = Vec::new();
        for text in which {
            let path = self.file_of(text)?;
            let mut paths = vec![path.clone()];
            if self.folder.contains(&path) || is_cron(&path) {
                paths.extend(self.folder.iter().filter(|it| **it != path).cloned());
                // The order decides which of two clashing files is reported, as in the daemon.
                paths.sort();
            }
            let mut found = self.check(&paths);
            // The other files were only loaded for comparison.
            found.workflows.retain(|it| it.root == path);
            found.crons.retain(|it| it.file == path);
            found.faulty_files.retain(|it| it.file == path);
            let is_own = |file: &Utf8Path| {
                // Other files of a workflow, such as prompts, have warnings too.
                file == path || found.workflows.iter().any(|it| it.files.contains_key(file))
            };
            found.warnings.list.retain(|fault| is_own(fault.path()));
            warnings.push(found.warnings);
            all.workflows.extend(found.workflows);
            all.crons.extend(found.crons);
            all.faulty_files.extend(found.faulty_files);
        }
        all.warnings = ConfigFaults::merge(warnings);
        Ok(all)
    }

    /// Returns the file that `text` means: a path, or the file of the workflow with this name.
    fn file_of(&self, text: &str) -> CommandResult<Utf8PathBuf> {
        let is_path = text.contains('/') || text.ends_with(".yaml") || text.ends_with(".yml");
        if is_path {
            let path = self.context.working_dir.join(text);
            if !path.is_file() {
                return Err(CommandFailure::message(
                    FailureCode::NotFound,
                    format!("there is no file {path}"),
                ));
            }
            // Under another path, a file of the folder would clash with itself.
            let real = path.canonicalize_utf8().ok();
            let same =
                |known: &&Utf8PathBuf| real.is_some() && known.canonicalize_utf8().ok() == real;
            return Ok(self.folder.iter().find(same).cloned().unwrap_or(path));
        }
        let all = self.check(&self.folder);
        let good = all.workflows.iter().find(|it| it.workflow.name.as_str() == text);
        // An invalid file can still have a readable name.
        let faulty = || all.faulty_files.iter().find(|it| it.name.as_deref() == Some(text));
        let named = good.map(|it| &it.root).or_else(|| Some(&faulty()?.file));
        // A file that cannot be parsed has no name but that of the file.
        let of_file = || self.folder.iter().find(|path| path.file_stem() == Some(text));
        named.or_else(of_file).cloned().ok_or_else(|| {
            let message = format!("there is no workflow `{text}` in {}", self.settings.folder);
            CommandFailure::message(FailureCode::NotFound, message).hint("heeler workflow list")
        })
    }
}

fn is_cron(path: &Utf8Path) -> bool {
    // An unreadable file is reported when it is checked.
    let text = text_file::read_text(path).unwrap_or_default();
    // Not parsed as YAML, because a file with faults must be recognized too.
    text.lines().any(|line| line.split_whitespace().eq(["kind:", "cron"]))
}
